"""Two processes on gloo: every knob changed, losses and weights equal stock bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
from gloo_world import run_world, succeed

pytestmark = [pytest.mark.dist, pytest.mark.slow]
pytest.importorskip("torch")

SCENARIOS: dict[str, tuple[str, dict[str, Any]]] = {
    "fsdp2": ("fsdp2_every_knob", {}),
    "fsdp2 bf16": ("fsdp2_every_knob", {"bf16": True}),
    "ddp": ("ddp_every_knob", {}),
    "ahead": ("gathers_ahead", {}),
    "mismatch fsdp2": ("other_schedule", {"wrapper": "fsdp2", "on_mismatch": "error"}),
    "mismatch ddp": ("other_schedule", {"wrapper": "ddp", "on_mismatch": "error"}),
    "stock fsdp2": ("other_schedule", {"wrapper": "fsdp2", "on_mismatch": "stock"}),
    "stock ddp": ("other_schedule", {"wrapper": "ddp", "on_mismatch": "stock"}),
}


@pytest.fixture(scope="module")
def world() -> dict[str, list[Any]]:
    return dict(zip(SCENARIOS, run_world(2, list(SCENARIOS.values())), strict=True))


@pytest.mark.parametrize("name", ["fsdp2", "fsdp2 bf16", "ddp"])
def test_every_knob_changes_nothing_but_the_schedule(world: dict[str, list[Any]], name: str) -> None:
    results = succeed(world[name])
    for result in results:
        assert result["equal"], result["report"]
        assert result["arms"].count("scheduled") >= 14
        assert result["report"]["reason"] == ""
    assert results[0]["issued"] == results[1]["issued"]


@pytest.mark.parametrize("name", ["fsdp2", "ddp"])
def test_schedule_really_was_in_force(world: dict[str, list[Any]], name: str) -> None:
    for result in succeed(world[name]):
        arms, hashes = result["arms"], result["issued"]
        scheduled = {h for a, h in zip(arms, hashes, strict=True) if a == "scheduled"}
        observed = {h for a, h in zip(arms, hashes, strict=True) if a == "observe"}
        assert len(scheduled) == 1
        assert not scheduled & observed
        assert len(result["report"]["ladder"]["groups"]) >= 2
        assert result["report"]["arms"]["scheduled"]["missed"] == 0
        assert "path_unavailable" not in result["report"]["counts"]


@pytest.mark.parametrize("name", ["mismatch fsdp2", "mismatch ddp"])
def test_other_schedule_on_one_rank_is_an_error_on_both(world: dict[str, list[Any]], name: str) -> None:
    for result in succeed(world[name]):
        assert result["seconds"] < 10
        assert "rank 1: forward_prefetch is 2 here, rank 0 has 1" in result["message"]


@pytest.mark.parametrize("name", ["stock fsdp2", "stock ddp"])
def test_other_schedule_with_on_mismatch_stock_trains_as_stock(
    world: dict[str, list[Any]], name: str
) -> None:
    for result in succeed(world[name]):
        assert result["equal"]
        assert set(result["arms"]) == {"stock"}
        assert "forward_prefetch" in result["reason"]


def test_gathers_issued_ahead_go_on_beside_compute(world: dict[str, list[Any]]) -> None:
    for result in succeed(world["ahead"]):
        assert result["equal"]
        assert result["background"] == {"observe": [False], "scheduled": [True]}
        assert result["waiting"] == []
        assert all(exposed > 0 for exposed in result["exposed"])
