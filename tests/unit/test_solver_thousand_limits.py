"""The counts model (one segment) and the segments model of CP-SAT at 1,000 limits each, against every plan there is."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

pytest.importorskip("ortools")

from solver_cases import all_plans, tiny_problem

from solver import Limits, Objective, Problem, judge
from solver.cpsat.run import Effort, run_cpsat
from solver.plan import Goal, totals_of
from solver.tables import build_tables

LIMITS = 50  # of each chain
CHAINS = 20  # of each model


def chain_of(seed: int, *, one_clock: bool) -> Problem:
    """A small problem without limits; with one clock for the step, or with costs of changing it."""
    problem = replace(tiny_problem(seed), limits=Limits(), uniform_clock=one_clock)
    if not one_clock and not problem.switch_time_us:
        problem = replace(problem, switch_time_us=30)
    return problem


def points_of(problem: Problem) -> list[tuple[int, int]]:
    """(time, energy) of every plan that keeps the problem's own rules."""
    judged = [judge(problem, plan) for plan in all_plans(problem)]
    return [(j.time_us, j.energy_mj) for j in judged if not j.violations]


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize("one_clock", [True, False], ids=["counts", "segments"])
def test_no_plan_at_a_limit_is_better_and_none_is_missed(one_clock: bool, block: int) -> None:
    met = 0
    for seed in range(block * CHAINS // 4, (block + 1) * CHAINS // 4):
        problem = chain_of(seed, one_clock=one_clock)
        points = points_of(problem)
        times = sorted({time for time, _ in points})
        rng = random.Random(seed)
        for _ in range(LIMITS):
            # a plan's own time, one microsecond less, or anything around: where rounding would show
            limit_us = (rng.choice(times) - rng.randint(0, 1)) if times else rng.randint(100, 2000)
            truth = min((energy for time, energy in points if time <= limit_us), default=None)
            tables = build_tables(replace(problem, limits=Limits(time_us=limit_us)))
            if tables is None:
                assert truth is None, (seed, limit_us)
                continue
            segments = 1 if tables.one_clock else len(tables.chain)
            outcome = run_cpsat(tables, Objective.ENERGY, Effort(time_limit_s=20.0), num_segments=segments)
            assert outcome.proven, (seed, limit_us)
            if truth is None:
                assert outcome.infeasible, (seed, limit_us)
                continue
            assert outcome.picked is not None, (seed, limit_us)
            totals = totals_of(tables, outcome.picked)
            assert Goal.of(tables, Objective.ENERGY).value(totals) == truth, (seed, limit_us)
            met += 1
    assert (
        met > LIMITS * CHAINS // 8
    )  # at least half of a block's limits have plans: else this would show little
