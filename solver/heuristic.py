"""Plans without OR-Tools and without proof: one clock at a time, then greedy.

For every clock (and, where clocks may change freely, for all together) a price of time picks the best option
of each kind; prices are swept from cheap to dear, the plans that meet the limits are filled up greedily and
the best one wins. Too many budgets of one ladder are mended by banning the least used ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from solver.check import judge
from solver.plan import Goal, fill, totals_of
from solver.problem import Problem
from solver.rungs import Bools, heaviest_bytes, kept_rungs, rung_uses, usable_rows
from solver.solution import Objective, Solution, Status
from solver.tables import Ints, Tables, build_tables


def heuristic(problem: Problem, objective: Objective = Objective.ENERGY) -> Solution:
    """Return a checked plan of status HEURISTIC, or UNKNOWN when none was found.

    Args:
        problem: the instance. objective: what is made small.
    """
    started = time.monotonic()
    tables = build_tables(problem)
    picked = None if tables is None else best_greedy(tables, Goal.of(tables, objective))
    if tables is None or picked is None:
        return Solution(
            status=Status.UNKNOWN,
            objective=objective,
            gap=1.0,
            solve_s=time.monotonic() - started,
            reason="the heuristic found no plan within the limits; that proves nothing",
        )
    choices = tables.choices(picked.tolist())
    judged = judge(problem, choices)
    return Solution(
        status=Status.HEURISTIC,
        objective=objective,
        choices=choices,
        time_us=judged.time_us,
        energy_mj=judged.energy_mj,
        gap=1.0,
        switches=judged.switches,
        changes=judged.changes,
        solve_s=time.monotonic() - started,
    )


def best_greedy(tables: Tables, goal: Goal) -> Ints | None:
    """Best plan (table rows) over clocks and prices that the judge accepts, or None."""
    best: Ints | None = None
    best_value: int | None = None
    for picked, allowed in _candidates(tables):
        filled = fill(tables, goal, picked, allowed=allowed)
        value = goal.value(totals_of(tables, filled))
        if best_value is not None and value >= best_value:
            continue
        if not judge(tables.problem, tables.choices(filled.tolist())).violations:
            best, best_value = filled, value
    return best


def _candidates(tables: Tables) -> Iterator[tuple[Ints, list[Bools]]]:
    stock = [
        np.flatnonzero(t.origin == tables.problem.kinds[k].stock)
        for k, t in zip(sorted(set(tables.problem.chain)), tables.kinds, strict=True)
    ]
    everything = [np.ones(len(t.origin), np.bool_) for t in tables.kinds]
    if all(len(s) for s in stock):
        yield np.array([int(stock[k][0]) for k in tables.chain], np.int64), everything
    groups = [[t.clock == f for t in tables.kinds] for f in range(tables.num_clocks)]
    if tables.free_switches:
        groups.append(everything)
    for allowed in groups:
        if not all(a.any() for a in allowed):
            continue
        for price in _prices(tables):
            rows = _pick(tables, price, allowed)
            usable = mend_rungs(tables, rows, allowed)
            if usable is not None:
                yield _pick(tables, price, usable)[tables.chain], usable


def _prices(tables: Tables) -> np.ndarray:
    """Prices of time in mJ/us, from below zero (slow is good under a power limit) to time alone."""
    scale = max(float(t.energy_mj.max()) / max(float(t.time_us.min()), 1.0) for t in tables.kinds)
    steps = np.geomspace(1e-3, 1e3, 13) * max(scale, 1e-3)
    return np.concatenate([[0.0, tables.static_mj_per_us, 1e9], steps, -steps[:7]])


def _pick(tables: Tables, price: float, allowed: list[Bools]) -> Ints:
    rows = []
    for table, mask in zip(tables.kinds, allowed, strict=True):
        cost = np.where(mask, table.energy_mj + price * table.time_us, np.inf)
        rows.append(int(np.argmin(cost)))
    return np.array(rows, np.int64)


def mend_rungs(tables: Tables, rows: Ints, allowed: list[Bools]) -> list[Bools] | None:
    """Ban the least used rungs until every ladder and the memory limit are met; None where that fails.

    Args:
        tables: the tables. rows: row taken for each kind. allowed: bool[options] for each kind.
    """
    picked = rows[tables.chain]
    keep = kept_rungs(tables, rung_uses(tables, picked), heaviest_bytes(tables, picked))
    usable = usable_rows(tables, frozenset(range(len(tables.rungs))) - keep)
    masks = [a & u for a, u in zip(allowed, usable, strict=True)]
    return masks if all(m.any() for m in masks) else None
