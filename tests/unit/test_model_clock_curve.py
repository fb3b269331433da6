import numpy as np
import pytest

from kareus.model.clock_curve import clock_curves, spread_clocks

CLOCKS = np.arange(900.0, 1801.0, 30.0)


def gpu(share, power_w):
    """An operation bound by the SMs for a share of its time, on a card whose voltage floor ends at 1260 MHz."""
    x = CLOCKS / CLOCKS.max()
    time_us = 1e3 * (1 - share + share / x)
    return time_us, time_us * 1e-6 * (80 + power_w * (0.6 * x + x * np.maximum(x - 0.7, 0)))


def measured(operations):
    time_us, energy_j = (np.stack(column) for column in zip(*operations, strict=True))
    picked = np.isin(CLOCKS, spread_clocks(CLOCKS))
    found = clock_curves(CLOCKS[picked], time_us[:, picked], energy_j[:, picked], CLOCKS)
    return found, time_us, energy_j


def test_five_clocks_tell_all_of_them():
    found, time_us, energy_j = measured([gpu(0.9, 400), gpu(0.5, 300), gpu(0.1, 200)])
    assert found.time_us == pytest.approx(time_us, rel=2e-3)
    assert found.energy_j == pytest.approx(energy_j, rel=5e-3)
    assert found.power_knee == pytest.approx(0.7, abs=0.02)


def test_a_cubic_power_is_recognised():
    x = CLOCKS / CLOCKS.max()
    time_us = 1e3 / x
    found, _, energy_j = measured([(time_us, time_us * (100 + 50 * x + 100 * x**3))])
    assert found.power_knee is None
    assert found.energy_j == pytest.approx(energy_j, rel=1e-6)


def test_spread_clocks_hold_both_ends():
    assert spread_clocks(CLOCKS[::-1])[[0, -1]].tolist() == [900.0, 1800.0]
    assert len(spread_clocks(CLOCKS, 7)) == 7


@pytest.mark.parametrize(
    ("clocks", "time_us"),
    [(CLOCKS[:4], np.ones((1, 4))), (CLOCKS[:5], np.zeros((1, 5))), (CLOCKS[:5], np.ones((1, 6)))],
)
def test_what_cannot_be_fitted_is_refused(clocks, time_us):
    with pytest.raises(ValueError, match="expected"):
        clock_curves(clocks, time_us, time_us, CLOCKS)
