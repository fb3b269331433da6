"""The judge on plans small enough to do by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solver import Limits, Option, Problem, ProblemError, SpanKind, judge, require_valid

OFF_THE_SCALE = Option(label="", clock=9, time_us=1, energy_mj=1)


def two_clock_problem() -> Problem:
    a = SpanKind(
        name="a",
        options=(
            Option(label="fast", clock=1, time_us=100, energy_mj=10, rungs=(("ag", 8),), memory_bytes=5),
            Option(
                label="slow", clock=0, time_us=150, energy_mj=6, rungs=(("ag", 4),), changes=1, carry_us=20
            ),
        ),
    )
    return Problem(
        clocks_mhz=(1000, 1500),
        kinds=(a,),
        chain=(0, 0, 0),
        static_power_mw=10_000,
        switch_time_us=30,
        switch_energy_mj=2,
        rung_memory_bytes=100,
    )


def test_time_energy_switches_and_memory_by_hand() -> None:
    judged = judge(two_clock_problem(), (0, 1, 0))
    # 100 + (150 + 20) + 100 and two switches of 30; 26 mJ + 4 + 10 W * 430 us = 4.3 mJ, rounded up
    assert (judged.time_us, judged.switches, judged.energy_mj) == (430, 2, 26 + 4 + 5)
    assert judged.memory_bytes == 5 + 200
    assert judged.changes == 1
    assert judged.violations == ()


def test_wrap_around_counts_only_in_a_cyclic_step() -> None:
    problem = two_clock_problem()
    assert judge(problem, (0, 1, 1)).switches == 2
    assert judge(replace(problem, cyclic=False), (0, 1, 1)).switches == 1


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        (Limits(time_us=429), "time 430"),
        (Limits(energy_mj=34), "energy 35"),
        (Limits(average_power_mw=81_000), "average power 81395"),
        (Limits(memory_bytes=204), "memory 205"),
    ],
)
def test_each_limit_is_named_with_both_figures(limits: Limits, word: str) -> None:
    (violation,) = judge(replace(two_clock_problem(), limits=limits), (0, 1, 0)).violations
    assert word in violation
    assert "limit of" in violation


def test_too_many_budgets_of_one_ladder() -> None:
    (violation,) = judge(replace(two_clock_problem(), max_rungs=1), (0, 1, 0)).violations
    assert "'ag' uses 2 budgets [4, 8], at most 1" in violation


def test_dwell_joins_first_and_last_stay_of_a_cyclic_step() -> None:
    problem = replace(two_clock_problem(), min_dwell_us=170)
    assert judge(problem, (0, 1, 0)).violations == ()  # 170 between switches, 100 + 100 around the wrap
    assert "170 us" in judge(replace(problem, min_dwell_us=171), (0, 1, 0)).violations[0]
    assert judge(replace(problem, min_dwell_us=171), (0, 0, 0)).violations == ()


def test_uniform_clock_forbids_switches() -> None:
    assert judge(replace(two_clock_problem(), uniform_clock=True), (0, 1, 0)).violations
    assert not judge(replace(two_clock_problem(), uniform_clock=True), (1, 1, 1)).violations


def test_governor_runs_the_highest_level_within_power() -> None:
    kind = SpanKind(
        name="k",
        options=(
            Option(label="d", clock=0, time_us=200, energy_mj=10),
            Option(label="d", clock=1, time_us=100, energy_mj=20),
        ),
    )
    problem = Problem(clocks_mhz=(1, 2), kinds=(kind,), chain=(0,), governed=True)
    generous = replace(problem, limits=Limits(average_power_mw=200_000))
    assert "governor would run 2 MHz" in judge(generous, (0,)).violations[0]
    assert judge(generous, (1,)).violations == ()
    tight = replace(problem, limits=Limits(average_power_mw=199_999))
    assert judge(tight, (0,)).violations == ()


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"clocks_mhz": (2, 1)}, "clocks_mhz"),
        ({"chain": (3,)}, "chain[0]"),
        ({"static_power_mw": -1}, "static_power_mw"),
        ({"governed": True}, "limits.average_power_mw"),
        ({"kinds": (SpanKind(name="x", options=(OFF_THE_SCALE,)),)}, "kinds[0].options[0].clock"),
    ],
)
def test_invalid_problems_are_named_by_path(change: dict[str, object], path: str) -> None:
    with pytest.raises(ProblemError) as error:
        require_valid(replace(two_clock_problem(), **change))
    assert str(error.value).startswith(path + ":")


def test_plan_of_the_wrong_length_is_an_error() -> None:
    with pytest.raises(ProblemError, match="expected 3"):
        judge(two_clock_problem(), (0,))
