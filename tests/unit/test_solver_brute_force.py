"""Every method of the solver against brute force on small generated problems."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("ortools")

from solver_cases import brute_force, tiny_problem, with_limits

from solver import Objective, Problem, Solution, Status, judge, solve
from solver.engine import Engine, Settings

BLOCK = 20


def value_of(solution: Solution, objective: Objective) -> int:
    return solution.time_us if objective is Objective.TIME else solution.energy_mj


def expect(problem: Problem, objective: Objective, seed: int) -> None:
    truth = brute_force(problem, objective)
    solution = solve(problem, objective, gap=0.0, tie=0.0)
    if truth is None:
        assert solution.status is Status.INFEASIBLE, seed
        assert solution.reason, seed
        return
    assert solution.status is Status.OPTIMAL, seed
    assert value_of(solution, objective) == truth, seed
    assert solution.bound <= truth, seed
    assert not judge(problem, solution.choices).violations, seed


@pytest.mark.parametrize("first", range(0, 120, BLOCK))
def test_solve_equals_brute_force(first: int) -> None:
    for seed in range(first, first + BLOCK):
        problem, objective = with_limits(tiny_problem(seed), seed)
        expect(problem, objective, seed)


@pytest.mark.parametrize("first", range(0, 60, BLOCK))
def test_governed_clock_equals_brute_force(first: int) -> None:
    for seed in range(first, first + BLOCK):
        problem, objective = with_limits(tiny_problem(seed), seed)
        cap = problem.limits.average_power_mw or 180_000
        limits = replace(problem.limits, average_power_mw=cap)
        expect(replace(problem, governed=True, limits=limits), objective, seed)


@pytest.mark.parametrize("first", range(0, 200, 100))
def test_pattern_tree_alone_never_claims_more_than_the_optimum(first: int) -> None:
    for seed in range(first, first + 100):
        problem, objective = with_limits(tiny_problem(seed), seed)
        truth = brute_force(problem, objective)
        engine = Engine(problem, Settings(cpsat=False, gap=0.0, tie=0.0))
        solution = engine.solve(objective, problem.limits, time_limit_s=5.0)
        if truth is None:
            assert not solution.choices, seed
        else:
            assert solution.status is not Status.INFEASIBLE, seed
            assert solution.bound <= truth, seed
            assert not solution.choices or value_of(solution, objective) >= truth, seed


def test_cpsat_without_presolve_agrees() -> None:
    from solver.cpsat.run import Effort, run_cpsat
    from solver.plan import Goal, totals_of
    from solver.tables import build_tables

    for seed in range(25):
        problem, objective = with_limits(tiny_problem(seed), seed)
        truth = brute_force(problem, objective)
        tables = build_tables(problem)
        if tables is None:
            assert truth is None, seed
            continue
        segments = 1 if tables.one_clock or tables.free_switches else len(tables.chain)
        effort = Effort(time_limit_s=20.0, presolve=False)
        outcome = run_cpsat(tables, objective, effort, num_segments=segments)
        assert outcome.proven, seed
        if truth is None:
            assert outcome.infeasible, seed
        else:
            assert outcome.picked is not None
            assert Goal.of(tables, objective).value(totals_of(tables, outcome.picked)) == truth, seed
