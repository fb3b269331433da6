"""Enumeration against products worked out by hand, and kept options against every setting priced again."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from plan_samples import COST, PLAIN, problem_of, recorded

from kareus.model.constants import Constant
from kareus.model.span_cost import evaluate
from kareus.model.span_work import SpanConfigs, span_work
from kareus.plan import options
from kareus.plan.knobs import Knobs
from kareus.plan.options import enumerate_settings, option_table
from kareus.trace.spans import find_spans
from kareus.trace.types import CollectiveKind, CollectiveOp, Span, StepGraph


def busiest(graph: StepGraph, most: int = 3) -> Span:
    spans = [s for s in find_spans(graph) if len(s.collectives) <= most]
    return max(spans, key=lambda s: (len(s.collectives), sum(len(c.positions) for c in s.collectives)))


def wide(graph: StepGraph) -> tuple[CollectiveOp, ...]:
    """The step's collectives, recorded with 24 thread blocks each."""
    return tuple(replace(c, num_ctas=24) for c in graph.collectives)


def test_settings_are_the_full_product_with_stock_and_serialised_first():
    graph = recorded()
    span, members = busiest(graph), wide(graph)
    found = enumerate_settings(span, members, COST, PLAIN)
    expected = 2  # stock, stock serialised
    product = 1
    for member in span.collectives:
        product *= 4 * len(member.positions)  # budgets 2, 8, 16 and stock's 24
    assert len(found) == expected + product
    assert found.num_ctas[:2].tolist() == [[24] * len(span.collectives)] * 2
    assert found.position[:2].tolist() == [[m.stock for m in span.collectives]] * 2
    assert found.serialise.tolist() == [False, True] + [False] * product


def test_no_budget_above_what_stock_holds_and_none_without_the_knob():
    graph = recorded()
    span = busiest(graph)
    few = tuple(replace(c, num_ctas=8) for c in graph.collectives)
    assert set(enumerate_settings(span, few, COST, PLAIN).num_ctas.ravel().tolist()) == {2, 8}
    fixed = Knobs(cta_budgets=False, launch_points=False)
    found = enumerate_settings(span, few, COST, fixed)
    assert set(found.num_ctas.ravel().tolist()) == {8}
    assert {tuple(row) for row in found.position.tolist()} == {tuple(m.stock for m in span.collectives)}


def test_the_copy_engine_takes_all_gathers_only():
    graph = recorded()
    knobs = replace(PLAIN, copy_engine=True)
    for span in find_spans(graph):
        found = enumerate_settings(span, wide(graph), COST, knobs)
        for slot, member in enumerate(span.collectives):
            gather = graph.collectives[member.row].kind == CollectiveKind.ALL_GATHER
            assert (0 in found.num_ctas[:, slot]) == gather


def test_too_many_settings_are_thinned_and_keep_both_ends(monkeypatch: pytest.MonkeyPatch):
    graph = recorded()
    span = busiest(graph)
    monkeypatch.setattr(options, "MAX_SETTINGS", 4 ** len(span.collectives) * 4)
    found = enumerate_settings(span, wide(graph), COST, PLAIN)
    assert len(found) <= options.MAX_SETTINGS + 2
    for slot, member in enumerate(span.collectives):
        assert {min(member.positions), max(member.positions)} <= set(found.position[2:, slot].tolist())


def test_many_buckets_share_one_budget():
    graph = recorded("ddp-nvlink-default")
    span = busiest(graph, most=10**6)
    assert len(span.collectives) > options.FULL_PRODUCT_COLLECTIVES
    found = enumerate_settings(span, wide(graph), COST, PLAIN)
    assert (found.num_ctas == found.num_ctas[:, :1]).all()
    assert set(found.num_ctas[:, 0].tolist()) == {2, 8, 16, 24}


@pytest.mark.parametrize("clocks", ["off", "advise"])
def test_no_kept_option_is_beaten_and_all_that_can_be_optimal_are_kept(clocks: str):
    graph = recorded()
    span, members, knobs = busiest(graph), wide(graph), replace(PLAIN, clocks=clocks)
    work, levels = span_work(graph, span), (1200, 1980)
    table = option_table("span", span, work, 5.0, members, COST, knobs, levels)
    assert table.priced == 2 * len(table.settings)
    kept: list[set[int]] = []
    for level, clock in enumerate(levels):
        costs = evaluate(
            work,
            SpanConfigs(
                num_ctas=table.settings.num_ctas,
                position=table.settings.position,
                serialise=table.settings.serialise,
                sm_clock_mhz=np.full(len(table.settings), float(clock)),
            ),
            COST,
        )
        time_us, energy_mj = np.ceil(costs.time_us + 5.0), np.ceil(costs.energy_j * 1000)
        here = [
            (o, r) for o, r in zip(table.kind.options, table.row.tolist(), strict=True) if o.clock == level
        ]
        rows = {row for _, row in here}
        assert {table.stock_row, table.serial_row} <= rows
        for option, row in here:
            assert (option.time_us, option.energy_mj) == (time_us[row], energy_mj[row])
            assert option.worst_time_us >= option.time_us
        for row in range(len(table.settings)):
            as_good = [k for k in rows if time_us[k] <= time_us[row] and energy_mj[k] <= energy_mj[row]]
            assert as_good, f"setting {row} is beaten by nothing kept"
        kept.append(rows)
    if clocks == "off":  # the governor's next level must know every decision
        assert kept[0] == kept[1]


def test_rungs_leave_out_stock_and_the_copy_engine():
    step = problem_of("fsdp2-nvlink-default", replace(PLAIN, copy_engine=True))
    for table in step.tables:
        for option, row in zip(table.kind.options, table.row.tolist(), strict=True):
            wanted = {
                (key, int(ctas))
                for key, ctas, usual in zip(
                    table.ladders, table.settings.num_ctas[row], table.settings.num_ctas[0], strict=True
                )
                if ctas not in (0, usual)
            }
            assert set(option.rungs) == wanted == table.rungs(row)
            differs = (table.settings.num_ctas[row] != table.settings.num_ctas[0]) | (
                table.settings.position[row] != table.settings.position[0]
            )
            assert option.changes == differs.sum() + table.settings.serialise[row]


@pytest.mark.parametrize("share", [0.002, 0.1, 1.0])
def test_worst_cases_stay_within_what_the_constants_intervals_allow(share: float):
    names = ("all_gather.gb_per_s", "reduce_scatter.gb_per_s")
    cost = COST.with_values({name: COST[name] * share for name in names})
    graph = recorded()
    span = busiest(graph)
    table = option_table("span", span, span_work(graph, span), 5.0, wide(graph), cost, PLAIN, (1980,))
    widest = max(c.relative_halfwidth for c in COST.constants.values() if c.value)
    for option in table.kind.options:
        assert option.time_us < option.worst_time_us <= option.time_us * (1 + 2 * widest)


def test_what_is_unknown_of_collectives_that_do_not_run_widens_nothing():
    graph = recorded("ddp-nvlink-default")  # all-reduces only
    span = busiest(graph, most=10**6)

    def worst(changed: str) -> list[int]:
        old = COST.constants[changed]
        wider = COST.with_constants({changed: replace_interval(old, old.value * 0.01, old.value * 9)})
        table = option_table("span", span, span_work(graph, span), 0.0, wide(graph), wider, PLAIN, (1980,))
        return [o.worst_time_us for o in table.kind.options]

    assert sum(worst("reduce_scatter.gb_per_s")) < sum(worst("all_reduce.gb_per_s"))


def replace_interval(constant: Constant, low: float, high: float) -> Constant:
    return msgspec.structs.replace(constant, low=low, high=high)
