"""Clock per kernel when changing clocks takes time.

A step is a sequence of launches; where the clocks of two neighbours differ, a switch is paid, in time and
in the energy drawn meanwhile. For a price of time the cheapest assignment is a shortest path over
(launch, clocks), exact for the cyclic step; the price is then searched so that the step keeps its time.
Doing nothing is always a candidate, so a plan is never worse than stock.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from kareus.errors import UsageError
from kareus.plan.policies.twente import Kernel, check_kernels

_PRICES = 40
_SPREAD = 0.02  # of the price along the step, so that equal launches change one after another


@dataclass(frozen=True, kw_only=True, slots=True)
class Switching:
    """Cost of one change of clocks.

    Attributes:
        time_s: from request to effect, during which nothing runs. power_w: drawn meanwhile.
    """

    time_s: float
    power_w: float

    def __post_init__(self) -> None:
        if not (0 <= self.time_s < math.inf and 0 <= self.power_w < math.inf):
            raise UsageError(
                f"expected a switch of at least 0 s and 0 W, found {self.time_s} s, {self.power_w} W"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchPlan:
    """An option for every launch.

    Attributes:
        choices: option index of each launch, in order. switches: changes of clocks in a cyclic step.
        time_s, energy_j: simulated, switches included. stock_time_s, stock_energy_j: without a policy.
        bound_j: proven least energy within the time limit.
    """

    choices: tuple[int, ...]
    switches: int
    time_s: float
    energy_j: float
    stock_time_s: float
    stock_energy_j: float
    bound_j: float


def simulate(
    kernels: Sequence[Kernel], launches: Sequence[int], choices: Sequence[int], switching: Switching
) -> tuple[float, float, int]:
    """Play a cyclic step launch by launch; returns (seconds, joules, switches).

    Args:
        kernels: the kernels. launches: kernel index of each launch. choices: option of each launch.
        switching: what each change of clocks costs.
    """
    options = [kernels[k].options[c] for k, c in zip(launches, choices, strict=True)]
    switches = sum(options[i - 1].clocks != o.clocks for i, o in enumerate(options))
    time_s = math.fsum(o.time_s for o in options) + switches * switching.time_s
    energy = math.fsum(o.energy_j for o in options) + switches * switching.time_s * switching.power_w
    return time_s, energy, switches


def select_switching(
    kernels: Sequence[Kernel], launches: Sequence[int], switching: Switching, *, tolerance: float = 0.0
) -> SwitchPlan:
    """Least energy for a cyclic step within `(1 + tolerance)` of stock time, switches paid.

    Args:
        kernels: the kernels; `repeat` is not used, `launches` says how often and when each runs.
        launches: kernel index of each launch, in order. switching: cost of a change.
        tolerance: at least 0.

    Raises:
        UsageError: no launches, an unknown kernel or a negative tolerance.
    """
    check_kernels(kernels)
    if not launches or not all(0 <= k < len(kernels) for k in launches) or tolerance < 0:
        raise UsageError(
            f"expected launches of kernels 0..{len(kernels) - 1} and a tolerance of at least 0, "
            f"found tolerance {tolerance}"
        )
    as_stock = [kernels[k].stock for k in launches]
    stock_time, stock_energy, _ = simulate(kernels, launches, as_stock, switching)
    limit = stock_time * (1 + tolerance) * (1 + 1e-12)
    best, best_energy = as_stock, stock_energy
    bound = -math.inf
    for spread in (0.0, _SPREAD):
        low, high, price = 0.0, math.inf, 0.0
        for _ in range(_PRICES):
            value, choices = _cheapest(kernels, launches, switching, price, spread)
            if spread == 0.0:
                bound = max(bound, value - price * limit)
            time_s, energy, _ = simulate(kernels, launches, choices, switching)
            if time_s <= limit:
                high = price
                if energy < best_energy:
                    best, best_energy = choices, energy
            else:
                low = price
            if high == 0.0:
                break
            price = max(4 * low, 0.01 * stock_energy / stock_time) if high == math.inf else (low + high) / 2
    time_s, energy, switches = simulate(kernels, launches, best, switching)
    return SwitchPlan(
        choices=tuple(best),
        switches=switches,
        time_s=time_s,
        energy_j=energy,
        stock_time_s=stock_time,
        stock_energy_j=stock_energy,
        bound_j=min(bound, energy),
    )


def _cheapest(
    kernels: Sequence[Kernel], launches: Sequence[int], switching: Switching, price: float, spread: float
) -> tuple[float, list[int]]:
    """Least energy + price x time over all assignments of the cyclic step, one pass per first option.

    With a spread, the price of a launch's time rises along the step by that share.
    """
    change = switching.time_s * (switching.power_w + price)
    local = [price * (1 + spread * i / len(launches)) for i in range(len(launches))]
    weights = [
        [o.energy_j + p * o.time_s for o in kernels[k].options] for k, p in zip(launches, local, strict=True)
    ]
    clocks = [[o.clocks for o in k.options] for k in kernels]
    best_value, best_choices = math.inf, list[int]()
    for first in range(len(weights[0])):
        values = {first: weights[0][first]}
        steps: list[dict[int, int]] = []
        for position, (before, kernel) in enumerate(itertools.pairwise(launches), 1):
            cheapest = min(values, key=lambda i: values[i])
            at_clocks: dict[tuple[int | None, int | None], int] = {}
            for i, value in values.items():
                pair = clocks[before][i]
                if pair not in at_clocks or value < values[at_clocks[pair]]:
                    at_clocks[pair] = i
            came: dict[int, int] = {}
            after: dict[int, float] = {}
            for i, weight in enumerate(weights[position]):
                stay = at_clocks.get(clocks[kernel][i])
                if stay is not None and values[stay] <= values[cheapest] + change:
                    came[i], after[i] = stay, values[stay] + weight
                else:
                    came[i], after[i] = cheapest, values[cheapest] + change + weight
            steps.append(came)
            values = after
        last_clocks, first_clocks = clocks[launches[-1]], clocks[launches[0]][first]
        for i, value in values.items():
            closing = value + (change if last_clocks[i] != first_clocks else 0.0)
            if closing < best_value:
                path = [i]
                for came in reversed(steps):
                    path.append(came[path[-1]])
                best_value, best_choices = closing, path[::-1]
    return best_value, best_choices
