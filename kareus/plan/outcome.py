"""What a solution claims for a schedule, and the claim that is left where the plan is not used."""

from __future__ import annotations

from dataclasses import replace

from kareus.plan.lower import Effects
from kareus.plan.problem import StepProblem
from kareus.plan.worst import worst_of
from kareus.schedule import Effect, Proof
from solver import Objective, Solution, Status
from solver.check import judge


def effects(stock: Effect, solution: Solution, *, robust: bool) -> Effects:
    """Return what a schedule claims.

    Args:
        stock: the step as recorded, by the option tables. solution: the plan.
        robust: the bound is one of the worst case; a schedule's bound is one of its nominal figures, so it has none.
    """
    bound = solution.bound if solution.objective is Objective.ENERGY else None
    bound_time = solution.bound if solution.objective is Objective.TIME else float(solution.time_us)
    return Effects(
        stock=stock,
        predicted=Effect(time_us=solution.time_us, energy_j=solution.energy_mj / 1000, source="predicted"),
        bound=Effect(time_us=bound_time, energy_j=None if bound is None else bound / 1000, source="bound")
        if solution.certificate and not robust
        else None,
        proof=Proof(
            status=str(solution.status),
            objective="time" if solution.objective is Objective.TIME else "energy",
            certificate=solution.certificate,
            gap=solution.gap,
            solve_s=solution.solve_s,
            worst_time_us=solution.worst_time_us,
            worst_energy_j=solution.worst_energy_mj / 1000,
        ),
    )


def as_stock(step: StepProblem, solution: Solution, *, robust: bool) -> Solution:
    """Return the stock plan in a solution's clothes; its bound is still the proven one, of what was optimised."""
    judged = judge(replace(step.problem, governed=False), step.stock_choices)
    worst = worst_of(step, step.stock_choices)
    told = worst if robust else judged
    value = told.time_us if solution.objective is Objective.TIME else told.energy_mj
    return replace(
        solution,
        status=Status.FEASIBLE,
        choices=step.stock_choices,
        time_us=judged.time_us,
        energy_mj=judged.energy_mj,
        worst_time_us=worst.time_us,
        worst_energy_mj=worst.energy_mj,
        gap=max(value - solution.bound, 0.0) / value if value else 0.0,
    )
