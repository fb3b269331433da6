"""Decisions become sentences; equal changes of many layers become one row."""

from __future__ import annotations

from typing import Literal

import pytest

from kareus.report.words import CollectiveEffect, decision_rows, setting_sentences
from kareus.schedule import ClockRegion, CollectiveKey, Decision, Fingerprint, LaunchPoint, Path, Schedule


def key(unit: str, phase: Literal["forward", "backward"] = "forward") -> CollectiveKey:
    return CollectiveKey(kind="all_gather", unit=unit, phase=phase)


def gated(layer: int) -> Decision:
    point = LaunchPoint(module=f"blocks.{layer - 1}.mlp", phase="forward", side="before")
    return Decision(collective=key(f"blocks.{layer}"), num_ctas=8, launch=point)


def test_layers_that_change_alike_share_a_row() -> None:
    effect = CollectiveEffect(duration_us=(900, 1200), exposed_us=(100, 0))
    (row,) = decision_rows([gated(i) for i in range(1, 8)], [effect] * 7)
    assert row.what == "all-gather, forward, blocks.1 to blocks.7"
    assert row.count == 7
    assert row.change == "at most 8 CTAs; starts before blocks.(n\u22121).mlp (forward)"
    assert row.effect.replace("\u00a0", " ") == (
        "lasts on average 0.90 ms \u2192 1.20 ms; exposed in all 0.70 ms \u2192 0.00 ms"
    )


def test_a_single_collective_is_named_in_full() -> None:
    (row,) = decision_rows([gated(3)], [CollectiveEffect(duration_us=(1, 2), exposed_us=(0, 0))])
    assert (row.what, row.count) == ("all-gather, forward, blocks.3", 1)
    assert row.change == "at most 8 CTAs; starts before blocks.2.mlp (forward)"
    assert row.effect.startswith("lasts 0.00")


def test_stock_decisions_and_unknown_effects_stay_out() -> None:
    rows = decision_rows([Decision(collective=key("blocks.0")), gated(1)])
    assert [(row.count, row.effect) for row in rows] == [(1, "")]


def test_different_changes_get_rows_of_their_own() -> None:
    serialised = Decision(collective=key("", "backward"), serialise=True)
    copied = Decision(collective=key("head"), path=Path.COPY_ENGINE)
    rows = decision_rows([serialised, copied])
    assert [row.what for row in rows] == ["all-gather, backward, root", "all-gather, forward, head"]
    assert [row.change for row in rows] == [
        "runs alone: compute waits for it at once",
        "travels by copy engine, no SMs",
    ]


def test_broken_runs_of_layers_are_listed() -> None:
    decisions = [Decision(collective=key(f"blocks.{i}"), num_ctas=1) for i in (0, 2, 4, 6, 8)]
    (row,) = decision_rows(decisions)
    assert row.what.endswith("blocks.0, blocks.2, blocks.4 and 2 more")
    assert row.change == "at most 1 CTA"


def test_effects_must_match_decisions() -> None:
    with pytest.raises(ValueError, match="zip"):
        decision_rows([gated(1)], [])


def test_settings_of_the_whole_step() -> None:
    schedule = Schedule(
        fingerprint=Fingerprint(wrapper="fsdp2", world_size=2, units=()),
        forward_prefetch=2, backward_prefetch=1, reduce_scatter_deferral=1,
        separate_reduce_scatter_group=True,
        ddp_bucket_cap_mb=25, compute_sm_margin=8, clocks=(ClockRegion(sm_clock_mhz=1410),),
    )  # fmt: skip
    assert setting_sentences(schedule) == (
        "Gathers 2 units ahead in the forward pass.",
        "Gathers 1 unit ahead in the backward pass.",
        "Issues reduce-scatters 1 unit late.",
        "Gives reduce-scatters a communicator of their own.",
        "Sets DDP's bucket size to 25 MB.",
        "Keeps 8 SMs free of matrix products.",
        'Asks for SM clock 1410 MHz for the whole run; carried out only with clocks="apply".',
    )
    assert setting_sentences(Schedule(fingerprint=schedule.fingerprint)) == ()
