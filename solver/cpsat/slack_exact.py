"""The cheapest plan of a precedence graph for one deadline, with CP-SAT: for graphs of a few operations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from solver.slack_round import Graph

if TYPE_CHECKING:
    from solver.slack import Table

_UNITS_PER_MJ = 100  # energies are rounded down to these for the bound


def best_within(
    tables: tuple[Table, ...],
    table_of: NDArray[np.int64],
    graph: Graph,
    deadline_us: int,
    hint: NDArray[np.int16],
    *,
    effort: float,
) -> tuple[NDArray[np.int16], float, float]:
    """Return the best plan found for a deadline and a proven lower bound of every plan's option energy.

    Args:
        tables, table_of, graph: the problem. deadline_us: whole microseconds.
        hint: int16[n], a plan that meets it. effort: CP-SAT's deterministic seconds.

    Returns:
        (int16[n] options, the hint where nothing was found; bound in mJ, -inf where nothing was proven;
        deterministic seconds spent).
    """
    model = cp_model.CpModel()
    start, chosen, duration = [], [], []
    energy: list[cp_model.LinearExprT] = []
    for v, kind in enumerate(table_of):
        table = tables[kind]
        pick = [model.new_bool_var("") for _ in table.time_us]
        model.add_exactly_one(pick)
        start.append(model.new_int_var(0, deadline_us, ""))
        chosen.append(pick)
        duration.append(cp_model.LinearExpr.weighted_sum(pick, table.time_us.tolist()))
        units = [math.floor(e * _UNITS_PER_MJ) for e in table.energy_mj.tolist()]
        energy.append(cp_model.LinearExpr.weighted_sum(pick, units))
        model.add(start[v] + duration[v] <= deadline_us)
        for option, variable in enumerate(pick):
            model.add_hint(variable, int(hint[v]) == option)
    for a, b in graph.edges.tolist():
        model.add(start[b] >= start[a] + duration[a])
    model.minimize(cp_model.LinearExpr.sum(energy))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model)
    spent = solver.response_proto.deterministic_time
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return hint, -math.inf, spent
    picked = [next(o for o, x in enumerate(pick) if solver.boolean_value(x)) for pick in chosen]
    return np.array(picked, np.int16), solver.best_objective_bound / _UNITS_PER_MJ, spent
