"""CP-SAT model of a project: one optional interval for each mode."""

from __future__ import annotations

from dataclasses import replace

from ortools.sat.python import cp_model

from solver.cpsat.run import Effort, solve_model
from solver.errors import ContradictionError
from solver.project import Project, ProjectSolution, project_violations
from solver.solution import Status


def run_project(project: Project, *, time_limit_s: float, seed: int, num_workers: int) -> ProjectSolution:
    """Build, solve, check and confirm; see `solver.project.solve_project`.

    CP-SAT 9.15 has certified schedules as optimal that were not. So a second search, with another seed and
    other cuts, must fail to find a shorter one before a schedule counts as optimal.
    """
    effort = Effort(
        time_limit_s=time_limit_s, seed=seed, num_workers=num_workers, linearization_level=1, probing_level=2
    )
    other = Effort(time_limit_s=time_limit_s, seed=seed + 1, num_workers=num_workers, linearization_level=2)
    found = _run(project, effort, at_most=None)
    while found.status is Status.OPTIMAL:
        shorter = _run(project, other, at_most=found.makespan - 1)
        if shorter.status is Status.INFEASIBLE:
            return found
        if shorter.status is Status.UNKNOWN:
            return replace(found, status=Status.FEASIBLE, bound=0)  # its bound was not confirmed
        found = shorter
    return found


def _run(project: Project, effort: Effort, *, at_most: int | None) -> ProjectSolution:
    model = cp_model.CpModel()
    horizon = sum(max(mode.duration for mode in op.modes) for op in project.operations)
    starts = [model.new_int_var(0, horizon, f"start{i}") for i in range(len(project.operations))]
    ends = [model.new_int_var(0, horizon, f"end{i}") for i in range(len(project.operations))]
    uses = []
    for i, op in enumerate(project.operations):
        literals = [model.new_bool_var(f"mode{i}_{m}") for m in range(len(op.modes))]
        model.add_exactly_one(literals)
        intervals = [
            model.new_optional_interval_var(starts[i], mode.duration, ends[i], used, f"run{i}_{m}")
            for m, (mode, used) in enumerate(zip(op.modes, literals, strict=True))
        ]
        uses.append((literals, intervals))
        for successor in op.successors:
            model.add(starts[successor] >= ends[i])
    for r, capacity in enumerate(project.renewable):
        demands = [
            (interval, mode.renewable[r])
            for op, (_, intervals) in zip(project.operations, uses, strict=True)
            for mode, interval in zip(op.modes, intervals, strict=True)
            if mode.renewable[r] and mode.duration
        ]
        model.add_cumulative([d[0] for d in demands], [d[1] for d in demands], capacity)
    for c, capacity in enumerate(project.consumable):
        model.add(
            sum(
                mode.consumed[c] * used
                for op, (literals, _) in zip(project.operations, uses, strict=True)
                for mode, used in zip(op.modes, literals, strict=True)
            )
            <= capacity
        )
    if at_most is not None and at_most < 0:
        return ProjectSolution(status=Status.INFEASIBLE)
    makespan = model.new_int_var(0, horizon if at_most is None else at_most, "makespan")
    model.add_max_equality(makespan, ends)
    model.minimize(makespan)
    solver, status = solve_model(model, effort)
    if status == cp_model.INFEASIBLE:
        return ProjectSolution(status=Status.INFEASIBLE)
    if status == cp_model.UNKNOWN:
        return ProjectSolution(status=Status.UNKNOWN, bound=round(solver.best_objective_bound))
    begun = tuple(solver.value(s) for s in starts)
    modes = tuple(next(m for m, u in enumerate(literals) if solver.value(u)) for literals, _ in uses)
    broken = project_violations(project, begun, modes)
    if broken:
        raise ContradictionError(f"CP-SAT offers a schedule that breaks its rules: {'; '.join(broken)}")
    return ProjectSolution(
        status=Status.OPTIMAL if status == cp_model.OPTIMAL else Status.FEASIBLE,
        starts=begun,
        modes=modes,
        makespan=solver.value(makespan),
        bound=round(solver.best_objective_bound),
    )
