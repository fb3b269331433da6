import dataclasses

import numpy as np
import pytest
from test_model_simulate import NO_LIMIT, step

from kareus.model import rates
from kareus.model.calibrate import calibrated, referred_to
from kareus.model.cost import CostModel
from kareus.model.simulate import simulate
from kareus.trace.types import OpKind

ASSUMED = CostModel.assumed("NVIDIA H200", 132)


def recorded_under(truth: CostModel):
    """A step whose recorded times come from another model than the one calibrated."""
    graph = step(num_bytes=250_000_000)
    found = simulate([graph], None, truth)
    start, end = found.op_start_ns[0], found.op_end_ns[0]
    ops = dataclasses.replace(graph.ops, start_ns=start, end_ns=end)
    return dataclasses.replace(graph, ops=ops, end_ns=int(end.max()))


def test_calibration_makes_stock_reproduce_the_recording() -> None:
    truth = NO_LIMIT.with_values({"gemm.sm_share": 1.4, "all_gather.gb_per_s": 180.0})
    graph = recorded_under(truth)
    before = simulate([graph], None, NO_LIMIT)
    after = simulate([graph], None, calibrated(NO_LIMIT, graph))
    assert abs(after.composition_error) < 0.003
    assert abs(after.composition_error) < abs(before.composition_error)


def test_a_capped_recording_settles_at_the_limit_and_its_own_time() -> None:
    graph = recorded_under(NO_LIMIT)
    cost = calibrated(ASSUMED, graph)
    found = simulate([graph], None, cost)
    assert found.average_power_w == pytest.approx(700, rel=0.01)
    assert cost["reference_clock_mhz"] < 1980
    assert abs(found.composition_error) < 0.005


def test_another_reference_clock_is_the_same_physics() -> None:
    moved = referred_to(ASSUMED, 1500.0)
    classes = np.arange(8, dtype=np.int8)
    work = np.full(8, 100.0)
    at_1500 = work * rates.clock_time(ASSUMED.coefficients, classes, 1500.0)
    for clock in (1200.0, 1500.0, 1800.0):
        before = work * rates.clock_time(ASSUMED.coefficients, classes, clock)
        after = at_1500 * rates.clock_time(moved.coefficients, classes, clock)
        assert after == pytest.approx(before)
        energy = rates.compute_energy_j(ASSUMED.coefficients, classes, work, clock)
        again = rates.compute_energy_j(moved.coefficients, classes, at_1500, clock)
        assert again == pytest.approx(energy)


def test_an_empty_step_changes_nothing() -> None:
    graph = step()
    empty = dataclasses.replace(graph, ops=graph.ops.take(np.zeros(0, int)), collectives=())
    assert calibrated(ASSUMED, empty) is ASSUMED
    assert np.count_nonzero(graph.ops.kind == OpKind.COLLECTIVE) == 1
