"""Never hang, never worse: faults injected over many steps, and the guard against bad schedules.

KAREUS_FAULT_STEPS sets the length of the fault runs (2,000 for a full run; a few minutes).
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from gloo_world import run_world, succeed

pytestmark = [pytest.mark.dist, pytest.mark.slow]
pytest.importorskip("torch")

STEPS = int(os.environ.get("KAREUS_FAULT_STEPS", "120"))
BAD = [
    ("fsdp2", "all_gather", "path"),
    ("fsdp2", "all_gather", "budget"),
    ("fsdp2", "reduce_scatter", "path"),
    ("fsdp2", "reduce_scatter", "budget"),
    ("ddp", "all_reduce", "path"),
    ("ddp", "all_reduce", "budget"),
    ("fsdp2", "all_gather", "compute"),
    ("ddp", "all_reduce", "compute"),
]


@pytest.fixture(scope="module")
def runs() -> dict[str, list[Any]]:
    scenarios = [("faults", {"wrapper": w, "steps": STEPS}) for w in ("fsdp2", "ddp")]
    results = run_world(2, scenarios, module="dist_faults", timeout_s=60 + STEPS)
    return dict(zip(("fsdp2", "ddp"), results, strict=True))


@pytest.mark.timeout(100 + STEPS)
@pytest.mark.parametrize("wrapper", ["fsdp2", "ddp"])
def test_faults_neither_hang_nor_change_a_bit(runs: dict[str, list[Any]], wrapper: str) -> None:
    for result in succeed(runs[wrapper]):
        assert result["equal"], result
        assert result["scheduled"] > STEPS // 10
        assert "boundary_failed" not in result["counts"], result["counts"]


@pytest.fixture(scope="module")
def guarded() -> list[list[Any]]:
    scenarios: list[tuple[str, dict[str, Any]]] = [
        ("bad_schedule", {"wrapper": w, "kind": k, "knob": n}) for w, k, n in BAD
    ]
    return run_world(2, [*scenarios, ("good_schedule", {})], module="dist_faults")


@pytest.mark.parametrize("index", range(len(BAD)), ids=["-".join(bad) for bad in BAD])
def test_bad_schedule_is_back_at_stock_within_20_steps(guarded: list[list[Any]], index: int) -> None:
    results = succeed(guarded[index])
    for result in results:
        assert result["equal"]
        assert result["scheduled"] <= 20, result
        assert result["last"] == ["stock"] * 5
        assert result["guard"]["verdict"] == "worse", result
        assert "slower than stock" in result["reason"]
    assert results[0]["guard"] == results[1]["guard"]


def test_good_schedule_stays(guarded: list[list[Any]]) -> None:
    for result in succeed(guarded[-1]):
        assert result["state"] == "replay", result
        assert result["guard"]["verdict"] == "better"
