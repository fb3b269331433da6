"""Public traces of other people's jobs: a right answer or a precise refusal for every file."""

from __future__ import annotations

import os
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest

from kareus.errors import InputError
from kareus.trace import TraceSet, graphs, read_trace
from kareus.trace.execution import read_execution_trace
from kareus.trace.replay import judge, learn, replay
from kareus.trace.stats import step_times
from kareus.trace.types import CollectiveKind, OpFlag, OpKind

SHARED = Path(os.environ.get("KAREUS_SHARED", Path(__file__).parents[3] / "shared"))
DATA = SHARED / "data/traces"

pytestmark = pytest.mark.skipif(
    not (DATA / "awkward").is_dir(), reason=f"public traces not at {DATA}; set KAREUS_SHARED"
)


# file -> (GPU ops, orphans, collectives, steps found by, steps)
READABLE = {
    "awkward/B300_dsr1_decode_PDL_overlap.json.gz": (397, 0, 0, "window", 1),
    "awkward/MI300_dsr1_decode.json.gz": (389, 0, 0, "window", 1),
    "awkward/amd_mi250_small.json.gz": (16, 0, 0, "profiler", 1),
    "awkward/cuda_sync_stream_wait_small.json.gz": (6, 0, 0, "repetition", 3),
    "awkward/gpu_only_no_cpu_events_mi210.json.gz": (562, 0, 0, "window", 1),
    "awkward/h100_436_orphan_kernels_no_nccl.json.gz": (1707, 509, 0, "profiler", 1),
    "awkward/hip_graph_421_kernels_one_correlation.json.gz": (434, 0, 0, "window", 1),
    "awkward/kineto2021_old_categories_resnet50.json.gz": (9096, 0, 0, "repetition", 6),
    "awkward/pair_simple_add_kineto.json.gz": (4, 0, 0, "window", 1),
    "et/linear_kineto.json.gz": (10356, 0, 0, "optimizer", 39),
    "single_rank/hta_newargs_ddp_rank0of2.json.gz": (3774, 0, 21, "profiler", 3),
    "single_rank/hta_orphans_rank0of16.json.gz": (7747, 872, 80, "profiler", 5),
}

# file -> what the refusal must say
REFUSED = {
    "awkward/distributedInfo_without_rank_no_gpu.json.gz": r"2467 events but no GPU kernel.*backend nccl",
    "awkward/gloo_cpu_only_rank34of300.json.gz": r"30 events but no GPU kernel.*backend gloo",
    "awkward/mtia_no_cuda_87MB.json.gz": r"no GPU kernel.*mtia:hccl",
    "awkward/not_kineto_rocprofv3_results.json.gz": r"results of rocprofv3; record with torch.profiler",
    "awkward/pair_simple_add_et.json.gz": r"a PyTorch execution trace",
    "et/linear_et_1.0.1.json.gz": r"a PyTorch execution trace",
    "et/resnet_2gpu_et_1.1.0-chakra.0.0.4.json.gz": r"a Chakra execution trace",
    "et/pt2_inductor_et_1.1.1.tar.gz": r"a tar archive; unpack it",
    "chakra/1.0.2-chakra.0.0.4.tgz": r"a tar archive; unpack it",
    "chakra/feeder_tests_chakra.0.et.tar.gz": r"a tar archive; unpack it",
    "chakra/json_trace.tar.gz": r"a tar archive; unpack it",
    "megascan_pp4/pp4_aggregated_BE_events.json.gz": r"10240 events but no GPU kernel",
    "derived_corrupt/truncated.json.gz": r"breaks off after \d+ bytes.*record the trace again",
}

# damaged copies of derived_corrupt/ok_base.json -> warnings they add
DAMAGED = {
    "bare_array_unclosed.json": {"ended-early"},
    "correlation_zero_rccl.json": {"launch-inferred"},
    "dur_overflows_next.json": {"clipped"},
    "inf_bandwidth.json": {"mended"},
    "missing_correlation.json": {"launch-inferred"},
    "negative_dur.json": {"bad-times"},
    "ts_zero_dur_zero.json": {"bad-times"},
    "utf8_bom.json": {"mended"},
}


@pytest.mark.parametrize("name", READABLE)
def test_readable_files_give_what_is_in_them(name: str) -> None:
    ops, orphans, collectives, found_by, steps = READABLE[name]
    trace = read_trace(DATA / name, rank=0)
    assert len(trace.ops) == ops
    assert int((trace.ops.flags & OpFlag.ORPHAN > 0).sum()) == orphans
    assert len(trace.collectives) == collectives
    assert (trace.steps_from, len(trace.steps)) == (found_by, steps)
    for graph in graphs(trace):
        times = step_times(graph)
        assert min(times.time_us, times.compute_us, times.comm_us, times.exposed_comm_us, times.idle_us) >= 0
        assert times.compute_us + times.exposed_comm_us + times.idle_us == pytest.approx(times.time_us)


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_are_refused_precisely(name: str) -> None:
    with pytest.raises(InputError, match=REFUSED[name]) as caught:
        read_trace(DATA / name, rank=0)
    assert name in str(caught.value)


# archive, member -> what the refusal must say
PACKED = {
    (
        "chakra/1.0.2-chakra.0.0.4.tgz",
        "1.0.2-chakra.0.0.4.json",
    ): r"a Chakra execution trace, which holds no GPU times",
    (
        "chakra/feeder_tests_chakra.0.et.tar.gz",
        "tests/data/chakra.0.et",
    ): r"a Chakra graph as protobuf .*pass the Kineto",
    (
        "chakra/json_trace.tar.gz",
        "jsonData/small_chakra.0.json",
    ): r"a Chakra workload graph, .*pass the Kineto trace",
    ("et/pt2_inductor_et_1.1.1.tar.gz", "pt2_et.json"): r"a Chakra execution trace",
}


@pytest.mark.parametrize(("archive", "member"), PACKED)
def test_what_archives_hold_is_refused_precisely(tmp_path: Path, archive: str, member: str) -> None:
    with tarfile.open(DATA / archive) as packed:
        held = packed.extractfile(member)
        assert held is not None
        path = tmp_path / Path(member).name
        path.write_bytes(held.read())
    with pytest.raises(InputError, match=PACKED[archive, member]) as caught:
        TraceSet.open(path)
    assert path.name in str(caught.value)


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_costs_one_event_and_is_reported(name: str) -> None:
    good = read_trace(DATA / "derived_corrupt/ok_base.json", rank=0)
    hurt = read_trace(DATA / "derived_corrupt" / name, rank=0)
    assert {w.code for w in hurt.warnings} - {w.code for w in good.warnings} == DAMAGED[name]
    assert len(good.ops) - len(hurt.ops) in (0, 1)
    assert sum(hurt.ops.duration_ns) == pytest.approx(sum(good.ops.duration_ns), rel=0.02)


def test_436_kernels_of_the_h100_trace_have_no_launch() -> None:
    trace = read_trace(DATA / "awkward/h100_436_orphan_kernels_no_nccl.json.gz")
    orphan = (trace.ops.flags & OpFlag.ORPHAN > 0) & (trace.ops.kind == OpKind.COMPUTE)
    assert int(orphan.sum()) == 436


def test_421_kernels_of_the_hip_graph_share_one_launch() -> None:
    trace = read_trace(DATA / "awkward/hip_graph_421_kernels_one_correlation.json.gz", rank=0)
    graph = trace.ops.flags & OpFlag.GRAPH > 0
    assert int(graph.sum()) == 421
    assert len(np.unique(trace.ops.launch_ns[graph])) == 1


def test_blackwell_kernels_may_overlap_on_one_stream() -> None:
    trace = read_trace(DATA / "awkward/B300_dsr1_decode_PDL_overlap.json.gz", rank=0)
    assert int((trace.ops.flags & OpFlag.SAME_STREAM_OVERLAP > 0).sum()) == 355
    assert not (trace.ops.flags & OpFlag.CLIPPED).any()
    graph = graphs(trace)[0]
    error = judge(graph, replay(graph, learn(graph)))
    assert max(error.step_time, error.kernel_end) < 0.012  # kernels of 3 us: who held whom is hard to tell


def test_a_recorded_wait_is_traced() -> None:
    trace = read_trace(DATA / "awkward/cuda_sync_stream_wait_small.json.gz")
    assert [int(p) for p in trace.waits[:, 2]] == [0]


@pytest.mark.parametrize("folder", ["derived_skew", "dlrm_8rank_v100"])
def test_clock_offsets_are_recovered(folder: str) -> None:
    traces = TraceSet.open(DATA / folder)
    injected = {
        rank: int(found.group(1)) if (found := re.search(r"offset_(-?\d+)us", path.name)) else 0
        for rank, path in traces.files.items()
    }
    for rank, offset_us in injected.items():
        assert traces.alignment.offset_ns[rank] / 1000 == pytest.approx(-offset_us, abs=50)


def test_waiting_is_told_from_moving_data() -> None:
    """NCCL kernels of this job last 6.07 ms a rank on average, the data move in 0.22 ms."""
    traces = TraceSet.open(DATA / "dlrm_8rank_v100")
    assert traces.complete
    assert "skipped-files" not in {
        w.code for w in traces.warnings
    }  # execution traces lie beside and are joined
    matched = traces.alignment.collectives
    assert len(matched) == 8
    kernels_ms = np.mean([sum(int(m.end_ns[r] - m.start_ns[r]) for m in matched) for r in range(8)]) / 1e6
    assert kernels_ms == pytest.approx(6.07, rel=0.01)
    assert sum(m.transfer_ns for m in matched) / 1e6 == pytest.approx(0.217, rel=0.1)
    kinds = [m.kind for m in matched]
    assert kinds.count(CollectiveKind.ALL_TO_ALL) == 5


def test_execution_traces_beside_old_kineto_files_give_sizes_groups_and_sequence_numbers() -> None:
    traces = TraceSet.open(DATA / "dlrm_8rank_v100")
    for rank in traces.ranks:
        trace = traces.load(rank)
        assert trace.execution is not None
        assert trace.execution.collectives_named == 8
        assert trace.execution.operators_joined > 0.99 * trace.execution.operators
        assert [c.sequence for c in trace.collectives] == list(range(147, 155))
        assert {c.group for c in trace.collectives} == {tuple(range(8))}
        assert [c.num_bytes for c in trace.collectives][4] == 394_241 * 4


def test_an_execution_trace_of_another_rank_is_refused_where_asked_for() -> None:
    folder = DATA / "dlrm_8rank_v100"
    with pytest.raises(InputError, match=r"et_1.json.gz: execution trace of process \d+, but .*kineto_0"):
        TraceSet.open(folder / "kineto_0.json.gz", execution=[folder / "et_1.json.gz"]).load(0)


@pytest.mark.parametrize("name", ["et/linear_kineto.json.gz", "awkward/pair_simple_add_kineto.json.gz"])
def test_operators_of_the_pair_are_found(name: str) -> None:
    link = TraceSet.open(DATA / name).load(0).execution
    assert link is not None
    assert link.operators_joined > 0.9 * link.operators


def test_chakra_schema_names_groups_and_their_sizes() -> None:
    found = read_execution_trace(DATA / "et/resnet_2gpu_et_1.1.0-chakra.0.0.4.json.gz")
    assert [(g.name, g.ranks, g.description) for g in found.groups] == [("0", (0, 1), "default_pg")]
    sizes = [(a.collective, a.in_elements, a.sequence, a.group_size) for a in found.comm.values()]
    assert sizes[:3] == [("broadcast", 53120, 33, 2), ("broadcast", 53, 34, 2), ("allreduce", 2049000, 35, 2)]
    assert len(sizes) == 21


def test_one_step_of_a_real_ddp_job_replays_another() -> None:
    steps = graphs(read_trace(DATA / "single_rank/hta_newargs_ddp_rank0of2.json.gz"))
    for source, judged in ((0, 1), (1, 2), (2, 0)):
        error = judge(steps[judged], replay(steps[judged], learn(steps[source])))
        assert error.step_time < 0.033
        assert error.kernel_end < 0.01
