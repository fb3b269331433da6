"""Running CP-SAT: parameters, hints, limits, interruption, and what came out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from ortools.sat.python import cp_model

from solver.cpsat.limits import add_limits
from solver.cpsat.model import Model, build_model, rows_of
from solver.errors import SolverError
from solver.plan import Goal, totals_of
from solver.solution import Objective
from solver.tables import Ints, Tables, restrict


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What CP-SAT says.

    Attributes:
        picked: table row of each span, None without a plan. bound: its lower bound of the objective.
        proven: whether it claims the plan (or the absence of one) is proven within its gap limit.
        infeasible: whether it claims that no plan meets the limits.
    """

    picked: Ints | None
    bound: float
    proven: bool
    infeasible: bool = False


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long to search.

    Attributes:
        time_limit_s: wall time. deterministic_time: OR-Tools' own clock, for the same answer on any machine.
        seed: random seed. relative_gap: stop when proven this closely.
        presolve: off to cross-check.
    """

    time_limit_s: float
    deterministic_time: float | None = None
    seed: int = 0
    relative_gap: float = 0.0
    presolve: bool = True
    num_workers: int = 1
    linearization_level: int = 2
    probing_level: int = 0


def run_cpsat(
    tables: Tables,
    objective: Objective,
    effort: Effort,
    *,
    num_segments: int,
    hint: Ints | None = None,
    level_floors: Sequence[float] = (),
    on_solution: Callable[[float, float], None] | None = None,
) -> Outcome:
    """Solve the counts/segments model.

    Args:
        tables: the problem. objective: what is minimised. effort: limits.
        num_segments: most stays at one clock along the chain (1 where the tables need no order).
        level_floors: what another method proves of each level of a governed clock; levels that it shows to hold
            nothing better by more than the gap are not looked at.
        hint: table rows to start from. on_solution: called with (value, bound) at every better plan.
    """
    if not tables.problem.governed:
        below = None if hint is None else math.floor(_value(tables, objective, hint))
        return _one(tables, objective, effort, num_segments, below=below, hint=hint, on_solution=on_solution)
    return _every_level(tables, objective, effort, hint, level_floors, on_solution)


def _every_level(
    tables: Tables,
    objective: Objective,
    effort: Effort,
    hint: Ints | None,
    level_floors: Sequence[float],
    on_solution: Callable[[float, float], None] | None,
) -> Outcome:
    """One model for each level of a governed clock, the known plan's level first.

    Once a plan is known, the models of other levels only have to show that they hold none that is better by
    more than the gap.
    """
    until = time.monotonic() + effort.time_limit_s
    best, value, bound, proven = None, math.inf, math.inf, True
    first = -1 if hint is None else int(tables.kinds[tables.chain[0]].clock[hint[0]])
    order = sorted(range(tables.num_clocks), key=lambda f: (f != first, -f))
    for level in order:
        floor = level_floors[level] if len(level_floors) else -math.inf
        if floor >= value * (1 - effort.relative_gap):  # also where neither holds any plan
            bound = min(bound, floor)
            continue
        masks = [t.clock == level for t in tables.kinds]
        part = restrict(tables, masks)
        if part is None:
            continue
        rows = [np.flatnonzero(mask) for mask in masks]
        below = None if best is None else math.floor(value * (1 - effort.relative_gap))
        known = None
        if level == first and hint is not None:
            known = np.array(
                [int(np.searchsorted(rows[k], m)) for k, m in zip(tables.chain, hint, strict=True)], np.int64
            )
        left = replace(effort, time_limit_s=until - time.monotonic())
        outcome = _one(
            part, objective, left, 1, level=level, below=below, hint=known, on_solution=on_solution
        )
        proven = proven and outcome.proven
        bound = min(bound, outcome.bound)
        if outcome.picked is not None:
            picked = np.array(
                [rows[k][m] for k, m in zip(tables.chain, outcome.picked, strict=True)], np.int64
            )
            found = _value(part, objective, outcome.picked)
            if found < value:
                best, value = picked, found
    return Outcome(picked=best, bound=bound, proven=proven, infeasible=proven and best is None)


def _value(tables: Tables, objective: Objective, picked: Ints) -> float:
    return Goal.of(tables, objective).value(totals_of(tables, picked))


def _one(
    tables: Tables,
    objective: Objective,
    effort: Effort,
    num_segments: int,
    *,
    hint: Ints | None,
    on_solution: Callable[[float, float], None] | None,
    level: int = 0,
    below: int | None = None,
) -> Outcome:
    """Build and solve one model; `level` is that of a governed model, `below` the most a plan may cost."""
    model = build_model(tables, num_segments)
    add_limits(model, level)
    model.minimise(objective, below)
    if hint is not None:
        add_hint(model, hint)
    solver, status = solve_model(model.cp, effort, on_solution)
    if status == cp_model.INFEASIBLE:
        if below is not None:  # nothing is better than the plan that is known
            return Outcome(picked=None, bound=below, proven=True)
        return Outcome(picked=None, bound=math.inf, proven=True, infeasible=True)
    if status == cp_model.UNKNOWN:
        return Outcome(picked=None, bound=solver.best_objective_bound, proven=False)
    return Outcome(
        picked=rows_of(model, solver),
        bound=solver.best_objective_bound,
        proven=status == cp_model.OPTIMAL,
    )


def solve_model(
    model: cp_model.CpModel, effort: Effort, on_solution: Callable[[float, float], None] | None = None
) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus]:
    """Run one model.

    Raises:
        SolverError: OR-Tools rejects the model (a number too large for its arithmetic).
    """
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = effort.num_workers
    parameters.random_seed = effort.seed
    parameters.max_time_in_seconds = max(effort.time_limit_s, 0.01)
    if effort.deterministic_time is not None:
        parameters.max_deterministic_time = effort.deterministic_time
    parameters.relative_gap_limit = effort.relative_gap
    parameters.cp_model_presolve = effort.presolve
    parameters.cp_model_probing_level = effort.probing_level
    parameters.linearization_level = effort.linearization_level
    # Works around OR-Tools issue 5293 (9.15 certifies a wrong optimum in one presolve step).
    parameters.presolve_inclusion_work_limit = 0
    status = solver.solve(model, _Listener(on_solution) if on_solution else None)
    if status == cp_model.MODEL_INVALID:
        raise SolverError(f"OR-Tools rejects the model: {model.validate()}")
    return solver, status


class _Listener(cp_model.CpSolverSolutionCallback):
    def __init__(self, on_solution: Callable[[float, float], None]) -> None:
        super().__init__()
        self._on_solution = on_solution

    def on_solution_callback(self) -> None:
        self._on_solution(self.objective_value, self.best_objective_bound)


def add_hint(model: Model, picked: Ints) -> None:
    """Hint a whole plan: counts, cuts, clocks. Plans with more stays than segments are left out."""
    tables = model.tables
    clocks = np.array([tables.kinds[k].clock[m] for k, m in zip(tables.chain, picked, strict=True)], np.int64)
    spans = len(clocks)
    cuts = [0, *(np.flatnonzero(clocks[1:] != clocks[:-1]) + 1).tolist(), spans]
    if model.num_segments == 1:
        cuts = [0, spans]
    if len(cuts) - 1 > model.num_segments:
        return
    cuts += [spans] * (model.num_segments + 1 - len(cuts))
    for s in range(model.num_segments):
        part = slice(cuts[s], cuts[s + 1])
        for k, table in enumerate(tables.kinds):
            rows = picked[part][tables.chain[part] == k]
            uses = np.bincount(rows, minlength=len(table.origin))
            for m, n in enumerate(uses.tolist()):
                model.cp.add_hint(model.counts[s, k, m], n)
        if model.clock:
            at = int(clocks[min(cuts[s], spans - 1)])
            for f, literal in enumerate(model.clock[s]):
                model.cp.add_hint(literal, f == at)
        if model.active:
            model.cp.add_hint(model.active[s], cuts[s + 1] > cuts[s])
    for variable, at in zip(model.cut, cuts, strict=False):
        model.cp.add_hint(variable, at)
