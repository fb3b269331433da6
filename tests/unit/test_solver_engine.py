"""Statuses, infeasibility, robustness, ties, determinism, and life without OR-Tools."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from solver_cases import tiny_problem

from solver import (
    ContradictionError,
    Limits,
    Objective,
    Option,
    Problem,
    SpanKind,
    Status,
    frontier,
    heuristic,
    judge,
    solve,
)

needs_ortools = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", "import ortools"], check=False).returncode != 0,
    reason="OR-Tools is not installed",
)


def layers(count: int, *, switch_us: int = 0, clocks: int = 3) -> Problem:
    """`count` equal layers whose time grows and energy falls with a lower clock, two budgets each."""
    options = tuple(
        Option(
            label=f"{budget}@{f}",
            clock=f,
            time_us=1000 + 300 * (clocks - 1 - f) + 40 * (budget == 8),
            energy_mj=500 + 45 * f * (f + 1) - 15 * (budget == 8),
            rungs=(("ag", budget),),
            changes=(budget == 8) + (f != clocks - 1),
        )
        for f in range(clocks)
        for budget in (4, 8)
    )
    return Problem(
        clocks_mhz=tuple(1000 + 100 * f for f in range(clocks)),
        kinds=(SpanKind(name="layer", options=options, stock=2 * (clocks - 1)),),
        chain=(0,) * count,
        static_power_mw=50_000,
        switch_time_us=switch_us,
    )


def test_importing_solver_does_not_import_ortools() -> None:
    code = "import sys, solver; sys.exit('ortools' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_ortools_a_heuristic_runs_and_claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solver.engine.find_spec", lambda name: None)
    problem = replace(layers(10), limits=Limits(time_us=11_500))
    solution = solve(problem)
    assert solution.status is Status.HEURISTIC
    assert solution.gap == 1.0
    assert solution.bound == 0.0
    assert not judge(problem, solution.choices).violations


@needs_ortools
def test_heuristic_is_never_better_than_the_optimum() -> None:
    for limit in (10_100, 11_000, 12_000, 14_000):
        problem = replace(layers(10), limits=Limits(time_us=limit))
        greedy = heuristic(problem)
        best = solve(problem, gap=0.0, tie=0.0)
        assert greedy.energy_mj >= best.energy_mj


@needs_ortools
def test_infeasible_limits_name_the_least_possible() -> None:
    solution = solve(replace(layers(10), limits=Limits(time_us=9_999)))
    assert solution.status is Status.INFEASIBLE
    assert "at least 10000 us is needed" in solution.reason
    energy = solve(layers(10), Objective.ENERGY, gap=0.0, tie=0.0).energy_mj
    solution = solve(replace(layers(10), limits=Limits(energy_mj=energy - 1)))
    assert solution.status is Status.INFEASIBLE
    assert f"at least {energy} mJ is needed" in solution.reason
    solution = solve(replace(layers(10), limits=Limits(average_power_mw=60_000)))
    assert solution.status is Status.INFEASIBLE
    assert "average power" in solution.reason


@needs_ortools
def test_switch_cost_keeps_the_best_single_clock() -> None:
    free = solve(replace(layers(12), limits=Limits(time_us=13_000)), gap=0.0, tie=0.0)
    dear = solve(replace(layers(12, switch_us=5_000), limits=Limits(time_us=13_000)), gap=0.0, tie=0.0)
    assert dear.switches == 0
    assert dear.energy_mj >= free.energy_mj


@needs_ortools
def test_robust_optimises_the_worst_case() -> None:
    safe = Option(label="safe", clock=0, time_us=100, energy_mj=11, worst_time_us=101, worst_energy_mj=11)
    risky = Option(label="risky", clock=0, time_us=100, energy_mj=10, worst_time_us=100, worst_energy_mj=20)
    problem = Problem(clocks_mhz=(1000,), kinds=(SpanKind(name="k", options=(safe, risky)),), chain=(0, 0))
    assert solve(problem, gap=0.0).choices == (1, 1)
    robust = solve(problem, gap=0.0, robust=True)
    assert robust.choices == (0, 0)
    assert (robust.energy_mj, robust.worst_energy_mj) == (22, 22)


@needs_ortools
def test_within_noise_fewer_changes_win() -> None:
    stock = Option(label="stock", clock=0, time_us=10_000, energy_mj=10_000)
    other = Option(label="other", clock=0, time_us=10_000, energy_mj=9_999, changes=1)
    problem = Problem(clocks_mhz=(1000,), kinds=(SpanKind(name="k", options=(stock, other)),), chain=(0,) * 8)
    assert solve(problem, tie=0.0, gap=0.0).changes == 8
    calm = solve(problem, tie=1e-3, gap=0.0)
    assert calm.changes == 0
    assert calm.status is Status.OPTIMAL


@needs_ortools
def test_a_bound_above_an_accepted_plan_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solver.engine.PatternTree.bound_beyond", lambda *a: 10.0**9)
    monkeypatch.setattr("solver.engine._Run._cpsat_once", lambda *a: 10.0**9)
    with pytest.raises(ContradictionError, match="cp-sat proves"):
        solve(replace(layers(4), limits=Limits(time_us=4_500)))


@needs_ortools
def test_same_input_same_answer() -> None:
    problem = replace(layers(20, switch_us=200), limits=Limits(time_us=23_456))
    first = solve(problem, deterministic_time=5.0, time_limit_s=60.0)
    second = solve(problem, deterministic_time=5.0, time_limit_s=60.0)
    assert first.choices == second.choices
    assert first.bound == second.bound


@needs_ortools
def test_progress_reports_a_falling_best_and_a_rising_bound() -> None:
    seen = []
    solve(replace(layers(20, switch_us=200), limits=Limits(time_us=23_456)), progress=seen.append)
    assert seen
    assert all(a.bound <= b.bound for a, b in pairwise(seen))
    known = [p.best for p in seen if p.best is not None]
    assert known == sorted(known, reverse=True)


@needs_ortools
def test_frontier_is_pareto_proven_and_marked() -> None:
    curve = frontier(layers(16, switch_us=100), points=8, time_limit_s=30.0)
    times = [p.time_us for p in curve.points]
    energies = [p.energy_mj for p in curve.points]
    assert times == sorted(set(times))
    assert energies == sorted(set(energies), reverse=True)
    assert all(p.status is Status.OPTIMAL and p.gap <= 1e-3 for p in curve.points)
    assert curve.least_energy == len(curve.points) - 1
    assert 0 <= curve.knee < len(curve.points)
    assert curve.stock_time_us == 16_000


@needs_ortools
def test_interruption_returns_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    from solver.bounds.tree import PatternTree

    def interrupt(self: PatternTree, *args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PatternTree, "_plans", interrupt)
    problem = replace(layers(30, switch_us=400), limits=Limits(time_us=34_000))
    solution = solve(problem)
    assert solution.interrupted
    assert not judge(problem, solution.choices).violations
    assert solution.bound <= solution.energy_mj


def test_tiny_problems_are_varied() -> None:
    problems = [tiny_problem(seed) for seed in range(50)]
    assert len({p.cyclic for p in problems}) == 2
    assert len({p.min_dwell_us for p in problems}) == 2
    assert len({p.switch_time_us for p in problems}) == 3
