"""What users pass by mistake or in unusual form: a right answer, or a refusal that says what it is."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from trace_samples import BASE_NS, ddp_steps, document, write

from kareus.cli.main import main
from kareus.errors import InputError
from kareus.trace import TraceSet, jsonstream
from kareus.trace.graph import graphs
from kareus.trace.kineto import read_trace
from kareus.trace.stats import step_times

TEXT = json.dumps(document(ddp_steps()))
PROTOBUF = b"^\x12\x10\n\x06schema\xea\x01\x051.0.1\x12\t\n\x03pidh\xa6\xff\x06"
WORKLOAD = (
    '{"workload_graph": [{"Id": 216, "Name": "aten::add", "NodeType": 4, "runtime": 318, "is_cpu_op": true}]}'
)


def changed(**fields: Any) -> dict[str, Any]:
    """The sample's document with every event's given fields replaced; a function gets the event."""
    events = [
        {**event, **{key: value(event) if callable(value) else value for key, value in fields.items()}}
        for event in ddp_steps()
    ]
    return {**document([]), "traceEvents": events}


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (PROTOBUF, "a Chakra graph as protobuf .*; pass the Kineto trace"),
        (b"\x09\n\x050.0.4 \x08\x01\x12\x04aten", "a Chakra graph as protobuf"),
        (WORKLOAD.encode(), "a Chakra workload graph, which holds durations but no start times"),
        (b"\n\x1b2\x10\x12\x05\x08\x06\x10\xb8\x0bX\x01P\x01xxxx", "a Perfetto trace, .pftrace.*; export again"),
        (bz2.compress(TEXT.encode()), "compressed with bzip2"),
        (lzma.compress(TEXT.encode()), "compressed with xz"),
        (zlib.compress(TEXT.encode()), "compressed with zlib"),
        (b"\x28\xb5\x2f\xfdabc", "compressed with zstd, which is not read here; unpack it, or use gzip"),
        (gzip.compress(gzip.compress(TEXT.encode())), "compressed twice; unpack it once"),
        (TEXT.encode("utf-16"), "UTF-16 or UTF-32; convert it"),
        (TEXT.encode("utf-16-le"), "UTF-16 or UTF-32; convert it"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\n", "a pointer of Git LFS; .*git lfs pull"),
        (b"<html><body>404</body></html>", "a web page"),
        (b"\x00" * 200, "nothing but zero bytes"),
        (str(document(ddp_steps())).encode(), "a Python dictionary in text"),
        ("\n".join(map(json.dumps, ddp_steps())).encode(), "JSON lines"),
        (b'{"schemaVersion": 1, "traceEvents": null}', '"traceEvents" are no list'),
        (b"PAR1\x15\x04", "a Parquet file"),
        (b"\nabc", "it is not a Kineto trace"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_the_file_is(tmp_path: Path, data: bytes, part: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=part) as caught:
        TraceSet.open(path).load(0)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (PROTOBUF, "found a Chakra graph as protobuf"),
        (WORKLOAD.encode(), "found a Chakra workload graph"),
        (TEXT.encode(), "found a Kineto trace"),
        (b'{"schema": "1.1.1-chakra.0.0.4", "pid": 9, "nodes": [', "found one that cannot be read"),
        (None, "found one that cannot be read: .*No such file"),
    ],
)
def test_what_is_no_execution_trace_is_named(tmp_path: Path, capsys, data: bytes | None, part: str) -> None:
    trace, given = write(tmp_path / "rank0.json", document(ddp_steps())), tmp_path / "given.et"
    if data is not None:
        given.write_bytes(data)
    for command in (["inspect"], ["solve", "-o", str(tmp_path / "schedule.json")]):
        assert main([command[0], str(trace), "--execution-trace", str(given), *command[1:]]) == 3
        message = capsys.readouterr().err
        assert re.search(part, message), message
        assert "or leave --execution-trace out" in message


SAME = {
    "pid_and_tid_are_floats": changed(pid=lambda e: float(e["pid"]), tid=lambda e: float(e["tid"])),
    "times_are_texts": changed(ts=lambda e: str(e["ts"]), dur=lambda e: str(e["dur"])),
    "no_pid": changed(pid=None),
    "pids_are_texts": changed(pid="GPU 0"),
    "xpu": changed(cat=lambda e: e["cat"].replace("cuda_runtime", "xpu_runtime")),
    "displayed_in_ns": {**document(ddp_steps()), "displayTimeUnit": "ns"},
    "a_bare_list": ddp_steps(),
    "bytes_behind": (TEXT + "garbage").encode(),
    "latin_1": TEXT.replace("AdamW", "Ad\u00e4mW").encode("latin-1"),
    "a_comma_too_many": TEXT.replace("}]", "},]").encode(),
    "zeros_behind_gzip": gzip.compress(TEXT.encode()) + b"\x00" * 512,
    "garbage_behind_gzip": gzip.compress(TEXT.encode()) + b"garbage",
    "two_gzip_members": gzip.compress(TEXT[:3000].encode()) + gzip.compress(TEXT[3000:].encode()),
}


@pytest.mark.parametrize("name", SAME)
def test_unusual_forms_give_the_same_figures(tmp_path: Path, name: str) -> None:
    good = [step_times(g) for g in graphs(read_trace(write(tmp_path / "rank0.json", TEXT)))]
    assert len(good) == 3
    content = SAME[name]
    path = write(tmp_path / "other_rank0.json", content)
    assert [step_times(g) for g in graphs(read_trace(path))] == good


def test_what_stands_beside_the_events_and_cannot_be_read_is_reported(tmp_path: Path) -> None:
    """Without the header the GPU is unknown and a rank of two looks like one alone."""
    broken = TEXT.replace('"deviceProperties"', 'deviceProperties"', 1)
    trace = read_trace(write(tmp_path / "rank0.json", broken))
    assert [w.code for w in trace.warnings] == ["bad-header"]
    assert trace.gpu == ""
    behind = read_trace(write(tmp_path / "rank0.json", TEXT + TEXT))
    assert [w.code for w in behind.warnings] == ["bad-header"]
    assert behind.gpu == "NVIDIA H200"


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (changed(cat="hpu_op"), "recorded on Gaudi"),
        (changed(ph="B"), "39 events are begins and ends"),
        (changed(cat="cpu_op"), r"ProfilerActivity.CUDA .* \(there are 39 cpu_op\)"),
    ],
)
def test_a_file_without_gpu_work_says_what_it_holds(tmp_path: Path, content: Any, part: str) -> None:
    with pytest.raises(InputError, match=part):
        read_trace(write(tmp_path / "rank0.json", content))


def test_events_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no events that can be read \(39 are not, first at byte 1:"):
        read_trace(write(tmp_path / "rank0.json", changed(ph=[])["traceEvents"]))


@pytest.mark.parametrize("chunk", [1000, 4 << 20])
def test_bytes_are_counted_from_the_start_of_the_file(tmp_path: Path, monkeypatch, chunk: int) -> None:
    monkeypatch.setattr(jsonstream, "CHUNK_BYTES", chunk)
    text = TEXT.replace('"dur": 180', '"dur": [180', 1)
    trace = read_trace(write(tmp_path / "rank0.json", text))
    at = text.rindex('{"ph"', 0, text.index('"dur": [180'))
    assert [w.code for w in trace.warnings] == ["bad-events"]
    assert f"first at byte {at}: " in trace.warnings[0].text
    cut = read_trace(write(tmp_path / "rank0.json", TEXT[:5000]))
    assert "ends after 5000 bytes" in cut.warnings[-1].text


@pytest.mark.parametrize("chunk", [1500, 4 << 20])
@pytest.mark.parametrize("added", ['"', "{", "}", "[", "]", ",", "\\", ""])
def test_a_byte_too_many_or_too_few_costs_its_own_event_only(
    tmp_path: Path, monkeypatch, chunk: int, added: str
) -> None:
    """Anywhere in an event in the middle; the one behind it may go too, and what is lost is counted."""
    monkeypatch.setattr(jsonstream, "CHUNK_BYTES", chunk)
    first = TEXT.index('{"ph"', len(TEXT) // 2)
    lost_most = 0
    for at in range(first, TEXT.index('{"ph"', first + 1), 3):
        path = write(tmp_path / "rank0.json", TEXT[:at] + added + TEXT[at + (not added) :])
        stream = jsonstream.EventStream(path)
        lost = 39 - sum(len(batch) for batch in stream.batches())
        damage = stream.damage
        assert lost <= 2, f"{added!r} at {at}: {lost} events lost"
        assert not lost or damage.dropped or damage.ended_early, (
            f"{added!r} at {at}: {lost} lost without a word"
        )
        assert stream.header["distributedInfo"]["world_size"] == 2
        lost_most = max(lost_most, lost)
    assert lost_most >= 1


def job(folder: Path, names: tuple[str, ...] = ("rank0.json", "rank1.json"), **second: Any) -> Path:
    """Two ranks of one job; the second rank's header changed."""
    folder.mkdir(exist_ok=True)
    for rank, name in enumerate(names):
        content = document(ddp_steps(wait=100 * rank), rank=rank)
        write(folder / name, {**content, **second} if rank else content)
    return folder


def test_names_with_spaces_and_capitals_and_links_are_found(tmp_path: Path) -> None:
    origin = job(tmp_path / "of a job", ("Trace of RANK0.JSON", "trace of rank1.Json"))
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in origin.iterdir():
        os.symlink(file, linked / file.name)
    for folder in (origin, linked):
        traces = TraceSet.open(folder)
        assert traces.ranks == (0, 1)
        assert len(traces.alignment.collectives) == 3


def test_pipes_and_folders_among_the_files_do_no_harm(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    os.mkfifo(folder / "rank2.json")
    (folder / "rank3.json").mkdir()
    os.symlink(folder / "nowhere", folder / "rank4.json")
    traces = TraceSet.open(folder)
    assert traces.ranks == (0, 1)
    assert [w.code for w in traces.warnings] == ["skipped-files"]
    assert "rank4.json" in traces.warnings[0].text


def test_files_of_different_jobs_are_refused(tmp_path: Path) -> None:
    other = {"distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 8}}
    with pytest.raises(InputError, match=r"different jobs: .*rank0.json is of a job of 2 ranks, .* one of 8"):
        TraceSet.open(job(tmp_path / "job", **other))
    impossible = {"distributedInfo": {"backend": "nccl", "rank": 5, "world_size": 2}}
    with pytest.raises(InputError, match=r"rank1.json: distributedInfo says rank 5 of a job of 2 ranks"):
        TraceSet.open(job(tmp_path / "job", **impossible))


def test_files_of_different_runs_are_told(tmp_path: Path) -> None:
    traces = TraceSet.open(job(tmp_path / "job", baseTimeNanoseconds=BASE_NS - 7200 * 10**9))
    assert traces.alignment.offset_ns[1] == 7200 * 10**9
    assert [w.code for w in traces.warnings] == ["other-run"]
    assert "recorded 2.0 hours from" in traces.warnings[0].text


def test_facts_behind_the_events_name_the_ranks_of_a_folder(tmp_path: Path) -> None:
    """As on-demand traces have them; also in a compressed file."""
    for rank, name in enumerate(("first.json", "second.json.gz")):
        content = document(ddp_steps(wait=100 * rank), rank=None)
        del content["distributedInfo"]
        write(tmp_path / name, {**content, "distributedInfo": {"rank": rank, "world_size": 2}})
    traces = TraceSet.open(tmp_path)
    assert traces.complete
    assert [traces.load(rank).rank for rank in traces.ranks] == [0, 1]


def test_the_rank_of_a_single_file_is_asked_for(tmp_path: Path, capsys) -> None:
    path = write(tmp_path / "trace.json", document(ddp_steps(), rank=None))
    with pytest.raises(
        InputError, match=r"a job of 2 ranks, but neither .* name it rank0.json, .* or pass --rank"
    ):
        TraceSet.open(path)
    assert main(["inspect", str(path), "--rank", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"][0]["rank"] == 1


@pytest.mark.parametrize(
    ("files", "part"),
    [
        (("chakra.0.et",), r"chakra.0.et \(a Chakra graph\) is not read"),
        (("rank0.json.zst",), r"rank0.json.zst \(zstd\) is not read"),
        (("inner/rank0.json",), "pass .*inner"),
        (("rank0.txt",), "found rank0.txt; name traces rank0.json"),
        ((), "record one with"),
    ],
)
def test_a_folder_without_traces_says_what_it_holds(
    tmp_path: Path, files: tuple[str, ...], part: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    with pytest.raises(InputError, match=part):
        TraceSet.open(tmp_path)


def test_a_step_without_collectives_is_refused_before_it_is_solved(tmp_path: Path, capsys) -> None:
    events = [e for e in ddp_steps() if "Collective name" not in e["args"]]
    path = write(tmp_path / "rank0.json", document(events, world_size=1))
    assert main(["solve", str(path), "-o", str(tmp_path / "schedule.json")]) == 3
    message = capsys.readouterr().err
    assert "no collective in it, so there is nothing to schedule" in message
    assert "bound" not in message
