"""The link of the recorded job replaces the model's only where it clearly is another one."""

from __future__ import annotations

import numpy as np
import pytest
from plan_samples import COST

from kareus.model.rates import wire_bytes
from kareus.model.uncertainty import uncertainty
from kareus.plan.calibrate import fit_link
from kareus.trace.ranks import Alignment, Matched
from kareus.trace.types import CollectiveKind

GATHER = CollectiveKind.ALL_GATHER
NAME = "all_gather.gb_per_s"


def recorded(gb_per_s: float, *, num_bytes: int = 1 << 28, complete: bool = True) -> Alignment:
    """Eight all-gathers over two ranks at one wire bandwidth (a byte per ns is a GB/s)."""
    transfer_ns = round(wire_bytes(GATHER, num_bytes, 2) / gb_per_s)
    both = np.array([0, 1])
    one = Matched(
        kind=GATHER,
        num_bytes=num_bytes,
        unit="blocks.0",
        ranks=both,
        start_ns=both,
        end_ns=both + transfer_ns,
        wait_ns=both * 0,
        transfer_ns=transfer_ns,
    )
    return Alignment(
        offset_ns={0: 0, 1: 0}, uncertainty_ns={0: 0, 1: 0}, collectives=(one,) * 8, complete=complete
    )


def test_a_clearly_slower_link_is_used_and_named():
    slow = COST[NAME] / 4
    fitted = fit_link(COST, recorded(slow), 2)
    assert abs(fitted[NAME] / slow - 1) < 1e-3
    assert any("all_gather: this job's link moves" in note for note in fitted.notes)
    assert fitted["reduce_scatter.gb_per_s"] == COST["reduce_scatter.gb_per_s"]


def test_the_same_link_and_small_messages_change_nothing():
    assert fit_link(COST, recorded(COST[NAME] / 1.3), 2) is COST
    assert fit_link(COST, recorded(COST[NAME] / 4, num_bytes=1000), 2) is COST


def test_a_faster_link_is_believed_only_of_a_complete_job():
    fast = COST[NAME] * 3
    assert fit_link(COST, recorded(fast, complete=False), 2) is COST
    assert abs(fit_link(COST, recorded(fast), 2)[NAME] / fast - 1) < 1e-3


def test_a_link_a_thousand_times_slower_is_as_well_known():
    fitted = fit_link(COST, recorded(COST[NAME] / 1000), 2)
    known = uncertainty(COST, [GATHER]).bandwidth
    assert known > 0
    assert uncertainty(fitted, [GATHER]).bandwidth == pytest.approx(known)
