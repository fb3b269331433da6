"""The power limit: one budget inside its window, a budget of its own for each phase beyond it."""

import numpy as np
import pytest

from kareus.model.power import governed, governed_phases

CLOCKS = np.array([900.0, 1300.0, 1700.0, 1980.0])
STATIC_W, LIMIT_W = 120.0, 700.0


def phase(work_us: float, watts: float, share: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Time and dynamic energy at each clock; watts and work at the highest."""
    time_us = work_us * (1 - share + share * CLOCKS[-1] / CLOCKS)
    return time_us, watts * work_us * 1e-6 * CLOCKS / CLOCKS[-1]


def settle(phases, window_us: float):
    time_us, dynamic_j = (np.stack(column)[None] for column in zip(*phases, strict=True))
    return governed_phases(
        CLOCKS, time_us, dynamic_j, static_power_w=STATIC_W, power_limit_w=LIMIT_W, window_us=window_us
    )


def alone(time_us: np.ndarray, dynamic_j: np.ndarray):
    return governed(CLOCKS, time_us[None], dynamic_j[None], static_power_w=STATIC_W, power_limit_w=LIMIT_W)


def test_between_clocks_the_balance_is_exact_for_time_in_the_inverse_clock() -> None:
    found = alone(*phase(1000.0, 900.0))
    # 900 W x (f / F) of work over 1000 us x (F / f): 120 + 900 (f / F)^2 = 700
    clock = CLOCKS[-1] * np.sqrt(580 / 900)
    assert found.sm_clock_mhz[0] == pytest.approx(clock, rel=1e-9)
    assert found.time_us[0] == pytest.approx(1000 * CLOCKS[-1] / clock, rel=1e-9)
    assert found.average_power_w[0] == pytest.approx(LIMIT_W, rel=1e-9)
    assert found.capped[0]
    assert not found.over_limit[0]


def test_a_limit_for_each_setting() -> None:
    time_us, dynamic_j = (np.stack([a, a]) for a in phase(1000.0, 900.0))
    found = governed(
        CLOCKS, time_us, dynamic_j, static_power_w=STATIC_W, power_limit_w=np.array([0.0, LIMIT_W])
    )
    assert found.sm_clock_mhz[0] == CLOCKS[-1]  # no limit
    assert found.sm_clock_mhz[1] < CLOCKS[-1]


@pytest.mark.parametrize("window_us", [0.0, 90_000.0, 1e12])
def test_one_phase_has_the_balance_of_the_step_whatever_the_window(window_us: float) -> None:
    busy = phase(50_000.0, 900.0)
    assert settle([busy], window_us).time_us[0] == pytest.approx(alone(*busy).time_us[0], rel=1e-4)


def test_inside_the_window_quiet_phases_lend_headroom_and_beyond_it_they_do_not() -> None:
    busy, quiet = phase(1_000.0, 900.0), phase(1_000.0, 200.0, share=0.0)
    free = busy[0][-1] + quiet[0][-1]
    throttled = alone(*busy).time_us[0] + quiet[0][-1]
    assert settle([busy, quiet], 90_000.0).time_us[0] == pytest.approx(free, rel=1e-3)
    assert settle([busy, quiet], 0.0).time_us[0] == pytest.approx(throttled, rel=1e-3)
    long = [tuple(1000 * a for a in phase(1_000.0, 900.0)), tuple(1000 * a for a in quiet)]
    assert settle(long, 90_000.0).time_us[0] == pytest.approx(1000 * throttled, rel=0.03)


def test_the_mean_of_a_settled_step_is_within_the_limit() -> None:
    phases = [phase(20_000.0, 1000.0), phase(60_000.0, 850.0), phase(8_000.0, 500.0, share=0.1)]
    found = settle(phases, 90_000.0)
    assert found.average_power_w[0] <= LIMIT_W * 1.001
    assert CLOCKS[0] < found.sm_clock_mhz[0] < CLOCKS[-1]
    assert found.energy_j[0] == pytest.approx(found.dynamic_j[0] + STATIC_W * found.time_us[0] * 1e-6)


def test_no_limit_is_the_highest_clock() -> None:
    time_us, dynamic_j = (a[None, None] for a in phase(1000.0, 900.0))
    found = governed_phases(
        CLOCKS, time_us, dynamic_j, static_power_w=STATIC_W, power_limit_w=0.0, window_us=90_000.0
    )
    assert found.sm_clock_mhz[0] == CLOCKS[-1]
