"""Bounds and plans by which clocks a step uses, whatever their order: no tree, no path search, integers only.

A plan that uses m clocks changes clock at least m times (m - 1 where the step does not repeat). Let it mix
those clocks as it likes and charge only these changes: what is cheapest at the best price of time is a bound
over all orders at once, and there are few sets of clocks. It is nearly tight because equal spans are many.
Pairs of clocks that this leaves open are looked at arc by arc (`solver.bounds.arcs`).

It shares no code with the pattern tree beyond the tables, so that one confirms the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solver.bounds.arcs import Arcs, arcs_of
from solver.bounds.found import Found
from solver.bounds.price_table import ABSENT, NJ, PriceTable, floors
from solver.plan import Goal, fill, totals_of
from solver.tables import Floats, Ints, Tables

_MOST_SETS = 3000  # of three clocks; beyond, three or more clocks are one set
_MOST_LOOKED_AT = 12  # single clocks and pairs looked at closely for one goal
_MOST_ARCS = 4096  # of a pair, bounded at every price; the others at few
_FEW_PRICES = 64
_CHUNK = 512
_PLANS = 6  # built for each clock or pair


@dataclass(frozen=True, kw_only=True, eq=False)
class _Group:
    """Sets of clocks of one size.

    Attributes:
        clocks: levels of each set. changes: fewest changes of clock of a plan that uses all of a set.
        cost_nj: int64[sets, prices], changes not included. least_us: int64[sets]. ABSENT where a kind has
            no option in a set.
    """

    clocks: tuple[tuple[int, ...], ...]
    changes: int
    cost_nj: Ints
    least_us: Ints


class ClockSets:
    """Bounds of one problem for any goal.

    Args:
        tables: the problem; its limits on time and energy are replaced by those of the goal.
        table: its price table.
    """

    def __init__(self, tables: Tables, table: PriceTable) -> None:
        self.tables, self.table = tables, table
        self._counts = np.array([t.count for t in tables.kinds], np.int64)
        self._cyclic = tables.problem.cyclic

    def search(
        self, goal: Goal, *, gap: float, accept: Callable[[Ints], bool], start: Ints | None = None
    ) -> Found:
        """Return the best plan found and a bound over all plans.

        Args:
            goal: objective and limits. gap: relative; clocks are looked at more closely until the bound is
                this close to the best plan. accept: judges a plan. start: a plan to begin with.
        """
        best = start
        value = math.inf if start is None else float(goal.value(totals_of(self.tables, start)))
        bounds: list[tuple[float, tuple[int, ...]]] = []
        for group in self._groups:
            found = self._floors(goal, group.cost_nj, group.least_us, group.changes)
            bounds += zip(found.tolist(), group.clocks, strict=True)
        bounds.sort()
        looked, interrupted = 0, False
        try:
            for i, (bound, clocks) in enumerate(bounds):
                if bound >= value * (1 - gap) or looked >= _MOST_LOOKED_AT or math.isinf(bound):
                    break
                looked += 1
                closer, plans = self._closer(goal, clocks, value)
                bounds[i] = max(bound, closer), clocks
                for picked in plans:
                    new = float(goal.value(totals_of(self.tables, picked)))
                    if new < value and accept(picked):
                        best, value = picked, new
        except KeyboardInterrupt:
            interrupted = True
        least = min((b for b, _ in bounds), default=math.inf)
        return Found(picked=best, value=value, bound=least, nodes=looked, interrupted=interrupted)

    def level_floors(self, goal: Goal) -> list[float]:
        """Return a lower bound for plans at each single clock, infinite where there are none."""
        group = self._groups[0]
        found: list[float] = self._floors(goal, group.cost_nj, group.least_us, group.changes).tolist()
        return found

    @cached_property
    def _groups(self) -> tuple[_Group, ...]:
        """Groups that together hold every plan."""
        return tuple(self._sizes())

    def _sizes(self) -> Iterator[_Group]:
        levels = self.table.least_us.shape[1]
        one = self.tables.one_clock
        largest = 1 if one else 2 if math.comb(levels, 3) > _MOST_SETS else 3
        for size in range(1, min(largest, levels) + 1):
            yield self._group(tuple(itertools.combinations(range(levels), size)), size)
        if levels > largest and not one:
            yield self._group((tuple(range(levels)),), largest + 1)

    def _group(self, sets: tuple[tuple[int, ...], ...], least: int) -> _Group:
        """Plans that use at least `least` clocks of each set."""
        cost = np.empty((len(sets), len(self.table.prices)), np.int64)
        least_us = np.empty(len(sets), np.int64)
        for i, clocks in enumerate(sets):
            cheapest = self.table.cost_nj[:, clocks].min(axis=1)
            shortest = self.table.least_us[:, clocks].min(axis=1)
            there = bool((shortest != ABSENT).all())
            cost[i] = self._counts @ cheapest if there else ABSENT
            least_us[i] = self._counts @ shortest if there else ABSENT
        return _Group(clocks=sets, changes=self._changes(least), cost_nj=cost, least_us=least_us)

    def _changes(self, clocks: int) -> int:
        return clocks if self._cyclic and clocks > 1 else clocks - 1

    def _floors(
        self, goal: Goal, cost_nj: Ints, least_us: Ints, changes: int, at: Ints | slice = slice(None)
    ) -> Floats:
        """Bounds of sets whose plans change clock at least `changes` times, at the prices `at`."""
        problem, prices = self.tables.problem, self.table.prices[at]
        us = problem.switch_time_us
        each = NJ * problem.switch_energy_mj + (problem.static_power_mw + prices) * us
        # Where time is worth having a change may pay: then as many as there can be are counted.
        charged = each * np.where(each >= 0, changes, len(self.tables.chain) if changes else 0)
        there = least_us != ABSENT
        cost = np.where(there[..., None], np.where(there[..., None], cost_nj, 0) + charged, ABSENT)
        return floors(goal, prices, cost, np.where(there, least_us, 0) + changes * us)

    def _closer(self, goal: Goal, clocks: tuple[int, ...], value: float) -> tuple[float, list[Ints]]:
        """A better bound of the plans that use exactly these clocks, and plans of them below `value`."""
        if len(clocks) == 1:
            nowhere = np.zeros((1, len(self._counts)), np.int64), np.zeros((1, 2), np.int64)
            return 0.0, self._plans(goal, (clocks[0], clocks[0]), *nowhere)
        arcs = self._arcs
        if len(clocks) > 2 or arcs is None or (self.table.least_us[:, clocks] == ABSENT).any():
            return 0.0, []
        group = self._groups[1]
        at = group.clocks.index(clocks)
        more = self._changes(2) + (2 if self._cyclic else 1)  # a repeated step of two clocks changes in pairs
        found = [float(self._floors(goal, group.cost_nj[at], group.least_us[at], more))]
        plans: list[Ints] = []
        for pair in ((clocks[0], clocks[1]), (clocks[1], clocks[0])):
            bounds = self._arc_floors(goal, pair, arcs, value)
            found.append(float(bounds.min(initial=math.inf)))
            near = np.argsort(bounds, kind="stable")[:_PLANS]
            near = near[bounds[near] < value]
            places = np.column_stack([arcs.start[near], arcs.end[near]])
            plans += self._plans(goal, pair, arcs.counts[near], places)
        return min(found), plans

    @cached_property
    def _arcs(self) -> Arcs | None:
        return arcs_of(self.tables)

    def _arc_floors(self, goal: Goal, pair: tuple[int, int], arcs: Arcs, value: float) -> Floats:
        """float64[arcs]: bounds of plans with the second clock in each arc; close ones where below `value`."""
        table, prices = self.table, self.table.prices
        outside, inside = table.cost_nj[:, pair[0]], table.cost_nj[:, pair[1]]
        shortest = self._counts @ table.least_us[:, pair[0]]
        least_us = shortest + arcs.counts @ (table.least_us[:, pair[1]] - table.least_us[:, pair[0]])

        def bounds(of: Ints, at: Ints | slice) -> Floats:
            cost = self._counts @ outside[:, at] + arcs.counts[of] @ (inside - outside)[:, at]
            return self._floors(goal, cost, least_us[of], self._changes(2), at)

        needed = np.flatnonzero((prices == 0) | (prices == -(goal.power_mw or 0)))
        few = np.union1d(np.linspace(0, len(prices) - 1, _FEW_PRICES).round().astype(np.int64), needed)
        every = np.arange(len(arcs.counts))
        found = bounds(every, few)
        open_arcs = np.argsort(found, kind="stable")[:_MOST_ARCS]
        open_arcs = open_arcs[found[open_arcs] < value]
        for low in range(0, len(open_arcs), _CHUNK):
            part = open_arcs[low : low + _CHUNK]
            found[part] = bounds(part, slice(None))
        return found

    def _plans(self, goal: Goal, pair: tuple[int, int], inside: Ints, places: Ints) -> list[Ints]:
        """For each arc the best plan whose options are the cheapest at one price, filled up.

        Args:
            goal: objective and limits. pair: clock outside and inside the arc.
            inside: int64[arcs, kinds], spans inside. places: int64[arcs, 2], start and end.
        """
        table, problem, chain = self.table, self.tables.problem, self.tables.chain
        if (table.least_us[:, pair] == ABSENT).any():
            return []
        changes = np.where(inside.any(axis=1), self._changes(2), 0)[:, None]
        each_nj = NJ * problem.switch_energy_mj + problem.static_power_mw * problem.switch_time_us

        def total(of: Ints, change: int) -> Ints:
            here, there = of[:, pair[0]], of[:, pair[1]]
            summed: Ints = self._counts @ here + inside @ (there - here) + changes * change
            return summed

        time_us = total(table.time_us, problem.switch_time_us)
        energy_mj = -(-total(table.energy_nj, each_nj) // NJ)
        value = goal.values(time_us, energy_mj)
        plans = []
        for arc, (start, end) in enumerate(places.tolist()):
            price = int(value[arc].argmin())
            if np.isfinite(value[arc, price]):
                level = np.full(len(chain), pair[0])
                level[start:end] = pair[1]
                plans.append(fill(self.tables, goal, table.rows[chain, level, price]))
        return plans
