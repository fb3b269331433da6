"""Chase: follow the carbon intensity (or price) of electricity with the choice of the frontier point.

At the start of each interval the next intensity is forecast and the point of least cost is taken; energy is
worth more when it is dirty or dear, so those intervals run slower (Yang et al., 2023; branch `chase` of
Zeus). Changing the point is a swap of schedules between two steps: `session.detach()`, then `kareus.attach` with
the other one, on all ranks (examples/README.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kareus.errors import InfeasibleError, UsageError
from kareus.plan.policies.choose import JOULES_PER_KWH, Point, check_points, pareto
from kareus.plan.policies.series import Series, forecast

Decide = Callable[[float, float, float], Point]  # (intensity foreseen, work left, seconds since start)
Forecaster = Callable[[Series, float], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChaseCost:
    """Chase's cost of work: `eta * energy * intensity + (1 - eta) * max_power * max_intensity * time`.

    Attributes:
        max_power_w: highest power of one GPU. max_intensity: of the series, the scale of the time term.
        eta: 1 is carbon only, 0 time only. world_size: GPUs whose energy the points count.
    """

    max_power_w: float
    max_intensity: float
    eta: float = 0.24
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1 or self.world_size < 1 or not min(self.max_power_w, self.max_intensity) > 0:
            raise UsageError(
                "expected eta in 0..1, at least one GPU, a positive power and intensity, "
                f"found {self.eta}, {self.world_size}, {self.max_power_w} and {self.max_intensity}"
            )

    def cost(self, point: Point, intensity: float) -> float:
        """Cost of one unit of work at an intensity."""
        patience = (1 - self.eta) * self.max_power_w * self.max_intensity * self.world_size
        return self.eta * point.energy_j * intensity + patience * point.time_s

    def choose(self, points: Sequence[Point], intensity: float) -> Point:
        """Pick the point of least cost."""
        return min(points, key=lambda p: (self.cost(p, intensity), p.time_s))


@dataclass(frozen=True, kw_only=True, slots=True)
class ChaseResult:
    """What a job cost.

    Attributes:
        time_s, energy_j: of the whole job. footprint: in the series' unit, grams or money.
        bills: the same energy under each further series, by its name.
        swaps: changes of point. labels: the point of each interval.
    """

    time_s: float
    energy_j: float
    footprint: float
    swaps: int
    labels: tuple[str, ...]
    bills: Mapping[str, float] = field(default_factory=dict)


def forecast_next(series: Series, now_s: float) -> float:
    """Forecast for the interval that begins now, from the values before it."""
    return float(forecast(series, now_s - 1.0, 1)[0])


def known(series: Series, now_s: float) -> float:
    """The recorded value itself: what a perfect forecast would say."""
    return series.at(now_s)


def run_job(
    work: float,
    series: Series,
    start_s: float,
    decide: Decide,
    *,
    foresee: Forecaster = forecast_next,
    swap_s: float = 0.0,
    swap_j: float = 0.0,
    bill: Mapping[str, Series] | None = None,
) -> ChaseResult:
    """Run a job through a series, deciding anew at the start of each interval.

    Args:
        work: units of work, as the points count them. series: what is recorded.
        start_s: seconds since 1970.
        decide: `(intensity foreseen, work left, seconds since the start) -> point`.
        foresee: forecast of the interval that begins at a time.
        swap_s, swap_j: time and energy lost at each change of point.
        bill: further series to account under beside the one decided by, for instance prices beside carbon.

    Raises:
        UsageError: no work.
    """
    if not 0 < work < math.inf:
        raise UsageError(f"expected some work, found {work}")
    others = dict(bill or {})
    bills = dict.fromkeys(others, 0.0)
    now, left, energy, footprint = start_s, work, 0.0, 0.0
    labels: list[str] = []
    swaps = 0
    while left > 1e-12 * work:
        point = decide(foresee(series, now), left, now - start_s)
        end = series.next_change_s(now)
        began, spent_j = now, 0.0
        if labels and labels[-1] != point.label:
            swaps += 1
            now += swap_s
            spent_j += swap_j
        labels.append(point.label)
        done = min(left, max(end - now, 0.0) / point.time_s)
        now = now + done * point.time_s if done >= left else max(end, now)
        spent_j += done * point.energy_j
        energy += spent_j
        footprint += spent_j * series.at(began) / JOULES_PER_KWH
        for name, other in others.items():
            bills[name] += spent_j * _mean(other, began, now) / JOULES_PER_KWH
        left -= done
    return ChaseResult(
        time_s=now - start_s,
        energy_j=energy,
        footprint=footprint,
        swaps=swaps,
        labels=tuple(labels),
        bills=bills,
    )


def _mean(series: Series, begin_s: float, end_s: float) -> float:
    """Time-weighted mean of a series between two moments; its steps need not be those decided at."""
    if end_s <= begin_s:
        return series.at(begin_s)
    total, now = 0.0, begin_s
    while now < end_s:
        until = min(series.next_change_s(now), end_s)
        total += series.at(now) * (until - now)
        now = until
    return total / (end_s - begin_s)


def chase(points: Sequence[Point], cost: ChaseCost) -> Decide:
    """Decide by Chase's cost alone."""
    check_points(points)
    return lambda intensity, left, elapsed_s: cost.choose(points, intensity)


def always(point: Point) -> Decide:
    """Decide for the same point at every interval."""
    return lambda intensity, left, elapsed_s: point


def within_deadline(
    points: Sequence[Point], deadline_s: float, expected: Callable[[float], Series]
) -> Decide:
    """Decide for the least footprint that still ends by a deadline.

    The price of time is found anew at each interval: the one at which the rest of the job, run through the
    intensities expected, ends just in time (a Lagrangian of the whole rest, so slow points go to the dirty
    intervals).

    Args:
        points: of the frontier. deadline_s: after the start.
        expected: seconds since the start -> the series expected from then on, in seconds since the start.

    Raises:
        InfeasibleError: at the first decision, where even the fastest point is too late.
    """
    check_points(points)
    hull = pareto(points)

    def decide(intensity: float, left: float, elapsed_s: float) -> Point:
        room = deadline_s - elapsed_s
        if left * hull[0].time_s > room:
            if elapsed_s == 0:
                raise InfeasibleError(
                    f"{left:g} units take at least {left * hull[0].time_s:.6g} s, "
                    f"more than the {deadline_s:.6g} s given"
                )
            return hull[0]
        ahead = expected(elapsed_s)
        horizon = max(math.ceil(room / ahead.interval_s), 1)
        values = np.array(
            [intensity, *(ahead.at(elapsed_s + i * ahead.interval_s) for i in range(1, horizon))]
        )
        times = np.array([p.time_s for p in hull])
        energies = np.array([p.energy_j for p in hull])

        def at_price(price: float) -> tuple[float, int]:
            index = np.argmin(energies[None, :] * values[:, None] + price * times[None, :], axis=1)
            progress = np.cumsum(ahead.interval_s / times[index])
            slot = int(np.searchsorted(progress, left))
            if slot >= horizon:
                return math.inf, int(index[0])
            before = progress[slot - 1] if slot else 0.0
            return slot * ahead.interval_s + (left - before) * float(times[index[slot]]), int(index[0])

        low, high = 0.0, float(values.max() * energies.max() / times.min()) * 1e3
        if at_price(low)[0] <= room:
            return hull[at_price(low)[1]]
        for _ in range(60):
            middle = (low + high) / 2
            if at_price(middle)[0] <= room:
                high = middle
            else:
                low = middle
        return hull[at_price(high)[1]]

    return decide
