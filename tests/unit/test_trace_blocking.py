"""Collectives that the CPU waited for: found in the recording, priced as stock, and a setting that can be turned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_up_graph import MAIN, MadeUpOp, made_up_graph

from kareus.model.cost import CostModel
from kareus.model.simulate import simulate
from kareus.model.span_cost import evaluate
from kareus.model.span_work import SpanConfigs, span_work
from kareus.plan.knobs import Knobs
from kareus.plan.planner import Goal, make_plan
from kareus.schedule import CollectiveKey, Decision, Fingerprint, LaunchPoint, Schedule
from kareus.trace.blocking import blocking_collectives
from kareus.trace.spans import find_spans
from kareus.trace.types import CollectiveKind, CollectiveOp, KernelClass, OpKind, Phase, StepGraph

COST = CostModel.assumed("cpu", 0).with_values({"all_gather.gb_per_s": 0.1, "power_limit_w": 5000.0})
KEY = CollectiveKey(kind="all_gather", unit="blocks.1", phase="forward")
START = LaunchPoint(module="blocks.0", phase="forward", side="before")
GATHER_US = 10_000.0  # 2 MB over two ranks at 0.1 GB/s


def step(*, gpu: str = "cpu", beside: bool = False, others: int = 4) -> StepGraph:
    """Compute ops of 4 ms, and a gather issued after the first that only the last one needs.

    `beside`: compute went on while it ran; otherwise the op behind it started when it had ended.
    """
    ops, now = [], 0.0
    for i in range(others):
        ops.append(compute(now, now + 4000.0, unit=1 if i == others - 1 else 0))
        now += 4000.0 + (GATHER_US if i == 0 and not beside else 0.0)
    gather = MadeUpOp(
        start_us=4000.0, end_us=4000.0 + GATHER_US, stream=20, kind=OpKind.COLLECTIVE,
        kernel_class=KernelClass.COMMUNICATION, collective=0,
    )  # fmt: skip
    member = CollectiveOp(
        kind=CollectiveKind.ALL_GATHER, num_bytes=2_000_000, group=(0, 1), group_name="0", unit="blocks.1",
        phase=Phase.FORWARD,
    )  # fmt: skip
    edges = [(i, i + 1) for i in range(others - 1)] + [(others, others - 1)]
    graph = made_up_graph(
        [*ops, gather], edges, [member], rank=0, world_size=2, units=("blocks.0", "blocks.1")
    )
    return replace(graph, gpu=gpu)


def compute(start_us: float, end_us: float, *, unit: int) -> MadeUpOp:
    return MadeUpOp(
        start_us=start_us, end_us=end_us, stream=MAIN, kind=OpKind.COMPUTE, kernel_class=KernelClass.GEMM,
        unit=unit,
    )  # fmt: skip


def launched() -> Schedule:
    job = Fingerprint(wrapper="fsdp2", world_size=2, units=())
    return Schedule(fingerprint=job, decisions=(Decision(collective=KEY, launch=START),))


def test_a_gather_with_nothing_beside_it_blocks_what_follows():
    graph = step()
    ((gather, held),) = blocking_collectives(graph).items()
    assert graph.ops.kind[gather] == OpKind.COLLECTIVE
    assert graph.ops.start_ns[held] == graph.ops.end_ns[gather]
    assert [c.blocks for span in find_spans(graph) for c in span.collectives] == [True]


@pytest.mark.parametrize(
    "graph", [step(beside=True), step(gpu="NVIDIA H200"), replace(step(), wrapper="ddp")]
)
def test_elsewhere_nothing_blocks(graph):
    assert blocking_collectives(graph) == {}
    assert not any(c.blocks for span in find_spans(graph) for c in span.collectives)


def test_the_simulator_waits_in_stock_and_goes_on_under_a_launch_point():
    graph = step()
    stock = simulate([graph], None, COST)
    assert stock.time_us == pytest.approx(graph.duration_ns / 1e3, rel=0.01)
    ahead = simulate([graph], launched(), COST)
    # 12 ms of compute hide all of the gather; beside it they run a little slower
    assert 4 * 4000.0 <= ahead.time_us < 4 * 4000.0 * 1.1


def test_a_slower_link_makes_stock_later_by_as_much():
    graph = step()
    slow = COST.with_values({"all_gather.gb_per_s": 0.05})
    later = simulate([graph], None, slow).time_us - simulate([graph], None, COST).time_us
    assert later == pytest.approx(GATHER_US, rel=0.02)


def test_span_prices_agree_with_the_simulator():
    graph = step()
    span = find_spans(graph)[0]
    (member,) = span.collectives
    assert (member.stock, member.required_at) == (1, 3)
    positions = np.array([[member.stock], [0]])
    costs = evaluate(
        span_work(graph, span),
        SpanConfigs(
            num_ctas=np.full((2, 1), COST.coefficients.default_ctas),
            position=positions,
            serialise=np.zeros(2, bool),
            sm_clock_mhz=np.full(2, COST["reference_clock_mhz"]),
        ),
        COST,
    )
    last_us = 4000.0  # the op that needs the gather is a span of its own
    for found, schedule in zip(costs.time_us, (None, launched()), strict=True):
        assert found + last_us == pytest.approx(simulate([graph], schedule, COST).time_us, rel=0.01)


def test_the_plan_lets_the_gather_go_on_beside_compute():
    plan = make_plan(step(), COST, Knobs(cta_budgets=False), Goal())
    assert [(d.collective, d.launch) for d in plan.schedule.decisions] == [(KEY, START)]
    assert plan.simulation.time_us < 0.7 * plan.stock_simulation.time_us
    assert abs(plan.composition_error[0]) < 0.01
