"""DDP's bucket size: how the recorded step would go with other buckets, and when that is not known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up_graph import MAIN, MadeUpOp, made_up_graph

pytest.importorskip("ortools")

from kareus.cli.inputs import with_scheduled_buckets
from kareus.errors import InputError
from kareus.model.cost import CostModel
from kareus.model.simulate import simulate
from kareus.plan.buckets import best_buckets, regrouped
from kareus.plan.knobs import Knobs
from kareus.plan.planner import Goal, make_plan
from kareus.report.build import Context, RankInput, build_report
from kareus.report.data import Timeline
from kareus.schedule import Schedule
from kareus.trace.graph import graphs
from kareus.trace.identity import fingerprint
from kareus.trace.manifest import Gradient
from kareus.trace.ranks import TraceSet
from kareus.trace.spans import find_spans
from kareus.trace.types import CollectiveKind, CollectiveOp, KernelClass, OpKind, Phase, StepGraph

DDP_TRACE = Path(__file__).parents[2] / "traces" / "ddp-nvlink-default"
MIB = 1 << 20
COST = CostModel.assumed("cpu", 0).with_values({"all_reduce.gb_per_s": 1.0, "power_limit_w": 5000.0})
SIZES = {"a": 12 * MIB, "b": 12 * MIB, "c": 2 * MIB}  # registration order: backward goes c, b, a
COMPUTE_US = 12_000.0
REDUCES = (("c",), ("b", "a"))  # stock: closed after 1 MiB, then after 25 MiB or at the end
KNOBS = Knobs(cta_budgets=False, ddp_buckets=True)


def gradients() -> list[Gradient]:
    return [Gradient(module=name, numel=size // 4, num_bytes=size) for name, size in SIZES.items()]


def step(*, sizes: dict[str, int] = SIZES) -> StepGraph:
    """Backward of three modules, a bucket behind the first and one behind the last, then an optimizer."""
    ops = [op(i * COMPUTE_US, (i + 1) * COMPUTE_US) for i in range(3)]
    members, reduces = [], []
    for number, names in enumerate(REDUCES):
        num_bytes = sum(sizes[name] for name in names)
        start_us = (1, 3)[number] * COMPUTE_US
        took_us = num_bytes / 1e3 + COST["all_reduce.latency_us"]  # 1 GB/s, two ranks
        members.append(
            CollectiveOp(
                kind=CollectiveKind.ALL_REDUCE, num_bytes=num_bytes, numel=num_bytes // 4, dtype="fp32",
                group=(0, 1), group_name="0", unit=f"bucket.{number}", phase=Phase.BACKWARD,
            )
        )  # fmt: skip
        reduces.append(op(start_us, start_us + took_us, collective=number))
    end_us = reduces[1].end_us
    ops += [*reduces, op(end_us, end_us + 1000.0, phase=Phase.OPTIMIZER)]
    edges = [(0, 1), (1, 2), (0, 3), (2, 4), (3, 5), (4, 5), (2, 5)]
    graph = made_up_graph(ops, edges, members, rank=0, world_size=2, units=())
    modules = {0: 2, 1: 1, 2: 0}  # c, b, a
    column = np.full(len(graph.ops), -1, np.int32)
    for row in np.flatnonzero(graph.ops.phase == Phase.BACKWARD):
        if graph.ops.kind[row] == OpKind.COMPUTE:
            column[row] = modules[round(graph.ops.start_ns[row] / 1e3 / COMPUTE_US)]
    return replace(
        graph,
        gpu="cpu",
        wrapper="ddp",
        modules=("a", "b", "c"),
        ops=replace(graph.ops, module=column, unit=np.full(len(column), -1, np.int32)),
    )


def op(start_us: float, end_us: float, *, phase: Phase = Phase.BACKWARD, collective: int = -1) -> MadeUpOp:
    reduces = collective >= 0
    return MadeUpOp(
        start_us=start_us,
        end_us=end_us,
        stream=20 if reduces else MAIN,
        kind=OpKind.COLLECTIVE if reduces else OpKind.COMPUTE,
        kernel_class=KernelClass.COMMUNICATION if reduces else KernelClass.GEMM,
        phase=phase,
        collective=collective,
    )


def buckets(graph: StepGraph) -> list[tuple[str, int]]:
    return [(c.unit, c.num_bytes) for c in graph.collectives]


def test_a_bucket_for_each_module_where_the_limit_is_small():
    found = regrouped(step(), gradients(), 1.0)
    assert found is not None
    assert buckets(found) == [("bucket.0", 2 * MIB), ("bucket.1", 12 * MIB), ("bucket.2", 12 * MIB)]
    reduces = np.flatnonzero(found.ops.kind == OpKind.COLLECTIVE)
    assert found.ops.start_ns[reduces].tolist() == [12_000_000, 24_000_000, 36_000_000]
    assert [int(found.ops.collective[row]) for row in reduces] == [0, 1, 2]


@pytest.mark.parametrize("cap_mb", [1.0, 2.0, 3.0, 13.0, 14.0, 25.0, 100.0])
def test_every_gradient_is_in_one_bucket_and_the_optimizer_waits_for_all(cap_mb: float):
    graph = step()
    found = regrouped(graph, gradients(), cap_mb)
    assert found is not None
    assert sum(c.num_bytes for c in found.collectives) == sum(SIZES.values())
    assert sum(c.numel for c in found.collectives) == sum(SIZES.values()) // 4
    assert all(c.num_bytes >= cap_mb * MIB for c in found.collectives[:-1])
    assert (np.diff(found.ops.start_ns) >= 0).all()
    compute = (found.ops.kind == OpKind.COMPUTE).sum()
    assert compute == (graph.ops.kind == OpKind.COMPUTE).sum()
    last = len(found.ops) - 1
    assert found.ops.phase[last] == Phase.OPTIMIZER
    reduces = set(np.flatnonzero(found.ops.kind == OpKind.COLLECTIVE).tolist())
    assert reduces <= {int(a) for a, b in found.edges if b == last}
    assert sum(len(span.collectives) for span in find_spans(found)) == len(found.collectives)


def test_stocks_limits_give_the_recorded_step_again():
    graph = step()
    again = regrouped(graph, gradients(), 26.0)  # beyond all gradients: one bucket, at the end
    assert again is not None
    assert buckets(again) == [("bucket.0", 26 * MIB)]
    stock = simulate([graph], None, COST).time_us
    assert stock == pytest.approx(graph.duration_ns / 1e3, rel=0.02)
    assert simulate([again], None, COST).time_us > stock


def test_the_fastest_size_starts_reducing_before_backward_is_over():
    found = best_buckets(step(), gradients(), COST)
    assert found is not None
    assert [size for _, size in buckets(found.graph)] == [2 * MIB, 12 * MIB, 12 * MIB]
    assert found.time_us < found.stock_us - 0.8 * COMPUTE_US  # b travels while a is computed


@pytest.mark.parametrize(
    ("graph", "known"),
    [
        (step(), []),
        (step(), gradients()[:2]),  # sizes that do not explain the recorded buckets
        (step(sizes={**SIZES, "c": 9 * MIB}), gradients()),
        (step(), [Gradient(module=f"other.{g.module}", numel=g.numel, num_bytes=g.num_bytes) for g in gradients()]),
        (replace(step(), wrapper="fsdp2"), gradients()),
    ],
)  # fmt: skip
def test_buckets_are_left_alone_where_they_are_not_understood(graph: StepGraph, known: list[Gradient]):
    assert best_buckets(graph, known, COST) is None
    assert regrouped(graph, known, 1.0) is None


def test_the_plan_sets_the_size_only_where_the_job_asks_for_it():
    plan = make_plan(step(), COST, KNOBS, Goal(), gradients=gradients())
    assert plan.schedule.ddp_bucket_cap_mb == 1.0
    assert [k.unit for k in plan.schedule.fingerprint.collectives] == ["bucket.0", "bucket.1", "bucket.2"]
    assert plan.schedule.stock is not None
    assert plan.stock.time_us == plan.schedule.stock.time_us
    assert plan.simulation.time_us < plan.stock_simulation.time_us - 0.8 * COMPUTE_US
    assert plan.kept_stock == ""
    left = make_plan(step(), COST, replace(KNOBS, ddp_buckets=False), Goal(), gradients=gradients())
    assert left.schedule.ddp_bucket_cap_mb is None
    assert [k.unit for k in left.schedule.fingerprint.collectives] == ["bucket.0", "bucket.1"]
    assert make_plan(step(), COST, KNOBS, Goal()).schedule.ddp_bucket_cap_mb is None


def test_a_report_draws_the_buckets_that_the_schedule_sets():
    graph = step()
    plan = make_plan(graph, COST, KNOBS, Goal(), gradients=gradients())
    planned = regrouped(graph, gradients(), 1.0)
    assert planned is not None
    rank = RankInput(
        graph=graph,
        planned_graph=planned,
        stock=simulate([graph], None, COST),
        scheduled=simulate([planned], plan.schedule, COST),
    )
    view = build_report([rank], plan.schedule, Context(subject="made up", verified=False)).ranks[0]
    assert reduces_drawn(view.before) == reduces_drawn(view.stock) == len(REDUCES)
    assert reduces_drawn(view.after) == len(SIZES)


def reduces_drawn(timeline: Timeline) -> int:
    return sum(part.kind.is_communication for track in timeline.tracks for part in track.slices)


def test_simulate_and_report_refuse_buckets_that_the_recording_does_not_explain(tmp_path: Path):
    traces = TraceSet.open(DDP_TRACE)
    graph = graphs(traces.load(0))[-1]
    schedule = Schedule(fingerprint=fingerprint(graph), ddp_bucket_cap_mb=2.0)
    assert with_scheduled_buckets(graph, Schedule(fingerprint=fingerprint(graph)), traces) is graph
    with pytest.raises(InputError, match=r"DDP buckets of 2 MB, but .*record again"):
        with_scheduled_buckets(graph, schedule, traces)
