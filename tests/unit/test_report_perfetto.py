"""The Perfetto file is strict JSON, keeps nanoseconds, and no two slices overlap on one track."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_samples import piece, timeline

from kareus.report.data import RankView, Slice, SliceClass, Source, Timeline, Track
from kareus.report.perfetto import chrome_json

Event = dict[str, Any]


def load(data: bytes) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    document: dict[str, Any] = json.loads(data, parse_constant=refuse)
    return document


def view(*slices: Slice) -> RankView:
    side = Timeline(
        duration_ns=10**9, tracks=(Track(name="stream 7", slices=slices),), source=Source.MEASURED
    )
    return RankView(rank=0, before=side, after=side)


def events(data: bytes, ph: str) -> list[Event]:
    return [e for e in load(data)["traceEvents"] if e["ph"] == ph]


def sample() -> bytes:
    ranks = [
        RankView(rank=r, before=timeline(Source.MEASURED), after=timeline(Source.PREDICTED, 0.9))
        for r in (0, 1)
    ]
    return chrome_json(ranks, base_ns=1_700_000_000_000_000_001, about={"trace": "some/dir"})


def test_two_named_process_groups_for_each_rank() -> None:
    names = [e["args"]["name"] for e in events(sample(), "M") if e["name"] == "process_name"]
    assert names == [
        "rank 0 before (measured)",
        "rank 0 after (predicted)",
        "rank 1 before (measured)",
        "rank 1 after (predicted)",
    ]
    assert load(sample())["baseTimeNanoseconds"] == 1_700_000_000_000_000_001


def test_one_named_track_for_each_stream() -> None:
    named = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events(sample(), "M") if e["name"] == "thread_name"
    }
    assert named[1, 1] == "compute, stream 7"
    assert named[1, 2] == "all-gather, stream 22"
    assert {(e["pid"], e["tid"]) for e in events(sample(), "X")} == set(named)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**6)), max_size=30))
def test_no_slices_overlap_on_a_track_and_none_is_lost(spans: list[tuple[int, int]]) -> None:
    slices = [
        Slice(start_ns=s, end_ns=s + d, kind=SliceClass.GEMM, label=f"{i}") for i, (s, d) in enumerate(spans)
    ]
    tracks = defaultdict(list)
    for event in events(chrome_json([view(*slices)]), "X"):
        start = round(event["ts"] * 1000)
        tracks[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000)))
    for track in tracks.values():
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(track)))
    before = sorted(s for (pid, _), track in tracks.items() if pid == 1 for s in track)
    assert before == sorted((s, s + d) for s, d in spans)


def test_arrows_leave_inside_their_source_and_arrive_at_their_target() -> None:
    slices = {e["name"]: e for e in events(sample(), "X") if e["pid"] == 1}
    starts, ends = events(sample(), "s"), events(sample(), "f")
    assert [e["id"] for e in starts] == [e["id"] for e in ends] == list(range(1, 9))
    source, target = slices["all_gather(root, forward)"], slices["gemm<1>"]
    assert starts[0]["tid"] == source["tid"]
    assert source["ts"] <= starts[0]["ts"] < source["ts"] + source["dur"]
    assert (ends[0]["tid"], ends[0]["ts"], ends[0]["bp"]) == (target["tid"], target["ts"], "e")


def test_counters_are_numbers() -> None:
    found = [(e["name"], e["ts"], e["args"]) for e in events(sample(), "C") if e["pid"] == 1]
    assert found == [("power W", 0.0, {"value": 650.5}), ("power W", 5000.0, {"value": 690.25})]


def test_control_characters_do_not_reach_the_file() -> None:
    data = chrome_json([view(piece(0, 1, SliceClass.GEMM, "bad\x01name\n"))])
    assert {e["name"] for e in events(data, "X")} == {"bad\ufffdname\ufffd"}
    assert b"\\u0001" not in data


def test_numbers_json_does_not_know_are_refused() -> None:
    before = timeline(Source.MEASURED)
    counter = dataclasses.replace(before.counters[0], samples=((0, float("nan")),))
    broken = dataclasses.replace(before, counters=(counter,))
    with pytest.raises(ValueError, match="JSON compliant"):
        chrome_json([RankView(rank=0, before=broken, after=before)])
