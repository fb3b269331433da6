from __future__ import annotations

import json

import numpy as np
import pytest
from trace_samples import (
    ADD,
    BASE_NS,
    GATHER,
    GEMM,
    Event,
    ddp_steps,
    document,
    kernel,
    launch,
    mark,
    message,
    write,
)

from kareus.errors import InputError
from kareus.trace import jsonstream
from kareus.trace.kineto import read_trace
from kareus.trace.types import CollectiveKind, KernelClass, OpFlag, OpKind, Phase, Provenance


def codes(trace) -> set[str]:
    return {warning.code for warning in trace.warnings}


@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz"])
def test_a_ddp_job_is_read(tmp_path, name: str) -> None:
    trace = read_trace(write(tmp_path / name, document(ddp_steps())))
    assert (trace.rank, trace.world_size, trace.gpu, trace.num_sms) == (0, 2, "NVIDIA H200", 132)
    assert (trace.steps_from, len(trace.steps), len(trace.ops)) == ("optimizer", 3, 15)
    assert trace.ops.start_ns[0] == BASE_NS + 1_100_000
    assert [c.unit for c in trace.collectives] == ["bucket.0"] * 3
    first = trace.collectives[0]
    assert (first.kind, first.num_bytes, first.dtype, first.num_ctas) == (
        CollectiveKind.ALL_REDUCE,
        2 << 20,
        "bf16",
        24,
    )
    phases = [Phase(p) for p in trace.ops.phase[:5]]
    assert phases == [Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert trace.ops.kernel_class[4] == KernelClass.OPTIMIZER
    assert trace.warnings == ()


def test_nanoseconds_are_exact(tmp_path) -> None:
    events = [kernel(GEMM, 5207678777864.806, 487.488, 1), launch(5207678777800.001, 1)]
    trace = read_trace(write(tmp_path / "rank0.json", document(events)))
    assert trace.ops.start_ns[0] == BASE_NS + 5207678777864806
    assert trace.ops.duration_ns[0] == 487488
    assert trace.ops.launch_ns[0] == BASE_NS + 5207678777800001


def test_absolute_times_with_a_fraction_do_not_pass_through_a_float(tmp_path) -> None:
    text = json.dumps(document([kernel(GEMM, 0, 0, 1), launch(0, 1)])).replace(
        '"baseTimeNanoseconds": ', '"base": '
    )
    text = text.replace('"ts": 0, "dur": 0', '"ts": 1712195495519689.047, "dur": 3.999').replace(
        '"ts": 0, "dur": 2.0', '"ts": 1712195495519600.001, "dur": 2.0'
    )
    trace = read_trace(write(tmp_path / "rank0.json", text))
    assert trace.ops.start_ns[0] == 1712195495519689047
    assert trace.ops.end_ns[0] == 1712195495519689047 + 3999


def test_the_words_of_2021_are_understood(tmp_path) -> None:
    events = [
        {"ph": "X", "cat": "Kernel", "name": ADD, "pid": 0, "tid": "stream 7", "ts": 1000, "dur": 5,
         "args": {"external id": 3, "correlation": 4, "grid": [2, 3, 1]}},
        {"ph": "X", "cat": "Memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": "stream 7",
         "ts": 1010, "dur": 5, "args": {"stream": 7, "correlation": 5, "bytes": 64}},
        {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": "77", "ts": 990, "dur": 3,
         "args": {"external id": 3, "correlation": 4}},
    ]  # fmt: skip
    trace = read_trace(write(tmp_path / "old.json", {"schemaVersion": 1, "traceEvents": events}))
    assert list(trace.ops.stream) == [7, 7]
    assert list(trace.ops.kind) == [OpKind.COMPUTE, OpKind.COPY]
    assert (trace.ops.grid[0], trace.ops.num_bytes[1], trace.ops.launch_ns[0]) == (6, 64, 990_000)
    assert (trace.rank, trace.world_size) == (0, 1)


def test_facts_behind_the_events_count_too(tmp_path) -> None:
    head = document(ddp_steps(), rank=None)
    del head["distributedInfo"]
    head["distributedInfo"] = {"rank": 5, "world_size": 8}
    assert read_trace(write(tmp_path / "trace.json", head)).rank == 5


def test_the_rank_comes_from_the_file_then_the_name_then_the_caller(tmp_path) -> None:
    content = document(ddp_steps(), rank=None, world_size=8)
    assert read_trace(write(tmp_path / "job_rank3.json", content)).rank == 3
    assert read_trace(write(tmp_path / "trace.json", content), rank=2).rank == 2
    with pytest.raises(InputError, match=r"trace.json: a job of 8 ranks.*rename it or pass the rank"):
        read_trace(tmp_path / "trace.json")


def test_a_file_that_ends_early_gives_what_it_holds(tmp_path) -> None:
    text = json.dumps(document(ddp_steps(4)))
    trace = read_trace(write(tmp_path / "rank0.json", text[: text.rindex('"cat": "kernel"') - 10]), rank=0)
    assert len(trace.ops) == 19
    assert codes(trace) == {"ended-early"}
    assert "ends after" in trace.warnings[0].text


def test_a_broken_gzip_stream_gives_what_it_holds(tmp_path) -> None:
    events = ddp_steps(3000)
    path = write(tmp_path / "rank0.json.gz", document(events))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    trace = read_trace(path, rank=0)
    assert 0 < len(trace.ops) < 15000
    assert codes(trace) == {"ended-early"}


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('"grid"', '"memory bandwidth (GB/s)": inf, "grid"', "mended"),
        ('"grid"', '"memory bandwidth (GB/s)": -nan, "grid"', "mended"),
        ("AdamW.step", "Adam\\W.step", "mended"),
        ("AdamW.step", "Adam\x01W.step", "mended"),
    ],
)
def test_known_defects_of_the_profiler_are_mended(tmp_path, old: str, new: str, code: str) -> None:
    text = json.dumps(document(ddp_steps())).replace(old, new)
    trace = read_trace(write(tmp_path / "rank0.json", text))
    assert (len(trace.ops), len(trace.steps)) == (15, 3)
    assert codes(trace) == {code}


def test_a_byte_order_mark_is_skipped(tmp_path) -> None:
    text = b"\xef\xbb\xbf" + json.dumps(document(ddp_steps())).encode()
    assert len(read_trace(write(tmp_path / "rank0.json", text)).ops) == 15


def test_an_event_that_is_no_json_costs_itself_only(tmp_path) -> None:
    events = [*ddp_steps(), mark('say "hi"', 1, 1)]
    text = json.dumps(document(events)).replace('say \\"hi\\"', 'say "hi"')
    trace = read_trace(write(tmp_path / "rank0.json", text))
    assert len(trace.ops) == 15
    assert codes(trace) == {"bad-events"}
    assert "byte " in trace.warnings[0].text


def test_chunks_are_cut_between_events(tmp_path, monkeypatch) -> None:
    tricky = mark('inside}, {"ph": "X"', 1, 1)
    path = write(tmp_path / "rank0.json", document([tricky, *ddp_steps(200)]))
    whole = read_trace(path)
    monkeypatch.setattr(jsonstream, "CHUNK_BYTES", 1000)
    pieces = read_trace(path)
    assert pieces.warnings == whole.warnings == ()
    assert np.array_equal(pieces.ops.start_ns, whole.ops.start_ns)
    assert len(whole.ops) == 1000


def test_impossible_times_are_dropped_and_counted(tmp_path) -> None:
    events = [*ddp_steps(), kernel(GEMM, 1500, -5, 90), kernel(GEMM, 0, 0, 91)]
    trace = read_trace(write(tmp_path / "rank0.json", document(events)))
    assert len(trace.ops) == 15
    assert [(w.code, w.count) for w in trace.warnings] == [("bad-times", 2)]


def test_a_duration_beyond_the_next_op_is_cut(tmp_path) -> None:
    events = ddp_steps()
    events[8]["dur"] = 1_000_000.0
    trace = read_trace(write(tmp_path / "rank0.json", document(events)))
    assert trace.ops.end_ns[0] == trace.ops.start_ns[1]
    assert trace.ops.flags[0] & OpFlag.CLIPPED
    assert "clipped" in codes(trace)


def test_ops_without_a_launch_are_orphans(tmp_path) -> None:
    events = [kernel(GEMM, 500, 100, 1), *ddp_steps()]
    trace = read_trace(write(tmp_path / "rank0.json", document(events)))
    assert trace.ops.flags[0] & OpFlag.ORPHAN
    assert trace.ops.launch_ns[0] == -1
    assert "orphans" in codes(trace)


def test_what_ran_when_the_window_opened_belongs_to_no_step(tmp_path) -> None:
    before = [kernel(GEMM, 500 + 20 * n, 15, 900 + n) for n in range(20)]
    early = [launch(600, 800), kernel(ADD, 700, 5, 800, 21)]  # launched at once, on a stream of its own
    trace = read_trace(write(tmp_path / "rank0.json", document([*before, *early, *ddp_steps()])))
    assert len(trace.ops) == 36
    assert [start - BASE_NS for start, _ in trace.steps] == [1_100_000, 2_000_000, 3_000_000]


def test_a_missing_correlation_is_linked_by_order(tmp_path) -> None:
    events = ddp_steps()
    for event in events:
        if event["cat"] == "kernel" and event["tid"] == 17:
            event["args"]["correlation"] = 0
    trace = read_trace(write(tmp_path / "rank0.json", document(events)))
    rows = np.flatnonzero(trace.ops.kind == OpKind.COLLECTIVE)
    assert list(trace.ops.launch_ns[rows] - BASE_NS) == [1_040_000, 2_040_000, 3_040_000]
    assert all(trace.ops.flags[rows] & OpFlag.INFERRED_LAUNCH)
    assert codes(trace) == {"launch-inferred"}


def test_kernels_of_a_graph_share_one_launch(tmp_path) -> None:
    events = [launch(10, 1, "cudaGraphLaunch"), *(kernel(GEMM, 100 + 10 * n, 9, 1) for n in range(5))]
    trace = read_trace(write(tmp_path / "rank0.json", document(events, world_size=1)))
    assert set(trace.ops.launch_ns - BASE_NS) == {10_000}
    assert all(trace.ops.flags & OpFlag.GRAPH)


def test_overlap_on_one_stream_is_flagged_not_cut(tmp_path) -> None:
    events = [launch(1, 1), launch(2, 2), kernel(GEMM, 10, 100, 1), kernel(GEMM, 100, 100, 2)]
    trace = read_trace(write(tmp_path / "rank0.json", document(events, world_size=1)))
    assert list(trace.ops.duration_ns) == [100_000, 100_000]
    assert trace.ops.flags[1] & OpFlag.SAME_STREAM_OVERLAP


def test_projected_ranges_are_not_work(tmp_path) -> None:
    events = [*ddp_steps(), mark("Optimizer.step#AdamW.step", 1, 5000, 7, cat="gpu_user_annotation")]
    assert len(read_trace(write(tmp_path / "rank0.json", document(events))).ops) == 15


def test_unknown_names_are_reported_with_their_share(tmp_path) -> None:
    events = [*ddp_steps(), kernel("my_secret_kernel", 1950, 10, 77)]
    trace = read_trace(write(tmp_path / "rank0.json", document(events)))
    assert "unknown-kernels" in codes(trace)
    assert any("my_secret_kernel x1" in w.text for w in trace.warnings)


def test_fsdp_labels_name_units_and_give_waits(tmp_path) -> None:
    copy = "at::native::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**)"
    events = [
        mark("FSDP::pre_forward (blocks.0)", 10, 50),
        mark("FSDP::all_gather (blocks.0)", 12, 10),
        launch(13, 1), launch(15, 2), mark("FSDP::all_gather_copy_out (blocks.0)", 30, 5), launch(31, 3),
        mark("kareus::forward blocks.0.mlp", 70, 20), launch(80, 4),
        mark("FSDP::post_forward (blocks.0)", 95, 5),
        kernel(ADD, 100, 10, 1, 18), kernel(GATHER, 115, 50, 2, 22, **message("_allgather_base", 1024)),
        kernel(copy, 170, 10, 3), kernel(GEMM, 182, 100, 4),
    ]  # fmt: skip
    trace = read_trace(write(tmp_path / "rank0.json", document(events)))
    assert (trace.units, trace.modules) == (("blocks.0",), ("blocks.0.mlp",))
    assert set(trace.ops.unit) == {0}
    assert list(trace.ops.module) == [-1, -1, -1, 0]
    assert trace.collectives[0].unit == "blocks.0"
    assert [tuple(row) for row in trace.waits[:, :2]] == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("", "it is empty"),
        ("hello", "found b'hello' at its start"),
        ('{"schema": "1.0.1", "nodes": []}', "a PyTorch execution trace"),
        ('{"a": 1', 'found no "traceEvents"'),
        ('{"traceEvents": []}', "holds no events"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}]}', "no GPU kernel"),
        (b"PK\x03\x04rest", "a zip archive"),
        ("x" * 200 + "ustar", "a tar archive"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path, content: str | bytes, part: str) -> None:
    path = write(tmp_path / "file.json", content)
    with pytest.raises(InputError, match=part) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*nowhere.json: No such file"):
        read_trace(tmp_path / "nowhere.json")


def wait_record(ts: float, stream: int, correlation: int, **known: int) -> Event:
    """Return a sync event; without `known` as torch 2.11 writes it, which cannot find the event."""
    args = {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1, "wait_on_cuda_event_id": 5}
    return {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": stream, "ts": ts,
            "dur": 1.0, "args": {**args, "stream": stream, "correlation": correlation, **known}}  # fmt: skip


@pytest.mark.parametrize(
    ("known", "provenance"),
    [
        ({}, Provenance.INFERRED),
        ({"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 50}, Provenance.TRACED),
    ],
)
def test_waits_without_the_event_are_inferred_for_the_waiting_stream(tmp_path, known, provenance) -> None:
    """Stream 20 waits for stream 7; the launch on stream 30 that follows the call at once waits for nothing."""
    events = [
        launch(10, 1),
        launch(20, 50, name="cudaEventRecordWithFlags"),
        launch(25, 51, name="cudaStreamWaitEvent"),
        wait_record(25.2, 20, 51, **known),
        launch(30, 2),
        launch(35, 3),
        kernel(GEMM, 40, 100, 1, stream=7),
        kernel(ADD, 45, 10, 2, stream=30),
        kernel(ADD, 141, 10, 3, stream=20),
    ]
    trace = read_trace(write(tmp_path / "rank0.json", document(events)))
    rows = [tuple(row) for row in trace.waits if row[2] != Provenance.PRUNED]
    assert rows == [(0, 2, provenance)]
