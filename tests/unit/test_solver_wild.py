"""Problems at the edges against brute force, and what they once got wrong."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("ortools")

from solver_cases import brute_force
from solver_wild import wild_problem

from solver import Limits, Objective, Option, Problem, SpanKind, Status, judge, solve
from solver.bounds.labels import exact_optimum
from solver.bounds.oracle import Oracle, Shape
from solver.bounds.positions import cut_positions, repeats
from solver.check import LARGEST_HELD_NJ, require_valid
from solver.errors import ProblemError
from solver.plan import Goal
from solver.tables import build_tables

BLOCK = 30


def valid(problem: Problem) -> bool:
    try:
        require_valid(problem)
    except ProblemError:
        return False
    return True


@pytest.mark.parametrize("first", range(0, 150, BLOCK))
def test_edges_equal_brute_force(first: int) -> None:
    for seed in range(first, first + BLOCK):
        problem = wild_problem(seed)
        if not valid(problem):
            continue
        objective = (Objective.ENERGY, Objective.TIME)[seed % 2]
        truth = brute_force(problem, objective)
        found = solve(problem, objective, gap=0.0, tie=0.0)
        if truth is None:
            assert found.status is Status.INFEASIBLE, seed
            expect_true_reasons(problem, found.reason)
            continue
        assert found.status is Status.OPTIMAL, seed
        assert (found.time_us if objective is Objective.TIME else found.energy_mj) == truth, seed
        assert found.bound <= truth, seed
        assert not judge(problem, found.choices).violations, seed


def expect_true_reasons(problem: Problem, reason: str) -> None:
    """What a reason calls the least possible is proven, and what it calls enough is reached."""
    assert reason
    for name, objective, unit in (("time_us", Objective.TIME, "us"), ("energy_mj", Objective.ENERGY, "mJ")):
        told = re.search(rf"at least (\d+) {unit} is needed(?:, (\d+) {unit} is enough)?", reason)
        if told:
            limit = getattr(problem.limits, name)
            least = brute_force(replace(problem, limits=replace(problem.limits, **{name: None})), objective)
            assert least is not None
            assert limit < int(told[1]) <= least == int(told[2] or told[1]), reason


def three_clock_unit(rng: np.random.Generator) -> Problem:
    """A unit of two or three kinds repeated three to five times; kinds like different clocks best."""
    kinds = tuple(
        SpanKind(
            name=f"k{k}",
            options=tuple(
                Option(label="o", clock=f, time_us=100, energy_mj=int(rng.integers(1, 200))) for f in range(3)
            ),
        )
        for k in range(int(rng.integers(2, 4)))
    )
    chain = tuple(range(len(kinds))) * int(rng.integers(3, 6))
    return Problem(
        clocks_mhz=(1000, 1100, 1200),
        kinds=kinds,
        chain=chain,
        switch_energy_mj=int(rng.integers(1, 40)),
        cyclic=bool(rng.integers(0, 2)),
    )


def test_places_left_out_never_hold_a_cheaper_path() -> None:
    rng = np.random.default_rng(0)
    left_out = 0
    for _ in range(60):
        tables = build_tables(three_clock_unit(rng))
        assert tables is not None
        oracle, spans = Oracle(tables), len(tables.chain)
        for stays in (2, 3, 4, 5, 6):
            windows = np.tile(np.array([1, spans], np.int64), (stays - 1, 1))
            shape = Shape(stays=stays, open_end=False, allowed=np.ones((stays, 3), np.bool_), windows=windows)
            places = cut_positions(spans, repeats(tables.chain), stays - 1, {1, spans})
            everywhere = np.arange(1, spans + 1, dtype=np.int64)
            left_out += len(everywhere) - len(places)
            few, all_of_them = (
                oracle.cheapest([(shape, 1.0, 1.0)], at)[0].value for at in (places, everywhere)
            )
            assert math.isclose(few, all_of_them), (tables.chain, stays)
    assert left_out > 0


def test_a_step_that_must_change_its_clock_at_every_span_is_possible() -> None:
    """The pattern tree called it proven impossible: it looked for changes near the ends of the repeated unit."""
    kinds = tuple(
        SpanKind(name=f"k{f}", options=(Option(label="o", clock=f, time_us=100, energy_mj=100),))
        for f in range(2)
    )
    problem = Problem(
        clocks_mhz=(1000, 1100),
        kinds=kinds,
        chain=(0, 1) * 3,
        switch_time_us=30,
        switch_energy_mj=100,
        cyclic=False,
    )
    found = solve(problem, gap=0.0, tie=0.0)
    assert (found.status, found.energy_mj, found.switches) == (Status.OPTIMAL, 1100, 5)


def test_the_dynamic_programme_knows_the_rules_of_the_first_span() -> None:
    options = (
        Option(label="cheap", clock=0, time_us=1, energy_mj=1, rungs=(("a", 1),)),
        Option(label="dear", clock=0, time_us=1, energy_mj=9),
    )
    problem = Problem(
        clocks_mhz=(1000,), kinds=(SpanKind(name="k", options=options),), chain=(0,), max_rungs=0
    )
    tables = build_tables(problem)
    assert tables is not None
    assert exact_optimum(tables, Goal.of(tables, Objective.ENERGY), below=math.inf) == 9


def test_a_decision_offered_twice_at_one_clock_is_refused_where_the_clock_is_governed() -> None:
    twice = tuple(Option(label=f"o{m}", decision="d", clock=0, time_us=1 + m, energy_mj=1) for m in range(2))
    problem = Problem(
        clocks_mhz=(1000,),
        kinds=(SpanKind(name="k", options=twice),),
        chain=(0,),
        limits=Limits(average_power_mw=1),
    )
    assert valid(problem)
    with pytest.raises(ProblemError, match=r"kinds\[0\]\.options\[1\]\.decision: .* found 'd'"):
        require_valid(replace(problem, governed=True))


def test_a_power_limit_far_beyond_any_plan_does_no_harm() -> None:
    options = tuple(Option(label=f"o{m}", clock=0, time_us=10 + m, energy_mj=20 - m) for m in range(5))
    problem = Problem(clocks_mhz=(1000,), kinds=(SpanKind(name="k", options=options),), chain=(0,) * 9)
    unlimited = solve(problem, gap=0.0, tie=0.0)
    for limit in (10**9, 10**15):
        found = solve(replace(problem, limits=Limits(average_power_mw=limit)), gap=0.0, tie=0.0)
        assert (found.status, found.energy_mj) == (Status.OPTIMAL, unlimited.energy_mj)
    slow = Option(label="slow", clock=0, time_us=10**10, energy_mj=10**10)
    wide = replace(problem, kinds=(SpanKind(name="k", options=(*options, slow)),))
    with pytest.raises(ProblemError, match=r"limits\.average_power_mw: expected at most 2e\+18 nJ"):
        require_valid(replace(wide, limits=Limits(average_power_mw=LARGEST_HELD_NJ // 10**10)))
