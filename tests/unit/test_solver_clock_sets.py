"""Bounds by sets of clocks against every plan there is, and against CP-SAT where plans are too many to list."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from solver_cases import brute_force, tiny_problem, with_limits

from solver import Limits, Objective, Option, Problem, SpanKind, Status, judge, solve
from solver.bounds import clock_sets
from solver.engine import Engine, Settings

ALONE = Settings(tree=False, cpsat=False, gap=0.0, tie=0.0)


def many_clocks(seed: int) -> Problem:
    """Five clocks, two kinds in three or four spans: sets of more than three clocks occur, and pay."""
    rng = random.Random(seed)
    kinds = []
    for k in range(2):
        options = [
            Option(
                label=f"{f}",
                clock=f,
                time_us=100 + 20 * (4 - f) + rng.randint(0, 60),
                energy_mj=20 + 5 * f + rng.randint(0, 20),
            )
            for f in range(5)
        ]
        kinds.append(SpanKind(name=f"k{k}", options=tuple(options)))
    return Problem(
        clocks_mhz=tuple(range(1000, 1500, 100)),
        kinds=tuple(kinds),
        chain=tuple(rng.randrange(2) for _ in range(rng.randint(3, 4))),
        static_power_mw=rng.choice((0, 50_000)),
        switch_time_us=rng.choice((2, 10)),
        switch_energy_mj=rng.choice((0, 1)),
        cyclic=rng.random() < 0.5,
    )


def alternating(seed: int) -> Problem:
    """Neighbouring spans that like different clocks: many changes of two clocks are best where they cost little,
    and under a power limit a change may be worth its time."""
    rng = random.Random(seed)
    kinds = tuple(
        SpanKind(
            name=f"k{k}",
            options=tuple(
                Option(
                    label=f"{f}", clock=f, time_us=100 + rng.randint(0, 9), energy_mj=20 + 9 * ((f + k) % 2)
                )
                for f in range(2)
            ),
        )
        for k in range(2)
    )
    return Problem(
        clocks_mhz=(1000, 1100),
        kinds=kinds,
        chain=(0, 1, 0, 1, 0, 1)[: rng.randint(3, 6)],
        static_power_mw=rng.choice((0, 50_000)),
        switch_time_us=rng.choice((1, 60)),
        cyclic=rng.random() < 0.5,
    )


def check(problem: Problem, objective: Objective, seed: int) -> bool:
    """Whether the bound met the optimum exactly, after it was found to be none too high."""
    truth = brute_force(problem, objective)
    solution = Engine(problem, ALONE).solve(objective, problem.limits, time_limit_s=5.0)
    if truth is None:
        assert not solution.choices, seed
        return solution.status is Status.INFEASIBLE
    assert solution.status is not Status.INFEASIBLE, seed
    assert solution.bound <= truth, seed
    if solution.choices:
        assert not judge(problem, solution.choices).violations, seed
        value = solution.time_us if objective is Objective.TIME else solution.energy_mj
        assert value >= truth, seed
        return value == solution.bound
    return False


@pytest.fixture(autouse=True)
def no_exact_dynamic_programme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solver.engine.exact_optimum", lambda *args, **kwargs: None)


def test_a_bound_is_never_above_the_optimum() -> None:
    met = sum(check(*with_limits(tiny_problem(seed), seed), seed) for seed in range(200))
    assert met > 40  # bounds that are merely true would be easy


def test_a_bound_is_never_above_the_optimum_where_the_clock_is_governed() -> None:
    met = 0
    for seed in range(150):
        problem, objective = with_limits(tiny_problem(seed), seed)
        limits = replace(problem.limits, average_power_mw=problem.limits.average_power_mw or 180_000)
        met += check(replace(problem, governed=True, limits=limits), objective, seed)
    assert met > 20


def test_what_clock_sets_prove_of_levels_cpsat_need_not_look_at() -> None:
    pytest.importorskip("ortools")
    from solver.cpsat import run

    floors_of, looked = [], []
    every, one = run._every_level, run._one

    def listen(tables, objective, effort, hint, floors, on_solution):
        floors_of.append(list(floors))
        return every(tables, objective, effort, hint, floors, on_solution)

    def count(*args, **kwargs):
        looked.append(kwargs["level"])
        return one(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_every_level", listen)
        patch.setattr(run, "_one", count)
        for seed in range(40):
            problem, objective = with_limits(tiny_problem(seed), seed)
            limits = replace(problem.limits, average_power_mw=problem.limits.average_power_mw or 180_000)
            problem = replace(problem, governed=True, limits=limits)
            truth = brute_force(problem, objective)
            found = Engine(problem, Settings(gap=0.0, tie=0.0)).solve(objective, limits, time_limit_s=20.0)
            if truth is not None:
                value = found.time_us if objective is Objective.TIME else found.energy_mj
                assert value == truth >= found.bound, seed
            assert not {"clock-sets", "cp-sat"} <= set(found.certificate.split("+")), seed
    assert floors_of
    assert len(looked) < sum(len(floors) for floors in floors_of)


def test_a_bound_is_never_above_the_optimum_with_many_clocks() -> None:
    met = sum(check(*with_limits(many_clocks(seed), seed), seed) for seed in range(150))
    assert met > 30


def test_a_bound_is_never_above_the_optimum_where_changes_pay() -> None:
    met = sum(check(*with_limits(alternating(seed), seed), seed) for seed in range(300))
    assert met > 60


def test_many_clocks_in_one_set_give_a_weaker_but_true_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_sets, "_MOST_SETS", 0)
    for seed in range(60):
        check(*with_limits(many_clocks(seed), seed), seed)


def test_sums_beyond_64_bits_are_left_to_the_other_methods() -> None:
    options = (
        Option(label="o", clock=0, time_us=10**11, energy_mj=10**11),
        Option(label="p", clock=0, time_us=10**11 + 1, energy_mj=1),  # a microsecond for a hundred megajoules
    )
    problem = Problem(clocks_mhz=(1000,), kinds=(SpanKind(name="k", options=options),), chain=(0,) * 9)
    assert Engine(problem, ALONE).sets is None


def test_equal_layers_are_proven_without_cpsat(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ortools")
    options = tuple(
        Option(
            label=f"{budget}@{f}",
            clock=f,
            time_us=1000 + 120 * (7 - f) + 40 * (budget == 8),
            energy_mj=400 + 12 * f * f - (9 + f) * (budget == 8),
        )
        for f in range(8)
        for budget in (4, 8)
    )
    problem = Problem(
        clocks_mhz=tuple(1000 + 100 * f for f in range(8)),
        kinds=(SpanKind(name="layer", options=options),),
        chain=(0,) * 60,
        static_power_mw=50_000,
        switch_time_us=300,
    )
    proven = {}
    for limit_us in range(61_000, 110_000, 7_000):
        point = solve(replace(problem, limits=Limits(time_us=limit_us)))
        assert (point.status, point.certificate) == (Status.OPTIMAL, "clock-sets+lagrangian")
        proven[limit_us] = point
    assert any(p.switches for p in proven.values())  # else arcs were never needed
    for limit_us, point in proven.items():
        limits = Limits(time_us=limit_us)
        by_cpsat = Engine(problem, Settings(tree=False, sets=False, gap=1e-5)).solve(
            Objective.ENERGY, limits, time_limit_s=30.0
        )
        assert point.bound <= by_cpsat.energy_mj
        assert by_cpsat.energy_mj * (1 - 1e-5) <= point.energy_mj <= by_cpsat.energy_mj * 1.001
