"""Rules that pick one point of a time-energy frontier.

A point is whatever has a time and an energy for the same work: a step, an epoch, a whole job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.errors import InfeasibleError, UsageError

JOULES_PER_KWH = 3.6e6
_LEAST, _MOST = 1e-12, 1e15


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One way to do a unit of work: seconds, joules, and a label for the caller."""

    label: str
    time_s: float
    energy_j: float

    @property
    def power_w(self) -> float:
        """Average power."""
        return self.energy_j / self.time_s


def plausible(figure: float) -> bool:
    """Whether a time (s), energy (J) or power (W) can be one; far beyond, sums and ratios overflow."""
    return _LEAST <= figure <= _MOST


def check_points(points: Sequence[Point]) -> None:
    """Refuse an empty frontier and figures that are not positive or not plausible.

    Raises:
        UsageError: naming the first bad point.
    """
    if not points:
        raise UsageError("expected at least one point to choose from, found none")
    for point in points:
        if not (plausible(point.time_s) and plausible(point.energy_j)):
            raise UsageError(
                f"point {point.label!r}: expected a positive, plausible time and energy, "
                f"found {point.time_s} s and {point.energy_j} J"
            )


def pareto(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points no other one beats, fastest first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.time_s, p.energy_j)):
        if not kept or point.energy_j < kept[-1].energy_j:
            kept.append(point)
    return tuple(kept)


def within_slowdown(points: Sequence[Point], percent: float, reference_time_s: float | None = None) -> Point:
    """Least energy at most `percent` slower than a reference (the fastest point where none is given)."""
    check_points(points)
    reference = min(p.time_s for p in points) if reference_time_s is None else reference_time_s
    return deadline(points, reference * (1 + percent / 100))


def deadline(points: Sequence[Point], time_s: float) -> Point:
    """Least energy that ends by a deadline.

    Raises:
        InfeasibleError: every point is later; names the least possible.
    """
    allowed = [p for p in points if p.time_s <= time_s * (1 + 1e-12)]
    if not allowed:
        check_points(points)
        least = min(p.time_s for p in points)
        raise InfeasibleError(f"no point ends within {time_s:.6g} s; the fastest takes {least:.6g} s")
    return min(allowed, key=lambda p: (p.energy_j, p.time_s))


def energy_budget(points: Sequence[Point], energy_j: float) -> Point:
    """Least time within an energy budget.

    Raises:
        InfeasibleError: every point needs more; names the least possible.
    """
    return _fastest(points, lambda p: p.energy_j, energy_j, "J")


def power_cap(points: Sequence[Point], power_w: float) -> Point:
    """Least time at an average power of at most a cap.

    Raises:
        InfeasibleError: every point draws more; names the least possible.
    """
    return _fastest(points, lambda p: p.power_w, power_w, "W on average")


def energy_delay(points: Sequence[Point], exponent: float = 1.0) -> Point:
    """Least energy x time^exponent: 1 is the energy-delay product, 2 weighs time more."""
    check_points(points)
    return min(points, key=lambda p: math.log(p.energy_j) + exponent * math.log(p.time_s))


def carbon(points: Sequence[Point], intensity_g_per_kwh: float, grams_per_hour: float = 0.0) -> Point:
    """Least grams of CO2 equivalent, with a price of time (embodied carbon, or patience) in grams an hour."""
    return _priced(points, intensity_g_per_kwh, grams_per_hour)


def money(points: Sequence[Point], price_per_kwh: float, price_per_hour: float) -> Point:
    """Least money: electricity and the hourly price of the machines."""
    return _priced(points, price_per_kwh, price_per_hour)


def cluster_power_cap(
    jobs: Sequence[Sequence[Point]],
    cap_w: float,
    *,
    gpus: Sequence[int] | None = None,
    resolution: int = 2000,
) -> tuple[Point, ...]:
    """One point for each job so that average power over the cluster stays under a cap.

    Minimises the sum over jobs of GPUs x slowdown against the job's own fastest point, by a dynamic
    programme over power in steps of `cap_w / resolution`, powers rounded up, so the cap always holds.

    Args:
        jobs: points of each job; energy is that of one GPU. cap_w: for all GPUs together.
        gpus: GPUs of each job, one each where left out. resolution: steps of power.

    Raises:
        InfeasibleError: even the least power of every job is too much.
    """
    counts = [1] * len(jobs) if gpus is None else list(gpus)
    if len(counts) != len(jobs) or any(c < 1 for c in counts) or not cap_w > 0:
        raise UsageError(
            f"expected a GPU count of at least 1 for each of {len(jobs)} jobs and a cap above 0 W"
        )
    for points in jobs:
        check_points(points)
    unit = cap_w / resolution
    least = sum(c * min(p.power_w for p in points) for c, points in zip(counts, jobs, strict=True))
    best = np.full(resolution + 1, np.inf)
    best[0] = 0.0
    picks = []
    for count, points in zip(counts, jobs, strict=True):
        fastest = min(p.time_s for p in points)
        after, pick = np.full(resolution + 1, np.inf), np.full(resolution + 1, -1)
        for i, point in enumerate(points):
            steps = math.ceil(count * point.power_w / unit - 1e-9)
            if steps > resolution:
                continue
            reached = np.full(resolution + 1, np.inf)
            reached[steps:] = best[: resolution + 1 - steps] + count * (point.time_s / fastest - 1)
            better = reached < after
            after[better], pick[better] = reached[better], i
        best = after
        picks.append(pick)
    if not np.isfinite(best).any():
        raise InfeasibleError(
            f"no choice stays under {cap_w:.6g} W; the least the jobs can draw is {least:.6g} W"
        )
    at = int(np.argmin(best))
    chosen: list[Point] = []
    for count, points, pick in zip(counts[::-1], jobs[::-1], picks[::-1], strict=True):
        point = points[int(pick[at])]
        chosen.append(point)
        at -= math.ceil(count * point.power_w / unit - 1e-9)
    return tuple(chosen[::-1])


def _fastest(points: Sequence[Point], figure: Callable[[Point], float], limit: float, unit: str) -> Point:
    check_points(points)
    allowed = [p for p in points if figure(p) <= limit * (1 + 1e-12)]
    if not allowed:
        least = min(figure(p) for p in points)
        raise InfeasibleError(
            f"no point stays within {limit:.6g} {unit}; the least possible is {least:.6g} {unit}"
        )
    return min(allowed, key=lambda p: (p.time_s, p.energy_j))


def _priced(points: Sequence[Point], per_kwh: float, per_hour: float) -> Point:
    check_points(points)
    if min(per_kwh, per_hour) < 0:
        raise UsageError(f"expected prices of at least 0, found {per_kwh} per kWh and {per_hour} per hour")
    return min(
        points, key=lambda p: (p.energy_j / JOULES_PER_KWH * per_kwh + p.time_s / 3600 * per_hour, p.time_s)
    )
