"""Governed steps: level search and prices against brute force, and the clock a plan settles at."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from solver_cases import brute_force, tiny_problem, with_limits

from solver import Limits, Objective, Option, Problem, SpanKind, Status, judge
from solver.bounds.prices import SIDES, Cases, best_prices
from solver.engine import Engine, Settings
from solver.governor import settled
from solver.tables import build_tables, worst_case


def governed(seed: int) -> tuple[Problem, Objective]:
    problem, objective = with_limits(tiny_problem(seed), seed)
    cap = problem.limits.average_power_mw or 180_000
    return replace(problem, governed=True, limits=replace(problem.limits, average_power_mw=cap)), objective


@pytest.mark.parametrize("first", range(200, 260, 20))
def test_level_search_alone_finds_the_optimum_and_its_bound(first: int) -> None:
    for seed in range(first, first + 20):
        problem, objective = governed(seed)
        truth = brute_force(problem, objective)
        engine = Engine(problem, Settings(cpsat=False, gap=0.0, tie=0.0))
        found = engine.solve(objective, problem.limits, time_limit_s=20.0)
        if truth is None:
            assert not found.choices, seed
            continue
        value = found.time_us if objective is Objective.TIME else found.energy_mj
        assert value == truth, seed
        assert found.bound <= truth, seed


def test_best_prices_bound_every_choice_from_below_and_are_tight_on_a_mix() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        cost = rng.uniform(1, 9, (1, 2, 4))
        amount = np.zeros((1, 2, 4, SIDES))
        amount[..., 0] = rng.uniform(0, 5, (1, 2, 4))
        counts, limit = np.array([1.0, 1.0]), np.array([[5.0, 0.0, 0.0]])
        found = best_prices(Cases(counts=counts, cost=cost, amount=amount, limit=limit))
        fits = [
            cost[0, 0, a] + cost[0, 1, b]
            for a in range(4)
            for b in range(4)
            if amount[0, 0, a, 0] + amount[0, 1, b, 0] <= 5.0
        ]
        best = min(fits, default=np.inf)
        assert found.bound[0] <= best + 1e-9
        assert found.bound[0] >= cost.min(axis=2).sum() - 1e-6  # prices of zero prove that much
        if found.rows[0, 0] >= 0:
            assert best <= cost[0, 0, found.rows[0, 0]] + cost[0, 1, found.rows[0, 1]]


def test_prices_refute_what_cannot_fit() -> None:
    amount = np.full((1, 1, 2, SIDES), 3.0)
    cost = np.array([[[1.0, 2.0]]])
    case = Cases(counts=np.array([2.0]), cost=cost, amount=amount, limit=np.full((1, SIDES), 5.0))
    assert best_prices(case).bound[0] == np.inf


def two_levels(power_high_mj: int) -> Problem:
    """One span of 1,000 us at 1,000 MHz or 800 us at 1,200 MHz, with 100 mJ or `power_high_mj`."""
    options = (
        Option(label="low", decision="d", clock=0, time_us=1000, energy_mj=100, worst_energy_mj=150),
        Option(
            label="high", decision="d", clock=1, time_us=800, energy_mj=power_high_mj, worst_energy_mj=200
        ),
    )
    return Problem(
        clocks_mhz=(1000, 1200),
        kinds=(SpanKind(name="k", options=options),),
        chain=(0,),
        governed=True,
        limits=Limits(average_power_mw=160_000),
    )


def test_the_governor_runs_the_highest_clock_within_its_power() -> None:
    cool, hot = two_levels(120), two_levels(130)  # 150 W and 162.5 W at the higher clock, the limit is 160 W
    assert settled(cool, (0,)) == settled(cool, (1,)) == (1,)
    assert settled(hot, (0,)) == settled(hot, (1,)) == (0,)
    assert judge(cool, (0,)).violations
    assert settled(worst_case(cool), (1,)) == (0,)  # 250 W in the worst case
    free = replace(cool, governed=False)
    assert settled(free, (0,)) == (0,)


def test_a_dwell_longer_than_half_a_cyclic_step_leaves_one_clock() -> None:
    problem = replace(two_levels(120), governed=False, chain=(0, 0), min_dwell_us=1_001, limits=Limits())
    tables = build_tables(problem)
    assert tables is not None
    assert tables.one_clock
    short = build_tables(replace(problem, min_dwell_us=1_000))
    assert short is not None
    assert not short.one_clock
    assert Engine(problem, Settings(cpsat=False)).solve(
        Objective.ENERGY, Limits(), time_limit_s=5.0
    ).status in (Status.OPTIMAL, Status.FEASIBLE)


def test_a_limit_that_one_plan_just_meets_leaves_a_bound() -> None:
    """A level that its bound lets in, but that holds no plan within the limits, must not spoil the bound."""
    for seed in range(200, 400):
        problem, _ = governed(seed)
        truth = brute_force(problem, Objective.TIME)
        if truth is None:
            continue
        limits = replace(problem.limits, time_us=truth)
        found = Engine(problem, Settings(cpsat=False, gap=0.0, tie=0.0)).solve(
            Objective.TIME, limits, time_limit_s=20.0
        )
        assert found.time_us == truth, seed
        assert found.bound <= truth, seed
