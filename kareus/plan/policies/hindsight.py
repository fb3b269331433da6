"""What nobody can beat on a recorded series: a lower bound on the footprint of a job with a deadline.

Whoever knew the whole series could run any point at any moment, and pause for nothing. The least footprint of
such a job is a linear programme with one constraint that couples the intervals, the work to be done; the dual
price of a unit of work bounds it from below, whatever the price. `chase` is judged against this figure, and
where even it saves little, the table of points is to blame and not the policy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kareus.errors import InfeasibleError, UsageError
from kareus.plan.policies.choose import JOULES_PER_KWH, Point, check_points
from kareus.plan.policies.series import Series

_HALVINGS = 80

Floats = NDArray[np.float64]


def least_footprint(
    points: Sequence[Point], series: Series, start_s: float, work: float, deadline_s: float
) -> float:
    """Return a footprint that no policy can stay below.

    Args:
        points: ways to do one unit of work. series: recorded intensities or prices.
        start_s: seconds since 1970. work: units. deadline_s: seconds after the start.

    Returns:
        Grams or money, in the series' unit; at most the least footprint of any plan that ends by the deadline,
        with or without swap costs.

    Raises:
        UsageError: no work. InfeasibleError: even the fastest point is too late.
    """
    check_points(points)
    if not 0 < work < math.inf:
        raise UsageError(f"expected some work, found {work}")
    fastest = min(p.time_s for p in points)
    if work * fastest > deadline_s * (1 + 1e-9):
        raise InfeasibleError(
            f"{work:g} units take at least {work * fastest:.6g} s, more than the {deadline_s:.6g} s given"
        )
    length_s, price_per_j = _intervals(series, start_s, start_s + max(deadline_s, work * fastest))
    speed = np.array([0.0, *(1 / p.time_s for p in points)])  # first: a pause
    power_w = np.array([0.0, *(p.power_w for p in points)])
    running = price_per_j[:, None] * power_w[None, :]

    def at(price: float) -> tuple[float, float]:
        """The bound at a price of one unit of work, and the work done at that price."""
        gain = running - price * speed[None, :]
        pick = gain.argmin(axis=1)
        done = float((length_s * speed[pick]).sum())
        return float((length_s * gain.min(axis=1)).sum()) + price * work, done

    # Above this price the fastest point is taken throughout.
    low, high = 0.0, float(price_per_j.max() * power_w.max() / _least_gap(speed)) + 1e-300
    best = max(at(low)[0], at(high)[0])
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        bound, done = at(middle)
        best = max(best, bound)
        low, high = (middle, high) if done < work else (low, middle)
    return best


def _intervals(series: Series, begin_s: float, end_s: float) -> tuple[Floats, Floats]:
    """Lengths in seconds of the series' intervals between two moments, and what a joule costs in each."""
    edges = [begin_s]
    while edges[-1] < end_s:
        edges.append(min(series.next_change_s(edges[-1]), end_s))
    values = [series.at(edge) / JOULES_PER_KWH for edge in edges[:-1]]
    return np.diff(edges), np.array(values)


def _least_gap(speed: Floats) -> float:
    """Least difference between two different speeds."""
    steps = np.diff(np.unique(speed))
    return float(steps.min())
