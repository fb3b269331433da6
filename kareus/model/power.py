"""The power limit as a shared resource: clocks, time and energy are outcomes of a step's power balance.

Where clocks are left alone, the hardware runs the highest clock at which power, averaged over its window,
stays within the board limit (h200: 80-100 ms measured). A step shorter than the window has one budget:
quiet phases bank headroom for busy ones. In a longer step a busy phase is throttled although the whole
step stays under the limit. `governed` balances one stretch, `governed_phases` a step of several.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.model.cost import CostModel
from kareus.trace.types import F64

NO_LIMIT_W = 1e9
BISECTIONS = 24
LEAST_OWN = 1e-3  # below it a phase cannot be told from its step, and the bisection could not either


@dataclass(frozen=True, kw_only=True, slots=True)
class Governed:
    """Outcome of the power balance for n settings, float[n] each.

    Attributes:
        sm_clock_mhz: the clock the hardware settles at. time_us: duration at that clock.
        dynamic_j, energy_j: dynamic and total energy. average_power_w: total energy over time.
        capped: the limit lowered the clock, bool[n].
        over_limit: even the lowest clock draws more than the limit, bool[n].
    """

    sm_clock_mhz: F64
    time_us: F64
    dynamic_j: F64
    energy_j: F64
    average_power_w: F64
    capped: NDArray[np.bool_]
    over_limit: NDArray[np.bool_]


def governed(
    clocks_mhz: F64,
    time_us: F64,
    dynamic_j: F64,
    *,
    static_power_w: float,
    power_limit_w: float | F64,
) -> Governed:
    """Settle each setting at the highest clock whose average power the limit allows.

    Between two clocks of the grid, time is linear in 1 / clock and dynamic energy in the clock.

    Args:
        clocks_mhz: ascending, float[c]. time_us, dynamic_j: at each clock, float[n, c].
        static_power_w: paid all the time. power_limit_w: limit on the average, one or float[n]; 0 or less
            is no limit.

    Raises:
        ValueError: clocks not ascending, or shapes that do not belong together.
    """
    if (
        time_us.shape != dynamic_j.shape
        or time_us.shape[1] != len(clocks_mhz)
        or np.any(np.diff(clocks_mhz) <= 0)
    ):
        raise ValueError(
            f"expected ascending clocks and [n, {len(clocks_mhz)}] times and energies, found clocks "
            f"{clocks_mhz.tolist()} with {time_us.shape} and {dynamic_j.shape}"
        )
    limit = np.where(np.asarray(power_limit_w) > 0, power_limit_w, NO_LIMIT_W)
    # Energy beyond the limit, J: what a clock may not have more than none of.
    over_w = np.broadcast_to((static_power_w - limit) * 1e-6, time_us.shape[:1])
    excess = dynamic_j + over_w[:, None] * time_us
    rows = np.arange(len(time_us))
    fits = excess <= 0
    none = ~fits.any(axis=1)
    low = np.where(none, 0, len(clocks_mhz) - 1 - np.argmax(fits[:, ::-1], axis=1))
    high = np.minimum(low + 1, len(clocks_mhz) - 1)
    slow, fast = clocks_mhz[low], clocks_mhz[high]
    more_us = time_us[rows, high] - time_us[rows, low]
    more_j = dynamic_j[rows, high] - dynamic_j[rows, low]
    # excess(share) = 0 with clock = slow + share (fast - slow) is a quadratic in the share.
    square = more_j * (fast - slow)
    linear = excess[rows, low] * (fast - slow) + more_j * slow + over_w * fast * more_us
    constant = excess[rows, low] * slow
    root = linear + np.sqrt(np.maximum(linear**2 - 4 * square * constant, 0.0))
    inside = (high > low) & ~none & (root > 0)
    share = np.where(inside, np.clip(-2 * constant / np.where(inside, root, 1.0), 0.0, 1.0), 0.0)
    clock = slow + share * (fast - slow)
    time = time_us[rows, low] + share * fast / clock * more_us
    dynamic = dynamic_j[rows, low] + share * more_j
    energy = dynamic + static_power_w * time * 1e-6
    return Governed(
        sm_clock_mhz=clock,
        time_us=time,
        dynamic_j=dynamic,
        energy_j=energy,
        average_power_w=energy / np.maximum(time, 1e-9) * 1e6,
        capped=clock < clocks_mhz[-1],
        over_limit=np.asarray(none),
    )


def governed_phases(
    clocks_mhz: F64,
    time_us: F64,
    dynamic_j: F64,
    *,
    static_power_w: float,
    power_limit_w: float,
    window_us: float,
) -> Governed:
    """Settle steps of several phases, repeated for ever, under a limit that acts on a running average.

    The average over the window still shows a phase's own power, the less the shorter the step: by the gain
    of a low pass of that window at the step's period. Each phase runs the highest clock that keeps this
    average within the limit.

    Args:
        clocks_mhz: ascending, float[c]. time_us, dynamic_j: of s phases at each clock, float[n, s, c].
        static_power_w, power_limit_w: see `governed`. window_us: of the average; 0 is instantaneous.

    Returns:
        Whole steps; `sm_clock_mhz` is the mean over time.
    """
    n, phases, count = time_us.shape
    if power_limit_w <= 0:
        power_limit_w = NO_LIMIT_W
    flat_time, flat_dynamic = time_us.reshape(n * phases, count), dynamic_j.reshape(n * phases, count)
    period_us = time_us[:, :, -1].sum(axis=1)
    own = np.maximum(1 / np.sqrt(1 + (np.pi * window_us / np.maximum(period_us, 1e-9)) ** 2), LEAST_OWN)

    def settle(mean_w: F64) -> tuple[Governed, F64, F64]:
        allowed = np.maximum((power_limit_w - (1 - own) * mean_w) / own, 1.0)
        found = governed(
            clocks_mhz,
            flat_time,
            flat_dynamic,
            static_power_w=static_power_w,
            power_limit_w=np.repeat(allowed, phases),
        )
        time = found.time_us.reshape(n, phases).sum(axis=1)
        energy = found.energy_j.reshape(n, phases).sum(axis=1)
        return found, time, energy

    # A higher mean leaves each phase less, so there is one mean that agrees with itself.
    low, high = np.full(n, static_power_w), np.full(n, power_limit_w)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        _, time, energy = settle(middle)
        above = energy / np.maximum(time, 1e-9) * 1e6 > middle
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    found, time, energy = settle((low + high) / 2)
    own_time = found.time_us.reshape(n, phases)
    clock = (found.sm_clock_mhz.reshape(n, phases) * own_time).sum(axis=1) / np.maximum(time, 1e-9)
    return Governed(
        sm_clock_mhz=clock,
        time_us=time,
        dynamic_j=found.dynamic_j.reshape(n, phases).sum(axis=1),
        energy_j=energy,
        average_power_w=energy / np.maximum(time, 1e-9) * 1e6,
        capped=np.asarray(found.capped.reshape(n, phases).any(axis=1)),
        over_limit=np.asarray(found.over_limit.reshape(n, phases).all(axis=1)),
    )


def governed_clock(cost: CostModel, clocks_mhz: F64, time_us: F64, dynamic_j: F64) -> float:
    """Clock one step settles at under the model's limit; see `governed`.

    Args:
        cost: the model. clocks_mhz, time_us, dynamic_j: the step at each clock, float[c].
    """
    outcome = governed(
        clocks_mhz,
        np.asarray(time_us, float)[None, :],
        np.asarray(dynamic_j, float)[None, :],
        static_power_w=cost["static_power_w"],
        power_limit_w=cost["power_limit_w"],
    )
    return float(outcome.sm_clock_mhz[0])


def clock_grid(cost: CostModel, count: int = 6) -> F64:
    """Clocks over the range a power limit moves in, from 45 % of the highest clock upwards, float[count]."""
    top = cost["max_clock_mhz"]
    return np.linspace(max(cost["min_clock_mhz"], 0.45 * top), top, count)
