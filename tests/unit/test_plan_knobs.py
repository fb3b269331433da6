"""Knobs exist only where the recording machine can turn them."""

from __future__ import annotations

import pytest

from kareus.errors import UsageError
from kareus.plan.knobs import knobs_from


def test_a_foreign_trace_gets_the_knobs_that_need_nothing():
    knobs = knobs_from({})
    assert (knobs.cta_budgets, knobs.launch_points, knobs.copy_engine) == (True, True, False)
    assert dict(knobs.reasons) == {"copy_engine": "not shown to work where recorded"}


def test_reasons_of_the_recording_machine_are_kept():
    found = {"cta_budgets": False, "cta_budgets_reason": "NCCL_MAX_CTAS is set", "copy_engine": True}
    knobs = knobs_from(found)
    assert (knobs.cta_budgets, knobs.copy_engine) == (False, True)
    assert dict(knobs.reasons) == {"cta_budgets": "NCCL_MAX_CTAS is set"}


def test_clocks_are_applied_only_where_they_can_be_set():
    refused = {"set_clocks": False, "set_clocks_reason": "no root"}
    with pytest.raises(UsageError, match=r"no root.*--clocks advise"):
        knobs_from(refused, clocks="apply")
    assert knobs_from(refused, clocks="advise").clocks == "advise"
    assert knobs_from({}, clocks="apply").clocks == "apply"


def test_measured_switching_is_in_microseconds():
    knobs = knobs_from({"clock_switch_ms": 12.5, "clock_min_dwell_ms": 200})
    assert (knobs.switch_time_us, knobs.min_dwell_us) == (12_500, 200_000)
