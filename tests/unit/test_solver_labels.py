"""The exact dynamic programme against brute force, and what it drops because it cannot end within the limits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from solver_cases import brute_force, tiny_problem, with_limits
from solver_wild import wild_problem
from test_solver_wild import valid

from solver import Limits, Objective, Problem
from solver.bounds import labels
from solver.bounds.labels import exact_optimum
from solver.plan import Goal
from solver.tables import build_tables


def check(problem: Problem, objective: Objective, seed: int) -> None:
    truth = brute_force(problem, objective)
    tables = build_tables(problem)
    if tables is None:
        assert truth is None, seed
        return
    goal = Goal.of(tables, objective)
    optimum = math.inf if truth is None else truth
    assert exact_optimum(tables, goal, below=math.inf) == optimum, seed
    if truth is not None:
        assert exact_optimum(tables, goal, below=truth) == truth, seed
        assert exact_optimum(tables, goal, below=truth + 0.5) == truth, seed
        assert exact_optimum(tables, goal, below=truth - 1) == math.inf, seed


def test_it_finds_the_optimum_of_tiny_problems() -> None:
    for seed in range(150):
        check(*with_limits(tiny_problem(seed), seed), seed)


def test_it_finds_the_optimum_where_the_clock_is_governed() -> None:
    for seed in range(100):
        problem, objective = with_limits(tiny_problem(seed), seed)
        limits = replace(problem.limits, average_power_mw=problem.limits.average_power_mw or 180_000)
        check(replace(problem, governed=True, limits=limits), objective, seed)


def test_it_finds_the_optimum_at_the_edges() -> None:
    for seed in range(300):
        problem = wild_problem(seed)
        if valid(problem):
            check(problem, (Objective.ENERGY, Objective.TIME)[seed % 2], seed)


def test_a_known_plan_leaves_less_to_extend(monkeypatch: pytest.MonkeyPatch) -> None:
    extended = 0
    plain = labels._Walk.extend

    def counted(self, state, kind, row):
        nonlocal extended
        extended += 1
        return plain(self, state, kind, row)

    monkeypatch.setattr(labels._Walk, "extend", counted)
    problem = replace(tiny_problem(6), chain=(0,) * 12, limits=Limits())
    tables = build_tables(problem)
    assert tables is not None
    goal = Goal.of(tables, Objective.ENERGY)
    optimum = exact_optimum(tables, goal, below=math.inf)
    assert optimum is not None
    everything, extended = extended, 0
    assert exact_optimum(tables, goal, below=optimum) == optimum
    assert 0 < extended < everything / 2
