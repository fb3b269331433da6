"""Exact dynamic programme over the chain with Pareto labels: the certificate for small problems.

A state is everything the rest of the chain can depend on (first and present clock, stays, rungs, memory);
under each state only labels (time, dynamic energy) that no other dominates are kept. Nothing is relaxed, so
the result is the optimum itself. Label numbers grow with the chain; the search gives up past a budget.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solver.governor import governor_twins
from solver.plan import Goal, Totals
from solver.solution import Objective
from solver.tables import Ints, Tables

LEAST_WORK = 300_000  # a tenth of a second or so
_STEP_COST = 20  # what one step costs in Python, in labels
_NUM_PRICES = 40
_NJ = 1_000_000  # nanojoules in a millijoule
_LARGEST = 2**61  # of any sum, so that int64 holds it
Twin = tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class State:
    """What the rest of the chain can see of a partial plan.

    Attributes:
        first, clock: clock levels. stay_us, first_stay_us: capped at the dwell; the latter -1 until the
            first switch. rungs, memory: used so far. higher: (time, energy) the same decisions have at each
            higher level, None where a decision is not offered; governed problems only.
    """

    first: int
    clock: int
    stay_us: int
    first_stay_us: int
    rungs: frozenset[int]
    memory: int
    higher: Twin


def exact_optimum(tables: Tables, goal: Goal, *, below: float, max_work: int = LEAST_WORK) -> float | None:
    """Return the optimal objective, infinite where no plan meets the limits or is at most `below`.

    Args:
        tables: the problem. goal: objective and limits. below: value of a known plan (infinite for none);
            labels that cannot reach it are dropped.
        max_work: label extensions after which the answer is None (too large for this method).
    """
    walk = _Walk(tables, goal, below)
    rest = Rest(tables, goal, below)
    layer: dict[State, Ints] = {}
    work = 0
    for position, kind in enumerate(tables.chain.tolist()):
        grown: dict[State, list[Ints]] = {}
        sources = layer.items() if position else [(None, np.zeros((1, 2), np.int64))]
        for state, labels in sources:
            for row in walk.rows(state, kind):
                work += _STEP_COST + len(labels)
                if work > max_work:
                    return None
                step = walk.extend(state, kind, row)
                if step is not None:
                    after, cost = step
                    grown.setdefault(after, []).append(labels + cost)
        layer = {}
        for state, parts in grown.items():
            kept = walk.prune(rest.within_reach(np.concatenate(parts), position + 1))
            if len(kept):
                layer[state] = kept
    best = np.inf
    for state, labels in layer.items():
        closing = walk.close(state)
        if closing is not None:
            for time_us, dynamic in (labels + closing).tolist():
                totals = Totals(time_us=time_us, dynamic_mj=dynamic)
                if goal.met(totals) and goal.value(totals) <= below:
                    best = min(best, float(goal.value(totals)))
    return best


class Rest:
    """What the spans still to come cost at least: labels that cannot end within the limits are dropped.

    Args:
        tables: the problem. goal: objective and limits. below: most the objective may be.
    """

    def __init__(self, tables: Tables, goal: Goal, below: float) -> None:
        self._static = goal.static_mw
        most_us, most_mj = goal.time_us, goal.energy_mj
        if np.isfinite(below):
            if goal.objective is Objective.TIME:
                most_us = int(below) if most_us is None else min(most_us, int(below))
            else:
                most_mj = int(below) if most_mj is None else min(most_mj, int(below))
        times = [t.time_us for t in tables.kinds]
        energies = [_NJ * t.energy_mj + goal.static_mw * t.time_us for t in tables.kinds]
        # Energy plus price times time within both limits, at some prices (nJ per us), and time by itself.
        rows: list[tuple[int, int, int]] = []  # weight of energy, weight of time, limit
        if most_us is not None:
            rows.append((0, 1, most_us))
        if most_mj is not None:
            rows.append((1, 0, _NJ * most_mj))
            if most_us is not None:
                rows += [
                    (1, price, _NJ * most_mj + price * most_us)
                    for price in self._prices(times, energies)
                    if price * max(most_us, 1) < _LARGEST
                ]
        self._rows = [row for row in rows if row[2] < _LARGEST]
        self._rest = []
        for energy, time_weight, _ in self._rows:
            least = [int((energy * e + time_weight * t).min()) for e, t in zip(energies, times, strict=True)]
            along = np.array([0, *(least[k] for k in tables.chain[::-1])], np.int64).cumsum()
            self._rest.append(along[::-1])

    @staticmethod
    def _prices(times: list[Ints], energies: list[Ints]) -> list[int]:
        """Prices around the slopes between the options of a kind."""
        spread_us = min((int(np.ptp(t)) for t in times if np.ptp(t)), default=0)
        spread_nj = max(int(np.ptp(e)) for e in energies)
        if not spread_us or not spread_nj:
            return []
        grid = np.geomspace(1, max(spread_nj / spread_us, 2), _NUM_PRICES)
        return sorted({int(price) for price in grid.round()})

    def within_reach(self, labels: Ints, position: int) -> Ints:
        """Labels (time, dynamic energy) that may still end within the limits when `position` spans are passed."""
        time_us, energy = labels[:, 0], _NJ * labels[:, 1] + self._static * labels[:, 0]
        keep = np.ones(len(labels), np.bool_)
        for (energy_weight, time_weight, limit), rest in zip(self._rows, self._rest, strict=True):
            keep &= energy_weight * energy + time_weight * time_us <= limit - int(rest[position])
        return labels[keep]


class _Walk:
    def __init__(self, tables: Tables, goal: Goal, below: float) -> None:
        self.tables, self.goal, self.below = tables, goal, below
        self.problem = tables.problem
        self.dwell = self.problem.min_dwell_us
        self.switch = np.array([self.problem.switch_time_us, self.problem.switch_energy_mj], np.int64)
        self.levels = tables.num_clocks if self.problem.governed else 0
        self.twins = [governor_twins(tables, high) for high in range(self.levels)]

    def rows(self, state: State | None, kind: int) -> list[int]:
        """Rows a span may take: all, or those at the clock of the step."""
        clock = self.tables.kinds[kind].clock
        one = state is not None and self.tables.one_clock
        return np.flatnonzero(clock == state.clock if one and state else clock >= 0).tolist()

    def extend(self, state: State | None, kind: int, row: int) -> tuple[State, Ints] | None:
        """The state after one more span and what it costs, None where a rule breaks."""
        table = self.tables.kinds[kind]
        clock, time_us = int(table.clock[row]), int(table.time_us[row])
        cost = np.array([time_us, int(table.energy_mj[row])], np.int64)
        rungs = frozenset(table.rungs[row]) if self.tables.coupled else frozenset()
        memory = int(table.memory_bytes[row]) if self.tables.coupled else 0
        higher: Twin = tuple(
            self.twins[g].get((kind, row)) if g > clock else (0, 0) for g in range(self.levels)
        )
        stay = min(time_us, self.dwell)
        if state is None:
            if not self._fits(rungs, memory):
                return None
            return State(clock, clock, stay, -1, rungs, memory, higher), cost
        first_stay = state.first_stay_us
        if clock == state.clock:
            stay = min(state.stay_us + time_us, self.dwell)
        else:
            if self.tables.one_clock:
                return None
            if first_stay < 0:
                first_stay = state.stay_us
            elif state.stay_us < self.dwell:
                return None
            cost = cost + self.switch
        rungs, memory = rungs | state.rungs, max(memory, state.memory)
        if not self._fits(rungs, memory):
            return None
        summed = tuple(
            None if a is None or b is None else (a[0] + b[0], a[1] + b[1])
            for a, b in zip(state.higher, higher, strict=True)
        )
        return State(state.first, clock, stay, first_stay, rungs, memory, summed), cost

    def _fits(self, rungs: frozenset[int], memory: int) -> bool:
        if any(
            len(rungs.intersection(i)) > self.problem.max_rungs for i in self.tables.rungs_of_key.values()
        ):
            return False
        limit = self.problem.limits.memory_bytes
        return limit is None or memory + self.problem.rung_memory_bytes * len(rungs) <= limit

    def prune(self, labels: Ints) -> Ints:
        """Labels that no other dominates and that may still meet the limits and beat the known plan."""
        goal = self.goal
        time_us, energy = labels[:, 0], labels[:, 1] * 1_000_000 + goal.static_mw * labels[:, 0]
        keep = np.ones(len(labels), np.bool_)
        if goal.time_us is not None:
            keep &= time_us <= goal.time_us
        if goal.energy_mj is not None:
            keep &= energy <= goal.energy_mj * 1_000_000
        if np.isfinite(self.below):
            totals = time_us if goal.objective.value == "time" else energy / 1_000_000
            keep &= totals <= self.below
        labels = labels[keep]
        second = labels[:, 1]
        if goal.power_mw is not None:
            if goal.power_mw < goal.static_mw:
                return np.unique(labels, axis=0)
            # Less of this and no more time implies no more energy; more time alone may help under a cap.
            second = labels[:, 1] * 1_000_000 - (goal.power_mw - goal.static_mw) * labels[:, 0]
        order = np.lexsort((second, labels[:, 0]))
        least = np.minimum.accumulate(second[order])
        new = np.ones(len(order), np.bool_)
        new[1:] = least[1:] < least[:-1]
        return labels[order[new]]

    def close(self, state: State) -> Ints | None:
        """Cost of returning to the first clock, None where a stay is too short or the governor disagrees."""
        cap = self.problem.limits.average_power_mw or 0
        for twin in state.higher[state.clock + 1 :]:
            if twin is not None:
                totals = Totals(time_us=twin[0], dynamic_mj=twin[1])
                if replace(self.goal, time_us=None, energy_mj=None, power_mw=cap).met(totals):
                    return None
        cost = np.zeros(2, np.int64)
        if not self.problem.cyclic:
            return cost
        if state.clock != state.first:
            if min(state.stay_us, state.first_stay_us) < self.dwell:
                return None
            return cost + self.switch
        if state.first_stay_us >= 0 and state.stay_us + state.first_stay_us < self.dwell:
            return None
        return cost
