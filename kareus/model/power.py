"""The power limit as a shared resource: clocks, time and energy are outcomes of a step's power balance.

Where clocks are left alone, the hardware runs the highest clock at which power, averaged over its window,
stays within the board limit. A step about as long as the window (h200: 80-100 ms measured) has one
budget: quiet phases bank headroom for busy ones, so the step is treated as running at one clock. The
average over the whole step is what `governed` balances.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.model.cost import CostModel
from kareus.trace.types import F64


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
    power_limit_w: float,
) -> Governed:
    """Settle each setting at the highest clock whose average power the limit allows.

    Between two clocks of the grid, time and energy are interpolated linearly.

    Args:
        clocks_mhz: ascending, float[c]. time_us, dynamic_j: at each clock, float[n, c].
        static_power_w: paid all the time. power_limit_w: limit on the average; 0 or less is no limit.

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
    limit = power_limit_w if power_limit_w > 0 else np.inf
    excess = (
        dynamic_j + (static_power_w - min(limit, 1e12)) * time_us * 1e-6
    )  # linear in both, zero at the limit
    rows = np.arange(len(time_us))
    fits = excess <= 0
    top = len(clocks_mhz) - 1 - np.argmax(fits[:, ::-1], axis=1)  # highest clock that fits
    none = ~fits.any(axis=1)
    low = np.where(none, 0, top)
    high = np.minimum(low + 1, len(clocks_mhz) - 1)
    span = excess[rows, high] - excess[rows, low]
    inside = (high > low) & ~none & (span > 0)
    share = np.where(inside, -excess[rows, low] / np.where(span > 0, span, 1.0), 0.0)

    def between(values: F64) -> F64:
        return np.asarray(values[rows, low] + share * (values[rows, high] - values[rows, low]))

    time, dynamic = between(time_us), between(dynamic_j)
    clock = clocks_mhz[low] + share * (clocks_mhz[high] - clocks_mhz[low])
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
