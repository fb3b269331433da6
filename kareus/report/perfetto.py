"""Before and after as one Chrome JSON file for Perfetto: a process group each, a track for every stream.

Times are microseconds with three decimals relative to the step's start, so no nanosecond is lost to
floating point. Perfetto drops slices that overlap on one track, so streams that overlap themselves are
spread over lanes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kareus.report.data import RankView, Slice, Timeline
from kareus.report.lanes import pack
from kareus.report.timeline import CLASS_NAMES

Event = dict[str, Any]


def chrome_json(views: Sequence[RankView], *, base_ns: int = 0, about: dict[str, str] | None = None) -> bytes:
    """Return the file's bytes: strict JSON that Perfetto and chrome://tracing load.

    Args:
        views: ranks to show. Each gives process groups "rank 0 before (measured)", "rank 0 stock as simulated
            (predicted)" where there is one, and "rank 0 after (predicted)".
        base_ns: absolute time of the step's start, kept as `baseTimeNanoseconds`.
        about: shown in Perfetto's info page, for instance the trace and the schedule.
    """
    events: list[Event] = []
    flows = 1
    for index, view in enumerate(views):
        for side, (name, timeline) in enumerate(view.sides):
            pid = 3 * index + side + 1
            title = f"rank {view.rank} {name.lower()} ({timeline.source})"
            events.append(_metadata("process_name", pid, 0, {"name": title}))
            events.append(_metadata("process_sort_index", pid, 0, {"sort_index": pid}))
            events += _timeline(timeline, pid, first_flow=flows)
            flows += len(timeline.arrows)
    document = {
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": base_ns,
        "otherData": {key: _clean(value) for key, value in (about or {}).items()},
        "traceEvents": events,
    }
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _timeline(timeline: Timeline, pid: int, *, first_flow: int) -> list[Event]:
    events: list[Event] = []
    placed: dict[int, tuple[int, Slice]] = {}
    tid = 0
    for track in timeline.tracks:
        for number, lane in enumerate(pack(track.slices)):
            tid += 1
            name = track.name if number == 0 else f"{track.name}, overlap {number}"
            events.append(_metadata("thread_name", pid, tid, {"name": _clean(name)}))
            events.append(_metadata("thread_sort_index", pid, tid, {"sort_index": tid}))
            for piece in lane:
                events.append(_slice(piece, pid, tid))
                if piece.op >= 0:
                    placed[piece.op] = (tid, piece)
    for number, (source, target) in enumerate(timeline.arrows):
        if source in placed and target in placed:
            events += _arrow(first_flow + number, pid, placed[source], placed[target])
    for counter in timeline.counters:
        for time_ns, value in counter.samples:
            events.append(
                {"ph": "C", "pid": pid, "tid": 0, "name": counter.name, "ts": _us(time_ns),
                 "args": {"value": value}}
            )  # fmt: skip
    return events


def _slice(piece: Slice, pid: int, tid: int) -> Event:
    args = {"class": CLASS_NAMES[piece.kind]}
    if piece.detail:
        args["detail"] = _clean(piece.detail)
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": _clean(piece.label),
        "cat": "communication" if piece.kind.is_communication else "compute",
        "ts": _us(piece.start_ns),
        "dur": _us(piece.end_ns - piece.start_ns),
        "args": args,
    }


def _arrow(flow: int, pid: int, source: tuple[int, Slice], target: tuple[int, Slice]) -> list[Event]:
    """A flow binds to the slice around its time, so it leaves one nanosecond before its source ends."""
    leaves = max(source[1].start_ns, source[1].end_ns - 1)
    shared: Event = {"pid": pid, "id": flow, "name": "waits for", "cat": "dependency"}
    return [
        {**shared, "ph": "s", "tid": source[0], "ts": _us(leaves)},
        {**shared, "ph": "f", "bp": "e", "tid": target[0], "ts": _us(target[1].start_ns)},
    ]


def _metadata(name: str, pid: int, tid: int, args: Event) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": args}


def _us(time_ns: int) -> float:
    """Exact to the nanosecond below 2^53 ns, some 104 days: division by 1000 rounds to the nearest double."""
    return time_ns / 1000


def _clean(text: str) -> str:
    """Perfetto refuses files with control characters, even escaped ones; kernel names do hold some."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
