"""A plan in table rows, its cost as exact integers, and the greedy use of what is left of a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.check import static_energy_mj
from solver.solution import Objective
from solver.tables import Floats, Ints, Tables


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Time (us) and dynamic energy (mJ, switches included) of a plan."""

    time_us: int
    dynamic_mj: int


@dataclass(frozen=True, eq=False)
class Goal:
    """What is minimised under which limits, in (time, dynamic energy).

    Attributes:
        objective: energy or time. static_mw: static power.
        time_us, energy_mj, power_mw: upper limits, None for unlimited.
    """

    objective: Objective
    static_mw: int
    time_us: int | None
    energy_mj: int | None
    power_mw: int | None

    @classmethod
    def of(cls, tables: Tables, objective: Objective) -> Goal:
        """The goal a problem and an objective state."""
        limits = tables.problem.limits
        return cls(
            objective,
            tables.problem.static_power_mw,
            limits.time_us,
            limits.energy_mj,
            limits.average_power_mw,
        )

    def energy_of(self, totals: Totals) -> int:
        """Total energy in mJ, rounded up."""
        return totals.dynamic_mj + static_energy_mj(self.static_mw, totals.time_us)

    def met(self, totals: Totals) -> bool:
        """Whether the limits hold."""
        energy = self.energy_of(totals)
        return (
            (self.time_us is None or totals.time_us <= self.time_us)
            and (self.energy_mj is None or energy <= self.energy_mj)
            and (self.power_mw is None or energy * 1_000_000 <= self.power_mw * totals.time_us)
        )

    def value(self, totals: Totals) -> int:
        """The objective in its unit."""
        return totals.time_us if self.objective is Objective.TIME else self.energy_of(totals)

    def values(self, time_us: Ints, energy_mj: Ints) -> Floats:
        """The objective of many plans (total energy, rounded up), infinite where a limit is passed."""
        broken = np.zeros(time_us.shape, np.bool_)
        if self.time_us is not None:
            broken |= time_us > self.time_us
        if self.energy_mj is not None:
            broken |= energy_mj > self.energy_mj
        if self.power_mw is not None:
            broken |= energy_mj * 1_000_000 > self.power_mw * time_us
        return np.where(broken, np.inf, time_us if self.objective is Objective.TIME else energy_mj)


def totals_of(tables: Tables, picked: Ints | Sequence[int]) -> Totals:
    """Exact cost of a plan given as table rows."""
    rows = np.asarray(picked, np.int64)
    clocks = np.empty_like(rows)
    time_us = dynamic = 0
    for k, table in enumerate(tables.kinds):
        spans = tables.chain == k
        chosen = rows[spans]
        clocks[spans] = table.clock[chosen]
        time_us += int(table.time_us[chosen].sum())
        dynamic += int(table.energy_mj[chosen].sum())
    switches = int((clocks[1:] != clocks[:-1]).sum())
    if tables.problem.cyclic and clocks[0] != clocks[-1]:
        switches += 1
    return Totals(
        time_us=time_us + switches * tables.problem.switch_time_us,
        dynamic_mj=dynamic + switches * tables.problem.switch_energy_mj,
    )


def fill(
    tables: Tables, goal: Goal, picked: Ints, *, allowed: Sequence[NDArray[np.bool_]] | None = None
) -> Ints:
    """Swap options as long as the objective falls and the limits hold; clocks stay unless they are free.

    Equal swaps are made together for all spans of a kind, the best total gain first. A plan that breaks a
    limit comes back as it was.

    Args:
        tables: the tables. goal: objective and limits. picked: table row of each span.
        allowed: bool[options] for each kind; rows outside are not taken.
    """
    totals = totals_of(tables, picked)
    if not goal.met(totals):
        return picked
    picked = picked.copy()
    for _ in range(200):
        best = _best_swap(tables, goal, totals, picked, allowed)
        if best is None:
            break
        kind, old, new, count = best
        spots = np.flatnonzero((tables.chain == kind) & (picked == old))[:count]
        picked[spots] = new
        table = tables.kinds[kind]
        totals = Totals(
            time_us=totals.time_us + count * int(table.time_us[new] - table.time_us[old]),
            dynamic_mj=totals.dynamic_mj + count * int(table.energy_mj[new] - table.energy_mj[old]),
        )
    return picked


def calm(tables: Tables, goal: Goal, picked: Ints, most: int) -> Ints:
    """Swap towards fewer changes from stock as long as the objective stays at most `most`.

    Args:
        tables: the tables. goal: objective and limits. picked: table rows. most: largest objective allowed.
    """
    picked = picked.copy()
    totals = totals_of(tables, picked)
    memory_limited = tables.problem.limits.memory_bytes is not None
    for k, table in enumerate(tables.kinds):
        for old in np.unique(picked[tables.chain == k]).tolist():
            fewer = np.flatnonzero((table.clock == table.clock[old]) & (table.changes < table.changes[old]))
            for new in sorted(fewer.tolist(), key=lambda m: (int(table.changes[m]), int(table.time_us[m]))):
                if not set(table.rungs[new]) <= set(table.rungs[old]):
                    continue
                if memory_limited and table.memory_bytes[new] > table.memory_bytes[old]:
                    continue
                for spot in np.flatnonzero((tables.chain == k) & (picked == old)).tolist():
                    after = Totals(
                        time_us=totals.time_us + int(table.time_us[new] - table.time_us[old]),
                        dynamic_mj=totals.dynamic_mj + int(table.energy_mj[new] - table.energy_mj[old]),
                    )
                    if not goal.met(after) or goal.value(after) > most:
                        break
                    picked[spot], totals = new, after
    return picked


def _best_swap(
    tables: Tables, goal: Goal, totals: Totals, picked: Ints, allowed: Sequence[NDArray[np.bool_]] | None
) -> tuple[int, int, int, int] | None:
    best: tuple[int, int, int, int] | None = None
    best_value = goal.value(totals)
    for k, table in enumerate(tables.kinds):
        rows, counts = np.unique(picked[tables.chain == k], return_counts=True)
        for old, count in zip(rows.tolist(), counts.tolist(), strict=True):
            same = (table.clock == table.clock[old]) | tables.free_switches
            if allowed is not None:
                same = same & allowed[k]
            dt = table.time_us - table.time_us[old]
            de = table.energy_mj - table.energy_mj[old]
            gain = dt if goal.objective is Objective.TIME else de + goal.static_mw * 1e-6 * dt
            for new in np.flatnonzero(same & (gain < 0)).tolist():
                n = _most(goal, totals, int(dt[new]), int(de[new]), count)
                if not n:
                    continue
                after = Totals(
                    time_us=totals.time_us + n * int(dt[new]), dynamic_mj=totals.dynamic_mj + n * int(de[new])
                )
                value = goal.value(after)
                if value < best_value and goal.met(after):
                    best, best_value = (k, old, new, n), value
    return best


def _most(goal: Goal, totals: Totals, dt: int, de: int, count: int) -> int:
    """How many equal swaps the limits allow, at most `count`."""
    n = count
    if goal.time_us is not None and dt > 0:
        n = min(n, (goal.time_us - totals.time_us) // dt)
    if goal.energy_mj is not None:
        step = de * 1_000_000 + goal.static_mw * dt
        room = (goal.energy_mj - totals.dynamic_mj) * 1_000_000 - goal.static_mw * totals.time_us
        if step > 0:
            n = min(n, room // step)
    if goal.power_mw is not None:
        step = de * 1_000_000 + (goal.static_mw - goal.power_mw) * dt
        room = (goal.power_mw - goal.static_mw) * totals.time_us - totals.dynamic_mj * 1_000_000
        if step > 0:
            n = min(n, room // step)
    return max(n, 0)


def dwell_met(tables: Tables, picked: Ints) -> bool:
    """Whether every stay at one clock between two switches of a plan lasts the minimum dwell."""
    dwell = tables.problem.min_dwell_us
    clocks = np.array([tables.kinds[k].clock[m] for k, m in zip(tables.chain, picked, strict=True)])
    times = np.array([tables.kinds[k].time_us[m] for k, m in zip(tables.chain, picked, strict=True)])
    cuts = np.flatnonzero(clocks[1:] != clocks[:-1]) + 1
    if not dwell or not len(cuts):
        return True
    stays = [int(part.sum()) for part in np.split(times, cuts)]
    if not tables.problem.cyclic:
        stays = stays[1:-1]
    elif clocks[0] == clocks[-1]:
        stays = [stays[0] + stays[-1], *stays[1:-1]]
    return all(stay >= dwell for stay in stays)
