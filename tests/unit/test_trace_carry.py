"""Collectives that run on into what follows their span: exact across a phase change, else priced too dear."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_graph import MAIN, MadeUpOp, made_up_graph

from kareus.model.calibrate import calibrated
from kareus.model.cost import CostModel
from kareus.model.simulate import simulate
from kareus.plan.knobs import Knobs
from kareus.plan.problem import build_problem
from kareus.trace.graph import graphs
from kareus.trace.ranks import TraceSet
from kareus.trace.spans import find_spans
from kareus.trace.types import CollectiveKind, CollectiveOp, KernelClass, OpKind, Phase, StepGraph
from solver import judge

COST = CostModel.assumed("cpu", 0).with_values(
    {"all_gather.gb_per_s": 0.1, "reduce_scatter.gb_per_s": 0.1, "power_limit_w": 0.0}
)
HOSTMEM = Path(__file__).parents[2] / "traces/fsdp2-hostmem-default"
OP_US = 4000.0


def step(
    kind: CollectiveKind, *, start_us: float, us: float, needed_by: int, backward_from: int = 6
) -> StepGraph:
    """Six compute ops of 4 ms, the fourth behind a short gather, and a collective that `needed_by` waits for."""
    ops = [
        MadeUpOp(
            start_us=i * OP_US, end_us=(i + 1) * OP_US, stream=MAIN, kind=OpKind.COMPUTE,
            kernel_class=KernelClass.GEMM, unit=0, phase=Phase.BACKWARD if i >= backward_from else Phase.FORWARD,
        )
        for i in range(6)
    ]  # fmt: skip
    members, edges = [], [(i, i + 1) for i in range(5)]
    wanted = [(kind, start_us, us, needed_by)]
    if backward_from == 6:
        wanted.append((CollectiveKind.ALL_GATHER, OP_US, 1000.0, 3))
    for number, (what, begin_us, length_us, target) in enumerate(wanted):
        ops.append(
            MadeUpOp(
                start_us=begin_us, end_us=begin_us + length_us, stream=20 + number, kind=OpKind.COLLECTIVE,
                kernel_class=KernelClass.COMMUNICATION, collective=number,
            )
        )  # fmt: skip
        edges += [(int(begin_us // OP_US) - 1, 6 + number), (6 + number, target)]
        members.append(
            CollectiveOp(
                kind=what, num_bytes=round(length_us * 200), group=(0, 1), group_name=str(number), unit="blocks.0",
                phase=Phase.FORWARD,
            )
        )  # fmt: skip
    return made_up_graph(ops, edges, members, rank=0, world_size=2, units=("blocks.0",))


def sum_of_spans_us(graph: StepGraph, cost: CostModel) -> int:
    problem = build_problem(graph, cost, Knobs())
    return judge(problem.problem, problem.stock_choices).time_us


def test_a_gather_may_run_across_a_phase_change():
    graph = step(CollectiveKind.ALL_GATHER, start_us=2 * OP_US, us=2.5 * OP_US, needed_by=5, backward_from=4)
    first, last = find_spans(graph)  # cut where compute waits, not where backward starts
    assert (len(first.compute), len(last.compute)) == (5, 1)
    assert [c.required_at for c in first.collectives] == [5]
    assert not any(c.may_run_on for c in first.collectives)
    (gather,) = first.collectives  # its launch points are hooks of the phase they lie in
    assert (gather.positions, gather.points) == ((2, 4), ("", "before|blocks.0|backward"))
    played = simulate([graph], None, COST).time_us
    assert played < 6 * OP_US * 1.1  # hidden; what runs beside it is a little slower
    assert sum_of_spans_us(graph, COST) == pytest.approx(played, rel=0.001)


def test_a_phase_change_that_nothing_crosses_is_a_cut():
    graph = step(CollectiveKind.ALL_GATHER, start_us=OP_US, us=OP_US, needed_by=3, backward_from=3)
    assert [len(span.compute) for span in find_spans(graph)] == [3, 3]


@pytest.mark.parametrize("kind", [CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER])
def test_what_runs_on_into_the_next_span_is_priced_too_dear_never_too_cheap(kind):
    """A second reduce-scatter buffer or a gather two units ahead: needed one span later than it started."""
    graph = step(kind, start_us=2 * OP_US, us=2.5 * OP_US, needed_by=5)
    spans = find_spans(graph)
    late = next(c for s in spans for c in s.collectives if graph.collectives[c.row].num_bytes > 1_000_000)
    assert [c for s in spans for c in s.collectives if c.may_run_on] == [late]
    assert (late.stock, late.required_at) == (
        2,
        3,
    )  # the span's end, although the sixth op is the first to wait
    played = simulate([graph], None, COST).time_us
    assert played < 6 * OP_US * 1.1  # the simulator follows the edges: all of it is hidden
    beyond_us = 1.5 * OP_US  # of the collective lie behind the span's end
    assert played + 0.7 * beyond_us < sum_of_spans_us(graph, COST) < played + beyond_us


def test_spans_of_a_recorded_step_bound_by_its_link_add_up():
    traces = TraceSet.open(HOSTMEM)
    graph = graphs(traces.load(traces.ranks[0]))[-1]
    cost = calibrated(CostModel.assumed(graph.gpu, graph.num_sms), graph)
    played = simulate([graph], None, cost).time_us
    assert sum_of_spans_us(graph, cost) == pytest.approx(played, rel=0.01)
