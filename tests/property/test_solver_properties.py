"""What must hold for any valid problem, and what more freedom may never do."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("ortools")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from solver import Limits, Objective, Option, Problem, Solution, SpanKind, Status, judge, solve

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to twelve spans of up to three kinds, up to three clocks."""
    num_clocks = draw(st.integers(1, 3))
    option = st.builds(
        Option,
        label=st.just("o"),
        clock=st.integers(0, num_clocks - 1),
        time_us=st.integers(0, 400),
        energy_mj=st.integers(0, 60),
        memory_bytes=st.sampled_from((0, 10)),
        rungs=st.sampled_from(((), (("a", 1),), (("a", 2),), (("b", 4),))),
        changes=st.integers(0, 2),
    )
    kinds = draw(
        st.lists(
            st.builds(
                SpanKind, name=st.just("k"), options=st.lists(option, min_size=1, max_size=5).map(tuple)
            ),
            min_size=1,
            max_size=3,
        )
    )
    chain = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=12))
    return Problem(
        clocks_mhz=tuple(range(1000, 1000 + num_clocks)),
        kinds=tuple(kinds),
        chain=tuple(chain),
        static_power_mw=draw(st.sampled_from((0, 90_000))),
        switch_time_us=draw(st.sampled_from((0, 50))),
        switch_energy_mj=draw(st.sampled_from((0, 2))),
        cyclic=draw(st.booleans()),
        max_rungs=draw(st.integers(1, 3)),
        limits=Limits(time_us=draw(st.one_of(st.none(), st.integers(100, 4000)))),
    )


def exact(problem: Problem, objective: Objective = Objective.ENERGY) -> Solution:
    return solve(problem, objective, gap=0.0, tie=0.0, time_limit_s=20.0)


def no_worse(freer: Solution, tighter: Solution) -> None:
    if tighter.choices:
        assert freer.choices
        assert freer.energy_mj <= tighter.energy_mj


@QUICK
@given(problems(), st.sampled_from(list(Objective)))
def test_any_problem_gives_a_checked_plan_or_proven_infeasibility(problem: Problem, objective: Objective):
    solution = exact(problem, objective)
    if solution.choices:
        assert not judge(problem, solution.choices).violations
        value = solution.time_us if objective is Objective.TIME else solution.energy_mj
        assert solution.bound <= value
    else:
        assert solution.status is Status.INFEASIBLE
        assert solution.reason


@QUICK
@given(problems(), st.integers(1, 500))
def test_more_time_never_costs_energy(problem: Problem, more_us: int):
    if problem.limits.time_us is None:
        return
    limits = replace(problem.limits, time_us=problem.limits.time_us + more_us)
    no_worse(exact(replace(problem, limits=limits)), exact(problem))


@QUICK
@given(problems(), st.integers(0, 2))
def test_more_knobs_never_cost_energy(problem: Problem, kind: int):
    kind %= len(problem.kinds)
    extra = Option(label="extra", clock=0, time_us=120, energy_mj=20)
    kinds = list(problem.kinds)
    kinds[kind] = replace(kinds[kind], options=(*kinds[kind].options, extra))
    no_worse(exact(replace(problem, kinds=tuple(kinds))), exact(problem))


@QUICK
@given(problems())
def test_dearer_switches_and_fewer_rungs_never_help(problem: Problem):
    harder = replace(
        problem, switch_time_us=problem.switch_time_us + 70, max_rungs=max(problem.max_rungs - 1, 1)
    )
    no_worse(exact(problem), exact(harder))


@QUICK
@given(problems())
def test_scaling_all_energies_scales_the_answer(problem: Problem):
    def scaled(factor: int) -> Problem:
        kinds = tuple(
            replace(k, options=tuple(replace(o, energy_mj=o.energy_mj * factor) for o in k.options))
            for k in problem.kinds
        )
        return replace(
            problem, kinds=kinds, static_power_mw=0, switch_energy_mj=problem.switch_energy_mj * factor
        )

    one, ten = exact(scaled(1)), exact(scaled(10))
    assert (one.status, one.energy_mj * 10) == (ten.status, ten.energy_mj)
