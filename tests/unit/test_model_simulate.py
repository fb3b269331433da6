import numpy as np
import pytest
from made_up_graph import MAIN, MadeUpOp, made_up_graph

from kareus.errors import InputError
from kareus.model.cost import CostModel
from kareus.model.layout import layout
from kareus.model.play import play
from kareus.model.simulate import simulate
from kareus.model.span_cost import evaluate
from kareus.model.span_work import SpanConfigs, SpanWork
from kareus.schedule import ClockRegion, CollectiveKey, Decision, Fingerprint, Path, Schedule
from kareus.trace.types import CollectiveKind, CollectiveOp, KernelClass, OpKind, Phase, StepGraph

NO_LIMIT = CostModel.assumed("NVIDIA H200", 132).with_values({"power_limit_w": 5000.0})
SIDE = 22


def step(
    compute_us=(400.0, 400.0, 400.0, 400.0),
    gather_start_us: float = 0.0,
    consumer: int = 3,
    rank: int = 0,
    delay_us: float = 0.0,
    num_bytes: int = 200_000_000,
    edges=(),
) -> StepGraph:
    """GEMMs back to back, and one all-gather on another stream that the GEMM `consumer` waits for."""
    starts = delay_us + np.concatenate([[0], np.cumsum(compute_us)[:-1]])
    ops = [
        MadeUpOp(start_us=s, end_us=s + d, stream=MAIN, kind=OpKind.COMPUTE, kernel_class=KernelClass.GEMM)
        for s, d in zip(starts, compute_us, strict=True)
    ]
    begin = delay_us + gather_start_us
    gather = MadeUpOp(
        start_us=begin,
        end_us=begin + 500,
        stream=SIDE,
        kind=OpKind.COLLECTIVE,
        kernel_class=KernelClass.COMMUNICATION,
        collective=0,
    )
    member = CollectiveOp(
        kind=CollectiveKind.ALL_GATHER,
        num_bytes=num_bytes,
        group=(0, 1),
        group_name="1",
        num_ctas=24,
        unit="blocks.1",
        phase=Phase.FORWARD,
    )
    waits = [(i, i + 1) for i in range(len(ops) - 1)] + [(len(ops), consumer), *edges]
    return made_up_graph([*ops, gather], waits, [member], rank=rank, world_size=2, units=("blocks.1",))


KEY = CollectiveKey(kind="all_gather", unit="blocks.1", phase="forward")


def schedule(*decisions: Decision, **changes) -> Schedule:
    job = Fingerprint(wrapper="fsdp2", world_size=2, units=())
    return Schedule(fingerprint=job, decisions=decisions, **changes)


def test_agrees_with_the_span_evaluator() -> None:
    graph = step()
    for ctas in (24, 4, 1):
        plan = schedule(Decision(collective=KEY, num_ctas=ctas))
        found = simulate([graph], plan, NO_LIMIT)
        work = SpanWork(
            alone_us=np.full(4, 400.0),
            kernel_class=np.zeros(4, np.int8),
            grid=np.full(4, 1000, np.int32),
            kind=np.zeros(1, np.int8),
            num_bytes=np.array([2e8]),
            group=np.zeros(1, np.int64),
            group_size=np.array([2]),
            phase=np.zeros(1, np.int8),
            stock_ctas=np.array([24]),
            ready=np.zeros(1, np.int64),
            required_at=np.array([3]),
            scale=np.ones(1),
            blocks_at=np.full(1, -1, np.int64),
        )
        setting = SpanConfigs(
            num_ctas=np.array([[ctas]]),
            position=np.array([[0]]),
            serialise=np.array([False]),
            sm_clock_mhz=np.array([NO_LIMIT["reference_clock_mhz"]]),
        )
        priced = evaluate(work, setting, NO_LIMIT)
        assert found.time_us == pytest.approx(priced.time_us[0], rel=1e-4)
        static_j = NO_LIMIT["static_power_w"] * found.time_us * 1e-6
        assert found.energy_j - static_j == pytest.approx(priced.energy_j[0], rel=1e-4)
        assert found.exposed_comm_us == pytest.approx(priced.exposed_us[0], abs=0.1)


def test_breakdown_adds_up_and_regions_add_up_to_the_energy() -> None:
    found = simulate([step(consumer=1, num_bytes=300_000_000)], None, NO_LIMIT)
    busy = found.compute_us + found.exposed_comm_us + found.idle_us
    assert busy == pytest.approx(found.time_us, abs=0.1)
    assert found.exposed_comm_us > 0
    assert sum(found.region_energy_j.values()) == pytest.approx(found.energy_j)
    assert found.average_power_w == pytest.approx(found.energy_j / found.time_us * 1e6)
    assert found.events == 2 * 5


def test_serialising_exposes_the_collective() -> None:
    stock = simulate([step()], None, NO_LIMIT)
    serial = simulate([step()], schedule(Decision(collective=KEY, serialise=True)), NO_LIMIT)
    assert serial.exposed_comm_us > stock.exposed_comm_us
    assert serial.time_us > stock.time_us


def test_the_copy_engine_takes_no_sms_from_compute() -> None:
    many_sms = NO_LIMIT.with_values({"gemm.sm_share": 3.0})
    stock = simulate([step()], None, many_sms)
    copies = simulate([step()], schedule(Decision(collective=KEY, path=Path.COPY_ENGINE)), many_sms)
    assert copies.time_us < stock.time_us


def test_a_collective_waits_for_the_late_rank_and_ends_for_both_at_once() -> None:
    late = step(rank=1, delay_us=300.0)
    found = simulate([step(), late], None, NO_LIMIT)
    op = [int(np.flatnonzero(g.ops.kind == OpKind.COLLECTIVE)[0]) for g in (step(), late)]
    ends = [found.op_end_ns[r][op[r]] for r in (0, 1)]
    assert ends[0] == ends[1]
    assert found.op_start_ns[1][op[1]] >= 300_000
    assert found.op_end_ns[0][op[0]] > simulate([step()], None, NO_LIMIT).op_end_ns[0][op[0]]


def test_the_power_limit_lowers_the_clock_until_the_average_fits() -> None:
    tight = NO_LIMIT.with_values({"power_limit_w": 600.0})
    free, capped = simulate([step()], None, NO_LIMIT), simulate([step()], None, tight)
    assert free.average_power_w > 600
    assert capped.average_power_w == pytest.approx(600, rel=0.01)
    assert capped.sm_clock_mhz < free.sm_clock_mhz
    assert capped.time_us > free.time_us
    assert capped.plays > 1


def test_a_clock_region_slows_what_lies_in_it() -> None:
    plain = simulate([step()], None, NO_LIMIT)
    slow = simulate([step()], schedule(clocks=(ClockRegion(sm_clock_mhz=1200),)), NO_LIMIT)
    assert slow.time_us > plain.time_us
    assert slow.energy_j < plain.energy_j + NO_LIMIT["static_power_w"] * (slow.time_us - plain.time_us) * 1e-6


def test_gathered_parameters_are_counted_while_they_live() -> None:
    assert simulate([step()], None, NO_LIMIT).peak_gathered_bytes == 200_000_000


def test_knobs_that_are_not_simulated_are_named() -> None:
    found = simulate([step()], schedule(forward_prefetch=2), NO_LIMIT)
    assert "forward prefetch" in found.notes[0]


def test_a_schedule_for_other_collectives_is_refused() -> None:
    other = CollectiveKey(kind="all_gather", unit="blocks.9", phase="forward")
    with pytest.raises(InputError, match=r"does not have.*blocks\.9"):
        simulate([step()], schedule(Decision(collective=other, num_ctas=4)), NO_LIMIT)


def test_a_circle_of_waits_is_an_error() -> None:
    graph = step(edges=[(2, 0)])
    tasks = layout(graph, None, 24)
    with pytest.raises(InputError, match="circle"):
        play([graph], [tasks], NO_LIMIT, [np.full(5, 1980.0)])


def test_no_graphs_is_an_error() -> None:
    with pytest.raises(InputError, match="nothing to simulate"):
        simulate([], None, NO_LIMIT)
