"""Limits of the model: time, energy, power, rungs, memory, dwell, governed clock. One function a family."""

from __future__ import annotations

from itertools import pairwise
from math import gcd

import numpy as np

from solver.check import static_energy_mj
from solver.cpsat.model import Expr, Model, Var, static_row
from solver.governor import governor_twins


def add_limits(model: Model, level: int = 0) -> None:
    """Add every limit the problem states; `level` is the clock of a governed model's options."""
    _totals(model)
    if model.tables.rungs:
        _rungs(model)
    _memory(model)
    if model.num_segments > 1 and model.tables.problem.min_dwell_us:
        _dwell(model)
    if model.tables.problem.governed:
        _governed(model, level)


def _totals(model: Model) -> None:
    limits = model.tables.problem.limits
    if limits.time_us is not None:
        model.cp.add(model.time_us <= limits.time_us)
    if limits.energy_mj is not None:
        model.cp.add(model.energy_mj <= limits.energy_mj)
    if limits.average_power_mw is not None:
        factor = gcd(1_000_000, limits.average_power_mw)
        model.cp.add(
            1_000_000 // factor * model.energy_mj <= limits.average_power_mw // factor * model.time_us
        )


def _rungs(model: Model) -> None:
    """A rung is there when any span uses it; at most `max_rungs` of each ladder."""
    tables, cp = model.tables, model.cp
    model.rung.extend(cp.new_bool_var(f"rung{r}") for r in range(len(tables.rungs)))
    for (_, k), users in _users_of_rungs(model).items():
        table = tables.kinds[k]
        for r, variables in users.items():
            cp.add(sum(variables) <= table.count * model.rung[r])
    for ids in tables.rungs_of_key.values():
        cp.add(sum(model.rung[r] for r in ids) <= tables.problem.max_rungs)


def _users_of_rungs(model: Model) -> dict[tuple[int, int], dict[int, list[Var]]]:
    users: dict[tuple[int, int], dict[int, list[Var]]] = {}
    for (s, k, m), variable in model.counts.items():
        for r in model.tables.kinds[k].rungs[m]:
            users.setdefault((s, k), {}).setdefault(r, []).append(variable)
    return users


def _memory(model: Model) -> None:
    """Heaviest option (as steps between distinct sizes) plus rungs within the limit.

    Options too heavy on their own are already gone from the tables.
    """
    tables, cp, problem = model.tables, model.cp, model.tables.problem
    limit = problem.limits.memory_bytes
    if limit is None or not (problem.rung_memory_bytes and tables.rungs):
        return
    sizes = sorted({int(b) for t in tables.kinds for b in t.memory_bytes} | {0})
    total: Expr = problem.rung_memory_bytes * sum(model.rung)
    for below, size in pairwise(sizes):
        literal = model.heavier[size] = cp.new_bool_var(f"memory{size}")
        for s in range(model.num_segments):
            for k, table in enumerate(tables.kinds):
                heavy = np.flatnonzero(table.memory_bytes >= size).tolist()
                if heavy:
                    cp.add(sum(model.counts[s, k, m] for m in heavy) <= table.count * literal)
        total += (size - below) * literal
    cp.add(total <= limit)


def _dwell(model: Model) -> None:
    """Every stay between two switches lasts; a cyclic step joins its first and last stay."""
    tables, cp, problem = model.tables, model.cp, model.tables.problem
    dwell = problem.min_dwell_us
    stay = [
        sum(
            int(table.time_us[m]) * model.counts[s, k, m]
            for k, table in enumerate(tables.kinds)
            for m in range(len(table.origin))
        )
        for s in range(model.num_segments)
    ]
    for s in range(1, model.num_segments):
        follows = model.active[s + 1] if s + 1 < model.num_segments else 0
        cp.add(stay[s] >= dwell * follows)  # a segment that another one follows lies between two switches
        if problem.cyclic and model.wrap is not None:
            last = model.active[s] - follows
            cp.add(stay[s] >= dwell * (last + model.wrap - 1))
            cp.add(stay[0] + stay[s] >= dwell * last)
    if problem.cyclic and model.wrap is not None:
        cp.add(stay[0] >= dwell * model.wrap)


def _governed(model: Model, level: int) -> None:
    """At every level above, the same decisions would pass the power limit (or are not offered).

    The model holds options of one level only, so these are plain rows: enforced rows with large coefficients
    are what OR-Tools 9.15 is known to get wrong (issue 5293).
    """
    tables, cp, problem = model.tables, model.cp, model.tables.problem
    cap = problem.limits.average_power_mw or 0
    counts = [(k, m, model.counts[0, k, m]) for k, t in enumerate(tables.kinds) for m in range(len(t.origin))]
    for high in range(level + 1, tables.num_clocks):
        twins = governor_twins(tables, high)
        found = [(twins[k, m], v) for k, m, v in counts if twins[k, m] is not None]
        lost = [v for k, m, v in counts if twins[k, m] is None]
        time_us: Expr = sum(t[0] * v for t, v in found if t)
        dynamic: Expr = sum(t[1] * v for t, v in found if t)
        most_time = sum(
            int(t.count) * max((x[0] for x in twins.values() if x), default=0) for t in tables.kinds
        )
        most = sum(int(t.count) * max((x[1] for x in twins.values() if x), default=0) for t in tables.kinds)
        most += static_energy_mj(problem.static_power_mw, most_time)
        energy = cp.new_int_var(0, most, f"energy_at{high}")
        scale, power = static_row(problem.static_power_mw)
        cp.add(scale * energy <= scale * dynamic + power * time_us + scale - 1)  # rounded up, not above
        refused = cp.new_bool_var(f"refused{high}")
        cp.add(1_000_000 * energy + (cap * most_time + 1) * refused >= cap * time_us + 1)
        cp.add(sum(lost) >= refused)
