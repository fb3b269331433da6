"""Local search over many plans at once: each deadline keeps its best plan and borrows from its neighbours.

Rounding a relaxed plan leaves some of the energy that a real plan can save, most on short graphs and where
one option is worth much. Here each plan is varied (some operations faster, two of a kind exchanged, or the
late part of a slower neighbour's plan taken over), the time this frees is given back in random portions, and
a variation that needs no more energy replaces the plan. Equal energy is accepted too, so that plans drift
along plateaus. Everything runs over all deadlines at once; draws are seeded and the amount of work is fixed
beforehand, so results repeat.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.slack_round import Graph, option_durations, plan_energy, spend_slack

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Choices = NDArray[np.int16]

MAX_ROUNDS = 100
_SHIFTS = (1, 1, 2, 3, 5, 9, 20, 40)  # how many deadlines away the neighbour of a crossing is
_CHANGED = (1, 2, 4, 8)  # operations made faster, on average
_PORTIONS = (0, 1, 2, 64)  # options an operation may be slowed by in the first pass
_PORTION_ODDS = (0.4, 0.3, 0.15, 0.15)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SearchSpace:
    """What is searched: the graph, the table of each operation (int64[n]) and the tables' times and energies."""

    graph: Graph
    table_of: Ints
    times: list[Floats]
    energies: list[Floats]

    def durations(self, choices: Choices) -> Floats:
        """float64[n, p] of plans [n, p] in microseconds."""
        return option_durations(self.table_of, self.times, choices)

    def makespan(self, choices: Choices) -> Floats:
        """float64[p] of plans [n, p]."""
        return self.graph.makespan(self.durations(choices))

    def energy(self, choices: Choices) -> Floats:
        """float64[p] of plans [n, p]: their options' energy in millijoules."""
        return plan_energy(self.table_of, self.energies, choices)


def search_plans(
    space: SearchSpace, deadline_us: Floats, choices: Choices, *, work: float, seed: int = 0
) -> Choices:
    """Improve plans, each within its deadline.

    Args:
        space: what is searched.
        deadline_us: float64[p], ascending. choices: int16[n, p], each meets its deadline.
        work: operations x plans x rounds to spend, at most `MAX_ROUNDS` rounds.
        seed: of the draws.

    Returns:
        int16[n, p]: plans that meet the deadlines and need no more energy than those given.
    """
    count, plans = choices.shape
    rounds = min(int(work / max(count * plans, 1)), MAX_ROUNDS)
    generator = np.random.default_rng(seed)
    vary = _Variations(space, generator)
    turned = (space.graph, space.graph.reverse())
    last = np.array([len(space.times[k]) - 1 for k in space.table_of], np.int16)[:, None]
    energy = space.energy(choices)
    for number in range(rounds):
        child = vary.next(number, choices)
        late = space.makespan(child) > deadline_us
        child[:, late] = choices[:, late]
        portion = generator.choice(_PORTIONS, p=_PORTION_ODDS, size=child.shape).astype(np.int16)
        for limit in (np.minimum(child + portion, last), None):
            child = spend_slack(
                turned[generator.integers(2)], space.table_of, space.times, child, deadline_us, limit=limit
            )
        spent = space.energy(child)
        kept = spent <= energy
        choices = np.where(kept, child, choices)
        energy = np.where(kept, spent, energy)
        source = _cheapest_so_far(energy)
        choices, energy = choices[:, source], energy[source]
    return choices


def _cheapest_so_far(energy: Floats) -> Ints:
    """int64[p]: for each deadline the cheapest plan of it and all shorter ones, which meet it too."""
    leads = energy <= np.minimum.accumulate(energy)
    source: Ints = np.maximum.accumulate(np.where(leads, np.arange(len(energy)), 0))
    return source


class _Variations:
    """Draws variations of plans [n, p], a different kind each round."""

    def __init__(self, space: SearchSpace, generator: np.random.Generator) -> None:
        self._generator = generator
        position = np.empty(space.graph.size)
        position[list(space.graph.order)] = np.arange(space.graph.size)
        self._position = position[:, None]
        alike = [np.flatnonzero(space.table_of == kind) for kind in range(len(space.times))]
        self._alike = [group for group in alike if len(group) > 1]

    def next(self, number: int, choices: Choices) -> Choices:
        """Return new plans; they may miss their deadlines."""
        kind = number % 3
        if kind == 0:
            return self._faster(choices)
        if kind == 1 and self._alike:
            return self._exchanged(choices)
        return self._crossed(choices)

    def _faster(self, choices: Choices) -> Choices:
        draw = self._generator
        hit = draw.random(choices.shape) < draw.choice(_CHANGED) / len(choices)
        steps = draw.integers(1, 6, size=choices.shape, dtype=np.int16)
        return np.where(hit, np.maximum(choices - steps, 0), choices).astype(np.int16)

    def _exchanged(self, choices: Choices) -> Choices:
        """Exchange two operations of a kind: the same energy at another place."""
        child = choices.copy()
        plans = np.arange(choices.shape[1])
        for _ in range(int(self._generator.integers(1, 4))):
            group = self._alike[self._generator.integers(len(self._alike))]
            one, other = group[self._generator.integers(len(group), size=(2, len(plans)))]
            child[one, plans], child[other, plans] = child[other, plans], child[one, plans]
        return child

    def _crossed(self, choices: Choices) -> Choices:
        """Take the late part, or the early one, of a slower neighbour's plan."""
        plans = choices.shape[1]
        neighbour = np.minimum(np.arange(plans) + self._generator.choice(_SHIFTS), plans - 1)
        early = self._position < self._generator.random(plans) * len(choices)
        if self._generator.random() < 0.5:
            early = ~early
        return np.where(early, choices, choices[:, neighbour])
