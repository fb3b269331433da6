"""A governed step, clock level by clock level: best prices first, labels for what they leave open.

At one level the step is a plain choice of rows under a few sums: time, energy, average power, and the
governor's condition that the same decisions draw too much at the next level up. The bound at the best prices
discards most levels and most rows; what is left within reach of the best plan is enumerated, so the search
ends with the optimum itself unless more than `solver.bounds.reach.MOST_LABELS` partial plans stay in reach.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from solver.bounds.found import Found
from solver.bounds.prices import SIDES, Cases, best_prices, reduced_costs
from solver.bounds.reach import plans_in_reach
from solver.governor import governor_twins
from solver.plan import Goal, Totals, fill, totals_of
from solver.rungs import usable_rows
from solver.solution import Objective
from solver.tables import Floats, Ints, Tables

_NJ = 1_000_000  # nanojoules in a millijoule; milliwatts times microseconds are nanojoules


class LevelSearch:
    """Exact search over a problem whose clock is governed.

    Args:
        tables: the problem; its limits are replaced by those of the goal at each search.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        usable = usable_rows(tables, frozenset())
        groups = [
            [np.flatnonzero(m & (t.clock == f)) for t, m in zip(tables.kinds, usable, strict=True)]
            for f in range(tables.num_clocks)
        ]
        self._levels = [f for f, group in enumerate(groups) if all(len(rows) for rows in group)]
        self._rows = [groups[f] for f in self._levels]
        self._counts = np.array([t.count for t in tables.kinds], np.int64)
        self._excess = [self._next_excess(f, g) for f, g in zip(self._levels, self._rows, strict=True)]

    def search(
        self,
        goal: Goal,
        *,
        gap: float,
        deadline: float,
        accept: Callable[[Ints], bool],
        start: Ints | None = None,
        max_nodes: int = 100_000,
        progress: Callable[[float, float], None] | None = None,
    ) -> Found:
        """Search until the best plan is within `gap` of the bound.

        Args:
            goal: objective and limits. gap: relative. deadline: `time.monotonic()` to stop at.
            accept: judges a plan. start: a plan to begin with.
            max_nodes: levels enumerated at most. progress: called with (best value, bound).
        """
        best = _Best(self.tables, goal, accept)
        best.offer(start)
        if not self._levels:
            return Found(picked=best.picked, value=best.value, bound=math.inf, nodes=0, interrupted=False)
        cases = self._cases(goal)
        priced = best_prices(cases)
        unit = 1 if goal.objective is Objective.TIME else _NJ
        ceiling = _own_limit(goal)
        least = priced.bound / unit * (1 - 1e-11)  # sums of floats, rounded down
        bounds = np.where(np.ceil(least) > ceiling, math.inf, np.ceil(least))
        for i, picked in enumerate(priced.rows):
            if picked[0] >= 0:
                rows = np.array([g[m] for g, m in zip(self._rows[i], picked, strict=True)], np.int64)
                best.offer(rows[self.tables.chain])
                best.offer(self._filled(i, rows[self.tables.chain], goal))
        nodes, interrupted = 0, False
        for i in np.argsort(bounds, kind="stable").tolist():
            if progress is not None:
                progress(best.value, float(bounds.min()))
            if bounds[i] >= best.value * (1 - gap) or nodes >= max_nodes or time.monotonic() > deadline:
                break
            nodes += 1
            try:
                above = reduced_costs(cases, i, priced.prices[i]) / unit
                proven = self._settle(i, float(least[i]), above, best, ceiling, gap)
                if math.isfinite(proven):  # else the level holds no plan within the limits
                    proven = math.ceil(proven - 1e-9 * abs(proven))
                bounds[i] = max(proven, bounds[i])
            except KeyboardInterrupt:
                interrupted = True
                break
        return Found(
            picked=best.picked,
            value=best.value,
            bound=float(bounds.min()),
            nodes=nodes,
            interrupted=interrupted,
        )

    def _settle(self, at: int, least: float, above: Floats, best: _Best, ceiling: float, gap: float) -> float:
        """Enumerate plans ever farther above a level's bound; returns what is then proven of the level.

        A plan costs at least `least` plus its rows' costs `above` their kinds' cheapest, so whatever is not
        enumerated lies beyond `least + reach`.
        """
        counts = self._counts
        everything = float(counts @ np.where(np.isfinite(above), above, 0.0).max(axis=1)) + 1.0
        proven, reach = least, max(least * 1e-3, 1.0)
        while True:
            enough = min(best.value * (1 - gap), ceiling + 1.0) - least
            reach = min(reach, enough, everything)
            plans = plans_in_reach(self.tables, self._rows[at], self._excess[at], above, reach)
            if plans is None:
                return proven
            beyond = math.inf if reach == everything else least + reach
            values = np.where(plans.governed, best.values(plans.time_us, plans.dynamic_mj), math.inf)
            first = min(float(values.min(initial=math.inf)), beyond)
            proven = max(math.inf if first > ceiling else first, proven)
            for j in np.argsort(values, kind="stable").tolist():
                if values[j] >= min(best.value, beyond) or best.offer(plans.picked(j)):
                    break
            if proven < beyond or reach in (enough, everything):
                return proven
            reach *= 4.0

    def _filled(self, at: int, picked: Ints, goal: Goal) -> Ints:
        allowed = []
        for table, rows in zip(self.tables.kinds, self._rows[at], strict=True):
            mask = np.zeros(len(table.origin), np.bool_)
            mask[rows] = True
            allowed.append(mask)
        return fill(self.tables, goal, picked, allowed=allowed)

    def _next_excess(self, level: int, groups: list[Ints]) -> list[Ints]:
        """int64[rows] of each kind: energy above the power limit one level up, nJ.

        A decision the next level does not offer leaves the governor no way up, whatever the rest draws; so
        does the highest level.
        """
        tables = self.tables
        cap = tables.problem.limits.average_power_mw or 0
        static = tables.problem.static_power_mw
        if level + 1 >= tables.num_clocks:
            return [np.zeros(len(rows), np.int64) for rows in groups]
        twins = governor_twins(tables, level + 1)
        excess = []
        for k, rows in enumerate(groups):
            there = [twins[k, m] for m in rows.tolist()]
            excess.append([None if t is None else _NJ * t[1] + (static - cap) * t[0] for t in there])
        most = sum(
            int(count) * max((abs(x) for x in row if x is not None), default=0)
            for count, row in zip(self._counts.tolist(), excess, strict=True)
        )
        return [np.array([most + _NJ if x is None else x for x in row], np.int64) for row in excess]

    def _cases(self, goal: Goal) -> Cases:
        """One case a level. Sides: the other axis' limit, the power limit, the governor's condition."""
        tables = self.tables
        most = max(len(rows) for groups in self._rows for rows in groups)
        shape = len(self._levels), len(tables.kinds), most
        cost, amount = np.full(shape, np.inf), np.zeros((*shape, SIDES))
        limit = np.zeros((shape[0], SIDES))
        by_time = goal.objective is Objective.TIME
        other = goal.energy_mj if by_time else goal.time_us
        for i, groups in enumerate(self._rows):
            for k, (table, rows) in enumerate(zip(tables.kinds, groups, strict=True)):
                here = i, k, slice(len(rows))
                time_us, dynamic = table.time_us[rows], table.energy_mj[rows]
                energy = _NJ * dynamic + goal.static_mw * time_us
                cost[here] = time_us if by_time else energy
                if other is not None:
                    amount[(*here, 0)] = energy if by_time else time_us
                if goal.power_mw is not None:
                    amount[(*here, 1)] = energy - goal.power_mw * time_us
                if self._levels[i] + 1 < tables.num_clocks:
                    amount[(*here, 2)] = -self._excess[i][k]
            if other is not None:
                limit[i, 0] = other * _NJ if by_time else other
            if self._levels[i] + 1 < tables.num_clocks:
                limit[i, 2] = _NJ - 1  # energy is rounded up to whole millijoules before it is compared
        return Cases(counts=self._counts.astype(np.float64), cost=cost, amount=amount, limit=limit)


class _Best:
    """The best plan so far that the judge accepts."""

    def __init__(self, tables: Tables, goal: Goal, accept: Callable[[Ints], bool]) -> None:
        self._tables, self._goal, self._accept = tables, goal, accept
        self.picked: Ints | None = None
        self.value = math.inf

    def offer(self, picked: Ints | None) -> bool:
        """Take a plan if it is better and within all limits; returns whether it was taken."""
        if picked is None:
            return False
        totals = totals_of(self._tables, picked)
        value = float(self._goal.value(totals))
        if value >= self.value or not self._goal.met(totals) or not self._accept(picked):
            return False
        self.picked, self.value = picked, value
        return True

    def values(self, time_us: Ints, dynamic_mj: Ints) -> Floats:
        """float64[plans]: the objective, infinite where a limit is passed."""
        totals = [
            Totals(time_us=t, dynamic_mj=d)
            for t, d in zip(time_us.tolist(), dynamic_mj.tolist(), strict=True)
        ]
        return np.array([self._goal.value(t) if self._goal.met(t) else math.inf for t in totals], np.float64)


def _own_limit(goal: Goal) -> float:
    """The limit on the objective itself."""
    limit = goal.time_us if goal.objective is Objective.TIME else goal.energy_mj
    return math.inf if limit is None else float(limit)
