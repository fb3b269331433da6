"""The problem of a recorded step: kinds, clock levels, stock and limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from plan_samples import COST, PLAIN, problem_of, recorded

from kareus.errors import InputError
from kareus.model.span_work import span_work
from kareus.plan.problem import build_problem, supported_clocks, with_limits
from kareus.trace.spans import find_spans
from solver import Limits, judge


def test_equal_spans_share_a_kind():
    graph = recorded()
    step = problem_of()
    signatures = [s.signature for s in find_spans(graph)]
    assert len(step.problem.chain) == len(signatures)
    assert len(step.problem.kinds) == len(set(signatures)) < len(signatures)
    for a, kind_a in zip(signatures, step.problem.chain, strict=True):
        for b, kind_b in zip(signatures, step.problem.chain, strict=True):
            assert (a == b) == (kind_a == kind_b)


def test_a_kind_of_several_spans_is_priced_at_their_mean():
    graph, step = recorded(), problem_of()
    kind, count = Counter(step.problem.chain).most_common(1)[0]
    assert count > 1
    spans = [s for s, k in zip(step.spans, step.problem.chain, strict=True) if k == kind]
    means = np.mean([span_work(graph, s).alone_us.sum() for s in spans])
    options = step.problem.kinds[kind].options
    fastest = min(o.time_us for o in options if o.clock == len(step.problem.clocks_mhz) - 1)
    assert fastest >= means * 0.9  # no setting makes compute much faster than it runs alone


def test_the_gpu_runs_the_highest_level_its_power_limit_allows():
    step = problem_of()
    assert step.problem.governed
    assert step.problem.uniform_clock
    judged = judge(step.problem, step.stock_choices)
    assert judged.violations == ()
    level = step.problem.kinds[step.problem.chain[0]].options[step.stock_choices[0]].clock
    assert step.problem.clocks_mhz[level] == step.stock_clock_mhz
    serial = judge(replace(step.problem, governed=False, limits=Limits()), step.serial_choices)
    assert serial.time_us > judged.time_us


def test_free_clocks_span_the_upper_half_of_the_card_and_hold_stocks_own():
    step = problem_of("fsdp2-nvlink-default", replace(PLAIN, clocks="advise"))
    clocks = step.problem.clocks_mhz
    assert not step.problem.governed
    assert clocks[0] >= COST["max_clock_mhz"] / 2
    assert clocks[-1] == round(COST["max_clock_mhz"])
    assert step.stock_clock_mhz in clocks
    assert (step.problem.switch_time_us, step.problem.min_dwell_us) == (10_000, 1_000_000)


def test_supported_clocks_are_the_cards_steps_from_its_top_down():
    clocks = supported_clocks(COST)
    assert clocks[-1] == round(COST["max_clock_mhz"])
    assert set(np.diff(clocks).tolist()) == {15}
    assert clocks[0] >= COST["min_clock_mhz"] > clocks[0] - 15


def test_further_limits_leave_the_cards_own():
    problem = build_problem(recorded(), COST, PLAIN, memory_bytes=7).problem
    limited = with_limits(problem, time_us=5, energy_mj=6)
    assert limited.limits == Limits(
        time_us=5, energy_mj=6, memory_bytes=7, average_power_mw=round(COST["power_limit_w"] * 1000)
    )
    assert problem.rung_memory_bytes == round(COST["communicator_mb"] * 1e6)


def test_a_step_without_compute_is_refused():
    graph = recorded()
    with pytest.raises(InputError, match="no compute kernels"):
        build_problem(replace(graph, compute_stream=-5), COST, PLAIN)
