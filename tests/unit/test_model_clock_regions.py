"""Clock regions of a whole recorded step: where each begins, what it locks, and what lies before the first."""

from dataclasses import replace

import numpy as np
import pytest
from plan_samples import COST, PLAIN, problem_of, recorded

from kareus.model import simulate as simulation
from kareus.model.simulate import simulate
from kareus.plan.lower import Effects, lower
from kareus.schedule import ClockRegion, Effect, Fingerprint, LaunchPoint, Schedule
from kareus.trace.types import OpKind, Phase

NO_LIMIT = COST.with_values({"power_limit_w": 0.0})
STEP = recorded()
HIGH = int(COST["max_clock_mhz"])


def schedule(*regions: ClockRegion) -> Schedule:
    return Schedule(fingerprint=Fingerprint(wrapper="fsdp2", world_size=2, units=()), clocks=regions)


def region(mhz: int, module: str, phase: str, side: str = "before") -> ClockRegion:
    return ClockRegion(start=LaunchPoint(module=module, phase=phase, side=side), sm_clock_mhz=mhz)


def asked(*regions: ClockRegion) -> np.ndarray:
    """Clock asked for at each compute op."""
    (wanted,) = simulation._locked_clocks([STEP], schedule(*regions))
    compute = (STEP.ops.stream == STEP.compute_stream) & (STEP.ops.kind != OpKind.COLLECTIVE)
    return wanted[compute]


PHASE = STEP.ops.phase[(STEP.ops.stream == STEP.compute_stream) & (STEP.ops.kind != OpKind.COLLECTIVE)]


def test_after_the_roots_backward_is_the_optimizer():
    wanted = asked(region(1900, "blocks.0", "forward"), region(1200, "", "backward", "after"))
    assert set(wanted[PHASE == Phase.OPTIMIZER]) == {1200}
    assert set(wanted[PHASE == Phase.BACKWARD]) == {1900}


def test_before_the_first_region_the_clock_of_the_last_one_goes_on():
    wanted = asked(region(1900, "blocks.3", "forward"), region(1200, "blocks.3", "backward"))
    first = int(np.flatnonzero(wanted == 1900)[0])
    assert first > 0
    assert set(wanted[:first]) == {1200}


def test_the_clock_told_is_the_one_locked():
    free = simulate([STEP], None, NO_LIMIT)
    assert free.sm_clock_mhz == pytest.approx(COST["reference_clock_mhz"], rel=0.01)
    whole = simulate([STEP], schedule(ClockRegion(sm_clock_mhz=1200)), NO_LIMIT)
    assert whole.sm_clock_mhz == pytest.approx(1200)
    parts = simulate(
        [STEP], schedule(region(HIGH, "blocks.0", "forward"), region(1200, "blocks.7", "backward")), NO_LIMIT
    )
    assert 1200 < parts.sm_clock_mhz < HIGH


def test_a_lock_above_what_power_allows_is_not_told_as_reached():
    capped = COST.with_values({"power_limit_w": 500.0})
    free = simulate([STEP], None, capped)
    locked = simulate([STEP], schedule(ClockRegion(sm_clock_mhz=HIGH)), capped)
    assert free.sm_clock_mhz < HIGH
    assert locked.sm_clock_mhz == pytest.approx(free.sm_clock_mhz, rel=0.005)


def regions_of(step, low_from: int) -> list[ClockRegion]:
    """Regions of the plan whose spans run at the second level, from `low_from` on at the first."""

    def at(level: int, span: int) -> int:
        table = step.tables[step.problem.chain[span]]
        options = enumerate(table.kind.options)
        return next(i for i, o in options if o.clock == level and table.row[i] == table.stock_row)

    choices = tuple(at(0 if i >= low_from else 1, i) for i in range(len(step.spans)))
    nothing = Effect(time_us=1, energy_j=1.0, source="predicted")
    return list(lower(step, choices, Effects(stock=nothing, predicted=nothing, bound=None)).clocks)


def test_the_optimizers_region_begins_after_the_root_and_a_span_in_no_phase_begins_none():
    step = problem_of(knobs=replace(PLAIN, clocks="advise"))
    last = len(step.spans) - 1
    assert step.spans[last].phase == Phase.OPTIMIZER
    first, second = regions_of(step, last)
    assert first.start == LaunchPoint(module=step.spans[0].unit, phase="forward", side="before")
    assert second.start == LaunchPoint(module="", phase="backward", side="after")
    nowhere = replace(step, spans=(*step.spans[:last], replace(step.spans[last], phase=Phase.OTHER)))
    assert [r.start.phase for r in regions_of(nowhere, last) if r.start] == ["forward"]
