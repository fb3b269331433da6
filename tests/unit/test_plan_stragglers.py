"""Slack of ranks that wait: lower clocks only as far as the slack reaches."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kareus.errors import InputError
from kareus.model.calibrate import calibrated
from kareus.model.cost import CostModel
from kareus.model.simulate import simulate
from kareus.plan.stragglers import USABLE, SlackUse, idle_wait_us, use_slack, with_slack_used
from kareus.schedule import ClockRegion, LaunchPoint, RankClocks, Schedule
from kareus.trace.graph import graphs
from kareus.trace.identity import fingerprint
from kareus.trace.ranks import TraceSet
from kareus.trace.types import StepGraph

TRACES = Path(__file__).parents[2] / "traces"


@cache
def step() -> tuple[StepGraph, CostModel]:
    graph = graphs(TraceSet.open(TRACES / "ddp-nvlink-default").load(0))[-1]
    return graph, calibrated(CostModel.assumed(graph.gpu, graph.num_sms), graph)


def test_no_wait_changes_nothing() -> None:
    found = use_slack(step()[0], 0.0, step()[1])
    assert (found.sm_clock_mhz, found.saved_j, found.slower_us) == (None, 0.0, 0.0)


def test_more_slack_saves_more_and_never_takes_longer_than_it() -> None:
    graph, cost = step()
    uses = [use_slack(graph, share * graph.duration_ns / 1e3, cost) for share in (0.05, 0.2, 0.5)]
    savings = [use.saved_j for use in uses]
    assert savings == sorted(savings)
    assert savings[-1] > savings[0] >= 0
    for use in uses:
        assert use.slower_us <= USABLE * use.wait_us
    clocks = [use.sm_clock_mhz for use in uses if use.sm_clock_mhz is not None]
    assert clocks == sorted(clocks, reverse=True)


def test_a_negative_wait_is_refused() -> None:
    with pytest.raises(InputError):
        use_slack(step()[0], -1.0, step()[1])


def test_only_waits_without_compute_beside_them_are_slack() -> None:
    traces = TraceSet.open(TRACES / "fsdp2-nvlink-default")
    alignment = traces.alignment
    for rank in traces.ranks:
        trace = traces.load(rank)
        all_us = sum(
            float(m.wait_ns[list(m.ranks).index(rank)]) / 1e3
            for m in alignment.collectives
            if rank in m.ranks
        )
        assert 0 <= idle_wait_us(trace, alignment) <= all_us / len(trace.steps)


def test_a_rank_that_always_arrives_late_makes_the_other_one_s_slack() -> None:
    traces = TraceSet.open(TRACES / "fsdp2-nvlink-default")
    trace, alignment = traces.load(1), traces.alignment
    lone = replace(trace, ops=trace.ops.take(np.zeros(0, np.int64)))  # nothing computed beside the waits
    late_ns = 1_000_000
    matched = tuple(
        replace(
            m,
            start_ns=m.start_ns + np.where(m.ranks == 0, late_ns, 0),
            wait_ns=np.where(m.ranks == 0, 0, late_ns),
        )
        for m in alignment.collectives[:1]
    )
    found = idle_wait_us(lone, replace(alignment, collectives=matched))
    assert found == pytest.approx(late_ns / 1e3 / len(trace.steps))


def use(rank: int, clock: int | None) -> SlackUse:
    return SlackUse(rank=rank, wait_us=1000.0, sm_clock_mhz=clock, slower_us=10.0, saved_j=1.0)


def test_slack_becomes_clock_regions_of_the_ranks_that_wait() -> None:
    graph, cost = step()
    plan = Schedule(fingerprint=fingerprint(graph))
    used = with_slack_used(plan, [use(1, 1200), use(2, None), use(3, 1200), use(4, 1000)])
    assert used.rank_clocks == (
        RankClocks(ranks=(1, 3), clocks=(ClockRegion(sm_clock_mhz=1200),)),
        RankClocks(ranks=(4,), clocks=(ClockRegion(sm_clock_mhz=1000),)),
    )
    assert used.clocks_of(0) == used.clocks_of(2) == ()
    assert used.clocks_of(3) == (ClockRegion(sm_clock_mhz=1200),)
    assert used.digest() != plan.digest()
    assert with_slack_used(plan, [use(1, None)]).rank_clocks == ()
    slow = simulate([replace(graph, rank=4)], used, cost)
    assert slow.time_us > simulate([graph], used, cost).time_us


def test_slack_caps_the_plan_s_own_regions() -> None:
    later = LaunchPoint(module="a", phase="backward", side="before")
    regions = (ClockRegion(sm_clock_mhz=1000), ClockRegion(start=later, sm_clock_mhz=1800))
    plan = Schedule(fingerprint=fingerprint(step()[0]), clocks=regions)
    used = with_slack_used(plan, [use(1, 1400)])
    assert used.clocks_of(1) == (regions[0], ClockRegion(start=later, sm_clock_mhz=1400))
    assert used.clocks_of(0) == regions
    assert with_slack_used(plan, [use(1, 1900)]).rank_clocks == ()


def test_a_rank_has_one_part() -> None:
    part = RankClocks(ranks=(1,), clocks=())
    with pytest.raises(ValueError, match="each rank once"):
        Schedule(fingerprint=fingerprint(step()[0]), rank_clocks=(part, part))
