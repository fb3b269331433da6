"""The committed H200 recordings give the numbers they are known for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kareus.trace import TraceSet, build_graph, graphs
from kareus.trace.replay import judge, learn, replay, replay_ranks
from kareus.trace.stats import collective_rows, step_times
from kareus.trace.types import CollectiveKind, EdgeKind, KernelClass, OpKind, Phase, Provenance, StepGraph

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture(
    scope="module", params=["fsdp2-nvlink-default", "fsdp2-hostmem-default", "ddp-nvlink-default"]
)
def job(request) -> tuple[str, TraceSet, list[list[StepGraph]]]:
    traces = TraceSet.open(TRACES / request.param)
    return request.param, traces, [graphs(traces.load(rank)) for rank in traces.ranks]


@pytest.mark.parametrize(
    ("rank", "expected"),
    [(0, (127.2, 120.3, 44.9, 5.63, 1.33)), (1, (128.8, 121.8, 43.4, 6.04, 0.94))],
)
def test_the_fsdp2_step_has_its_known_breakdown(rank: int, expected: tuple[float, ...]) -> None:
    trace = TraceSet.open(TRACES / "fsdp2-nvlink-default").load(rank)
    times = [step_times(graph) for graph in graphs(trace)]
    assert (len(times), trace.steps_from) == (2, "optimizer")
    names = ("time_us", "compute_us", "comm_us", "exposed_comm_us", "idle_us")
    for name, value_ms in zip(names, expected, strict=True):
        mean_ms = np.mean([getattr(t, name) for t in times]) / 1000
        assert mean_ms == pytest.approx(value_ms, rel=0.01, abs=0.05), name
    for t in times:
        assert t.compute_us + t.exposed_comm_us + t.idle_us == pytest.approx(t.time_us)


def test_every_kernel_name_is_known_and_nothing_is_warned_about(job) -> None:
    _, traces, _ = job
    assert traces.complete
    assert traces.warnings == ()


def test_fsdp2_collectives_carry_unit_phase_bytes_and_ctas() -> None:
    graph = build_graph(TraceSet.open(TRACES / "fsdp2-nvlink-default").load(0), 1)
    assert graph.wrapper == "fsdp2"
    gathers = [c for c in graph.collectives if c.kind == CollectiveKind.ALL_GATHER]
    forward = [c.unit for c in gathers if c.phase == Phase.FORWARD]
    backward = [c.unit for c in gathers if c.phase == Phase.BACKWARD]
    assert forward == ["", *(f"blocks.{n}" for n in range(8))]
    assert backward == [f"blocks.{n}" for n in range(7, -1, -1)]
    scatters = [c for c in graph.collectives if c.kind == CollectiveKind.REDUCE_SCATTER]
    assert sorted(c.unit for c in scatters) == ["", *(f"blocks.{n}" for n in range(8))]
    assert {c.num_ctas for c in graph.collectives} == {24}
    block = next(c for c in gathers if c.unit == "blocks.3")
    assert (block.numel, block.num_bytes, block.dtype) == (243277824, 486555648, "bf16")
    assert {(c.dtype, c.num_bytes) for c in scatters if c.unit} == {("fp32", 973111296)}
    rows = collective_rows(graph)
    assert len(rows) == len(graph.collectives) == 26
    gemm = [row.beside["gemm"][1] for row in rows if "gemm" in row.beside and row.beside["gemm"][0] > 300]
    assert 1.2 < np.median(gemm) < 1.6  # GEMMs are known to last 1.3-1.5 times longer beside a collective


def test_ddp_collectives_are_buckets_in_order() -> None:
    graph = build_graph(TraceSet.open(TRACES / "ddp-nvlink-default").load(1), 0)
    assert graph.wrapper == "ddp"
    assert [c.unit for c in graph.collectives] == [f"bucket.{n}" for n in range(42)]
    assert {c.phase for c in graph.collectives} == {Phase.BACKWARD}


def test_edges_point_forward_and_agree_with_the_recording(job) -> None:
    _, _, ranks = job
    for graph in ranks[0]:
        source, target = graph.edges[:, 0], graph.edges[:, 1]
        live = graph.edge_provenance != Provenance.PRUNED
        ops = graph.ops
        assert (source < target)[live].all()
        assert (ops.end_ns[source] <= ops.start_ns[target] + 1000)[live].all()
        assert set(graph.edge_kind) == {EdgeKind.STREAM, EdgeKind.EVENT}
        comm = np.flatnonzero(ops.kind == OpKind.COLLECTIVE)
        held = {int(s) for s in source[live & (graph.edge_kind == EdgeKind.EVENT)]}
        assert len(set(comm.tolist()) & held) >= len(comm) - 1, "a collective that nothing waits for"


def test_a_gather_waits_for_an_earlier_copy_out() -> None:
    graph = build_graph(TraceSet.open(TRACES / "fsdp2-nvlink-default").load(0), 1)
    ops, units = graph.ops, graph.units
    copy_out = np.array(["split_with_sizes_copy_out" in n for n in graph.names])[ops.name]
    found = {}
    for source, target in graph.edges[graph.edge_kind == EdgeKind.EVENT]:
        if copy_out[source] and ops.stream[target] != graph.compute_stream and ops.unit[target] >= 0:
            found[units[ops.unit[target]], Phase(ops.phase[target])] = units[ops.unit[source]]
    assert found["blocks.4", Phase.FORWARD] == "blocks.2"
    assert found["blocks.4", Phase.BACKWARD] == "blocks.5"
    assert found["blocks.7", Phase.BACKWARD] == "blocks.7"


def test_alone_is_never_longer_than_recorded(job) -> None:
    _, _, ranks = job
    for steps in ranks:
        for graph in steps:
            assert (graph.ops.alone_ns <= graph.ops.duration_ns).all()
            assert (graph.ops.alone_ns >= 0).all()


def test_replay_with_lags_of_the_other_step_gives_the_step_back(job) -> None:
    name, traces, ranks = job
    offsets = [traces.alignment.offset_ns[rank] for rank in traces.ranks]
    for source, judged in ((0, 1), (1, 0)):
        lags = [learn(steps[source]) for steps in ranks]
        together = replay_ranks([steps[judged] for steps in ranks], lags, offsets)
        for steps, lag, times in zip(ranks, lags, together, strict=True):
            for error in (judge(steps[judged], replay(steps[judged], lag)), judge(steps[judged], times)):
                assert error.step_time < 0.03, name
                assert error.kernel_end < 0.01, name


def test_replay_of_the_step_learnt_on_gives_that_step(job) -> None:
    """Not the identical times everywhere: who is held by whom is decided by the usual case of its kind."""
    name, _, ranks = job
    graph = ranks[0][1]
    error = judge(graph, replay(graph, learn(graph)))
    assert error.step_time < 0.001
    assert error.exposed_comm < 0.002, name
    assert error.kernel_end < 0.0005


def test_replay_holds_a_copy_while_a_gemm_fills_the_gpu() -> None:
    """Longer GEMMs let go of waiting copies later, by as much; nothing in the lags says when they end."""
    graph = build_graph(TraceSet.open(TRACES / "fsdp2-nvlink-default").load(0), 1)
    ops, lags = graph.ops, learn(graph)
    aside = (ops.stream != graph.compute_stream) & (ops.kind == OpKind.COMPUTE)
    gemm = (ops.stream == graph.compute_stream) & (ops.kernel_class == KernelClass.GEMM)
    pairs = [
        (int(copy), int(holder))
        for copy in np.flatnonzero(aside)
        for holder in np.flatnonzero(gemm & (ops.start_ns < ops.start_ns[copy] - 300_000))
        if 0 < ops.end_ns[holder] - ops.start_ns[copy] < 300_000
    ]
    assert len(pairs) > 10
    copy, holder = pairs[0]
    end = ops.end_ns.copy()
    end[holder] += 1_000_000
    later = replay(replace(graph, ops=replace(ops, end_ns=end)), lags)
    assert 900_000 < later.start_ns[copy] - ops.start_ns[copy] < 1_100_000


def test_a_longer_kernel_makes_the_replayed_step_longer() -> None:
    graph = build_graph(TraceSet.open(TRACES / "fsdp2-nvlink-default").load(0), 1)
    lags = learn(graph)
    row = int(
        np.flatnonzero((graph.ops.stream == graph.compute_stream) & (graph.ops.kind == OpKind.COMPUTE))[200]
    )
    end = graph.ops.end_ns.copy()
    end[row] += 5_000_000
    longer = replay(replace(graph, ops=replace(graph.ops, end_ns=end)), lags)
    grown = int(longer.end_ns.max() - graph.ops.end_ns.max())
    assert 4_000_000 < grown < 5_100_000


def test_ranks_agree_on_their_collectives(job) -> None:
    _, traces, ranks = job
    alignment = traces.alignment
    assert len(alignment.collectives) == sum(len(graph.collectives) for graph in ranks[0])
    assert alignment.offset_ns[0] == 0
    assert alignment.uncertainty_ns[1] < 50_000
    for matched in alignment.collectives:
        assert (matched.wait_ns >= 0).all()
        assert matched.wait_ns.min() == 0
        assert 0 <= matched.transfer_ns <= (matched.end_ns - matched.start_ns).max()
