"""Intervals of prices: what was recorded has its own spread, what the copy engine carries that engine's."""

from dataclasses import replace

import numpy as np
import pytest
from plan_samples import COST, PLAIN, recorded

from kareus.model.cost import Z90
from kareus.model.span_work import span_work
from kareus.model.uncertainty import uncertainty
from kareus.plan.options import option_table
from kareus.plan.problem import build_problem
from kareus.plan.recorded import recorded_spreads_us, step_spread
from kareus.trace.spans import find_spans
from kareus.trace.types import CollectiveKind

STEP = recorded()
SPANS = find_spans(STEP)


def lengths_us() -> np.ndarray:
    starts = [int(STEP.ops.start_ns[span.compute[0]]) for span in SPANS]
    return np.diff([*starts, STEP.end_ns]) / 1e3


def test_equal_spans_have_their_own_spread_and_single_ones_the_pooled():
    lengths = lengths_us()
    often, single = recorded_spreads_us(STEP, SPANS, [[2, 3, 4, 5], [9]], 0.5)
    assert often == pytest.approx(lengths[2:6].std(ddof=1) / 2)
    assert single == pytest.approx(2 * often / lengths[2:6].mean() * lengths[9])


def test_without_equal_spans_the_spread_of_steps_speaks_or_nothing_does():
    assert recorded_spreads_us(STEP, SPANS, [[3]], 0.02) == [pytest.approx(0.02 * lengths_us()[3])]
    assert recorded_spreads_us(STEP, SPANS, [[3]], None) == [None]
    assert step_spread([STEP, STEP]) is None
    longer = replace(STEP, end_ns=STEP.end_ns + STEP.duration_ns // 10)
    assert step_spread([STEP, longer, STEP]) == pytest.approx(
        np.std([1, 1.1, 1], ddof=1) / np.mean([1, 1.1, 1])
    )


def test_only_the_setting_as_recorded_is_judged_by_the_recording():
    span = next(s for s in SPANS if s.collectives)
    table = option_table(
        "k", span, span_work(STEP, span), 0.0, STEP.collectives, COST, replace(PLAIN, clocks="advise"), (1200, 1600),
        stock_sd_us=[None, 7.0],
    )  # fmt: skip
    for option, row in zip(table.kind.options, table.row, strict=True):
        own = row == table.stock_row and option.clock == 1
        # rounded up one by one: within a microsecond
        assert (abs(option.worst_time_us - option.time_us - Z90 * 7.0) <= 1) == own


def test_a_free_clocks_other_levels_are_not_as_recorded():
    for clocks, levels in (("advise", 1), ("off", None)):
        step = build_problem(STEP, COST, replace(PLAIN, clocks=clocks))
        table = step.tables[step.problem.chain[3]]
        stock = [o for o, row in zip(table.kind.options, table.row, strict=True) if row == table.stock_row]
        spread = [(o.worst_time_us - o.time_us) / o.time_us for o in stock]
        near = [x for x in spread if x < 1.3 * min(spread)]
        assert len(near) == (levels or len(stock))


def test_what_the_copy_engine_carries_is_as_unsure_as_the_copy_engine():
    link = COST.constants["copy_engine.gb_per_s"]
    badly = COST.with_constants(
        {
            "copy_engine.gb_per_s": type(link)(
                value=link.value, low=0.0, high=2 * link.value, unit=link.unit, source="fitted", note=""
            )
        }
    )
    gather = [CollectiveKind.ALL_GATHER]
    assert uncertainty(badly, gather) == uncertainty(COST, gather)
    assert uncertainty(badly, (), copies=True).bandwidth == pytest.approx(1 / Z90)
    assert uncertainty(badly, gather, copies=True).bandwidth == pytest.approx(1 / Z90)

    def worst(cost, engine: bool) -> float:
        step = build_problem(STEP, cost, replace(PLAIN, copy_engine=True))
        table = step.tables[step.problem.chain[0]]  # the first gathers lie open
        return sum(
            o.worst_time_us
            for o, row in zip(table.kind.options, table.row, strict=True)
            if (table.settings.num_ctas[row] == 0).any() == engine
        )

    assert worst(badly, engine=True) > worst(COST, engine=True)
    assert worst(badly, engine=False) == worst(COST, engine=False)
