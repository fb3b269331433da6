"""Twente: an SM clock and a memory clock for every kernel.

A kernel wastes energy where another pair of clocks needs less energy in no more time. Locally, every kernel
keeps to its own time (strict) or to a tolerance over it (relaxed); globally only the sum of times counts, a
multiple-choice knapsack (Spaan, Chen, Varbanescu, arXiv 2601.08539). `twente_switch` charges for the
switching the publication leaves out; `remeasure` guards against having chosen noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kareus.errors import UsageError

AUTO = None  # a clock left to the GPU
_TICKS = 40_000
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelOption:
    """Time and energy of one invocation at a pair of clock targets (None: left to the GPU)."""

    mem_clock_mhz: int | None
    sm_clock_mhz: int | None
    time_s: float
    energy_j: float

    @property
    def clocks(self) -> tuple[int | None, int | None]:
        """The pair (memory, SM)."""
        return self.mem_clock_mhz, self.sm_clock_mhz


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """A kernel launched `repeat` times a step; `options[stock]` is what runs without a policy."""

    name: str
    repeat: int
    options: tuple[KernelOption, ...]
    stock: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelPlan:
    """One option for every kernel, with totals over all invocations.

    Attributes:
        choices: option index of each kernel. time_s, energy_j: of the step, switching free.
        stock_time_s, stock_energy_j: without a policy. bound_j: proven least energy under the same limit
            (0 where the rule has no limit to prove anything about).
    """

    choices: tuple[int, ...]
    time_s: float
    energy_j: float
    stock_time_s: float
    stock_energy_j: float
    bound_j: float = 0.0

    @property
    def time_change_percent(self) -> float:
        """Against stock."""
        return 100 * (self.time_s / self.stock_time_s - 1)

    @property
    def energy_change_percent(self) -> float:
        """Against stock."""
        return 100 * (self.energy_j / self.stock_energy_j - 1)


def check_kernels(kernels: Sequence[Kernel]) -> None:
    """Refuse kernels without options, a stock that is none of them, and figures that make no sense.

    Raises:
        UsageError: naming the kernel.
    """
    if not kernels:
        raise UsageError("expected at least one kernel, found none")
    for kernel in kernels:
        if kernel.repeat < 1 or not 0 <= kernel.stock < len(kernel.options):
            raise UsageError(
                f"kernel {kernel.name!r}: expected at least one launch and a stock option among "
                f"{len(kernel.options)}, found {kernel.repeat} and {kernel.stock}"
            )
        for option in kernel.options:
            if not (0 < option.time_s < math.inf and 0 < option.energy_j < math.inf):
                raise UsageError(
                    f"kernel {kernel.name!r} at {option.clocks}: expected a positive time and energy, "
                    f"found {option.time_s} s and {option.energy_j} J"
                )


def total(kernels: Sequence[Kernel], choices: Sequence[int], bound_j: float = 0.0) -> KernelPlan:
    """Return the plan made of given choices."""
    chosen = [k.options[c] for k, c in zip(kernels, choices, strict=True)]
    return KernelPlan(
        choices=tuple(choices),
        time_s=math.fsum(k.repeat * o.time_s for k, o in zip(kernels, chosen, strict=True)),
        energy_j=math.fsum(k.repeat * o.energy_j for k, o in zip(kernels, chosen, strict=True)),
        stock_time_s=math.fsum(k.repeat * k.options[k.stock].time_s for k in kernels),
        stock_energy_j=math.fsum(k.repeat * k.options[k.stock].energy_j for k in kernels),
        bound_j=bound_j,
    )


def select_local(kernels: Sequence[Kernel], tolerance: float = 0.0) -> KernelPlan:
    """Least energy for each kernel within `(1 + tolerance)` of its own stock time; 0 is strict waste.

    A negative tolerance asks for a speed-up; kernels that cannot give it run as fast as they can.
    """
    check_kernels(kernels)
    choices = []
    for kernel in kernels:
        limit = (1 + tolerance) * kernel.options[kernel.stock].time_s * (1 + 1e-12)
        allowed = [i for i, o in enumerate(kernel.options) if o.time_s <= limit]
        if not allowed:
            allowed = [min(range(len(kernel.options)), key=lambda i: kernel.options[i].time_s)]
        choices.append(min(allowed, key=lambda i: (kernel.options[i].energy_j, kernel.options[i].time_s)))
    return total(kernels, choices)


def select_global(kernels: Sequence[Kernel], tolerance: float = 0.0) -> KernelPlan:
    """Least energy with the *sum* of times within `(1 + tolerance)` of stock's; proven by a Lagrangian bound.

    A dynamic programme over time (ticks rounded up, so the limit holds), then what rounding left over is
    spent greedily.

    Raises:
        UsageError: no choice is that fast; names the least possible tolerance.
    """
    check_kernels(kernels)
    times = [k.repeat * np.array([o.time_s for o in k.options]) for k in kernels]
    energies = [k.repeat * np.array([o.energy_j for o in k.options]) for k in kernels]
    stock = math.fsum(k.repeat * k.options[k.stock].time_s for k in kernels)
    limit = (1 + tolerance) * stock * (1 + 1e-12)
    fastest = math.fsum(float(t.min()) for t in times)
    if fastest > limit:
        raise UsageError(
            f"no clocks are within {tolerance:+.4f} of stock time; "
            f"the least tolerance possible is {fastest / stock - 1:+.4f}"
        )
    bound, _ = _lagrange(times, energies, limit)
    candidates = [_dynamic(times, energies, limit)]
    as_stock = [k.stock for k in kernels]
    if math.fsum(float(t[c]) for t, c in zip(times, as_stock, strict=True)) <= limit:
        candidates.append(as_stock)
    polished = [_spend(times, energies, c, limit) for c in candidates if c]
    best = min(polished, key=lambda c: math.fsum(float(e[i]) for e, i in zip(energies, c, strict=True)))
    return total(kernels, best, bound)


def select_edp(kernels: Sequence[Kernel], *, local: bool) -> KernelPlan:
    """Least energy-delay product: of each kernel, or of the whole step.

    The whole-step product is minimised over the convex frontier of the sums, which holds a minimiser: the
    product is quasi-concave along any chord.
    """
    check_kernels(kernels)
    if local:
        return total(
            kernels,
            [
                min(range(len(k.options)), key=lambda i: k.options[i].time_s * k.options[i].energy_j)
                for k in kernels
            ],
        )
    times = [k.repeat * np.array([o.time_s for o in k.options]) for k in kernels]
    energies = [k.repeat * np.array([o.energy_j for o in k.options]) for k in kernels]
    plans = [total(kernels, c) for c in _hull_choices(times, energies)]
    return min(plans, key=lambda p: p.time_s * p.energy_j)


Measure = Callable[[Kernel, KernelOption], Sequence[tuple[float, float]]]


def remeasure(
    kernels: Sequence[Kernel], plan: KernelPlan, measure: Measure, *, tolerance: float = 0.0, z: float = 1.64
) -> tuple[KernelPlan, tuple[Kernel, ...]]:
    """Measure a plan's choices and stock again and keep only what fresh data confirm.

    The least of many noisy figures is too good to be true, so a choice goes back to stock unless its fresh
    energy saving exceeds `z` standard errors; the rest is selected again, globally, on the fresh means.

    Args:
        kernels, plan: what was searched and found. measure: fresh (time_s, energy_j) samples of an option,
            at least two. tolerance: as in `select_global`. z: 1.64 is one-sided 95 %.

    Returns:
        (the confirmed plan, with fresh totals; the kernels it refers to, with fresh figures).

    Raises:
        UsageError: fewer than two samples.
    """
    fresh = []
    for kernel, choice in zip(kernels, plan.choices, strict=True):
        stock, stock_error = _mean(kernel, kernel.options[kernel.stock], measure)
        options = [stock]
        if choice != kernel.stock:
            option, error = _mean(kernel, kernel.options[choice], measure)
            if stock.energy_j - option.energy_j > z * math.hypot(stock_error, error):
                options.append(option)
        fresh.append(replace(kernel, options=tuple(options), stock=0))
    return select_global(fresh, tolerance), tuple(fresh)


def _mean(kernel: Kernel, option: KernelOption, measure: Measure) -> tuple[KernelOption, float]:
    samples = np.array(measure(kernel, option), np.float64).reshape(-1, 2)
    if len(samples) < 2:
        raise UsageError(f"kernel {kernel.name!r}: expected at least two fresh samples, found {len(samples)}")
    mean = samples.mean(axis=0)
    error = float(samples[:, 1].std(ddof=1) / math.sqrt(len(samples)))
    return replace(option, time_s=float(mean[0]), energy_j=float(mean[1])), error


def _lagrange(times: list[Floats], energies: list[Floats], limit: float) -> tuple[float, list[int]]:
    """Best Lagrangian bound and the feasible choices met at the last price."""

    def at(price: float) -> tuple[float, float, list[int]]:
        value, used, choices = -price * limit, 0.0, []
        for t, e in zip(times, energies, strict=True):
            i = int(np.argmin(e + price * t))
            value += float(e[i] + price * t[i])
            used += float(t[i])
            choices.append(i)
        return value, used, choices

    value, used, choices = at(0.0)
    best = value
    if used <= limit:
        return best, choices
    low, high = 0.0, 1.0
    while at(high)[1] > limit and high < 1e18:
        high *= 4
    for _ in range(80):
        middle = (low + high) / 2
        value, used, _ = at(middle)
        best = max(best, value)
        low, high = (middle, high) if used > limit else (low, middle)
    value, _, choices = at(high)
    return max(best, value), choices


def _hull_choices(times: list[Floats], energies: list[Floats]) -> list[list[int]]:
    """Choices at every vertex of the convex frontier of the sums."""
    prices = {0.0}
    for t, e in zip(times, energies, strict=True):
        dt, de = t[:, None] - t[None, :], e[None, :] - e[:, None]
        slope = np.divide(de, dt, out=np.zeros_like(de), where=dt > 0)
        prices.update(slope[(dt > 0) & (de > 0)].tolist())
    grid = np.unique(np.array(sorted(prices)))
    between = np.append((grid[:-1] + grid[1:]) / 2, grid[-1] * 2 + 1.0)
    picks = [
        np.argmin(e[None, :] + between[:, None] * t[None, :], axis=1)
        for t, e in zip(times, energies, strict=True)
    ]
    return [list(map(int, row)) for row in np.unique(np.stack(picks, axis=1), axis=0)]


def _dynamic(times: list[Floats], energies: list[Floats], limit: float) -> list[int]:
    """Knapsack over time ticks, rounded up; empty where rounding leaves nothing feasible."""
    tick = limit / _TICKS
    best = np.zeros(_TICKS + 1)
    picks = []
    for t, e in zip(times, energies, strict=True):
        after, pick = np.full(_TICKS + 1, np.inf), np.zeros(_TICKS + 1, np.int32)
        kept = [i for i in range(len(t)) if not ((t <= t[i]) & (e < e[i])).any()]
        for i in kept:
            steps = math.ceil(t[i] / tick - 1e-9)
            if steps > _TICKS:
                continue
            reached = np.full(_TICKS + 1, np.inf)
            reached[steps:] = best[: _TICKS + 1 - steps] + e[i]
            better = reached < after
            after[better], pick[better] = reached[better], i
        best = after
        picks.append(pick)
    if not np.isfinite(best[_TICKS]):
        return []
    at, choices = _TICKS, []
    for t, pick in zip(times[::-1], picks[::-1], strict=True):
        choices.append(int(pick[at]))
        at -= math.ceil(t[choices[-1]] / tick - 1e-9)
    return choices[::-1]


def _spend(times: list[Floats], energies: list[Floats], choices: list[int], limit: float) -> list[int]:
    """Take single changes that save energy and still fit, the largest saving first, until none is left."""
    choices = list(choices)
    room = limit - math.fsum(float(t[c]) for t, c in zip(times, choices, strict=True))
    while True:
        saving, kernel, option = 1e-15, -1, -1
        for k, (t, e) in enumerate(zip(times, energies, strict=True)):
            gain = np.where(t - t[choices[k]] <= room, e[choices[k]] - e, -np.inf)
            i = int(np.argmax(gain))
            if gain[i] > saving * (1 + 1e-9):
                saving, kernel, option = float(gain[i]), k, i
        if kernel < 0:
            return choices
        room -= float(times[kernel][option] - times[kernel][choices[kernel]])
        choices[kernel] = option
