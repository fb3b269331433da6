"""Profiling inside a job on two gloo processes: stock's losses, a profile with a workload, resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gloo_world import run_world, succeed

from kareus.model.profile import Profile

pytestmark = [pytest.mark.dist, pytest.mark.slow]
pytest.importorskip("torch")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[Any]], Profile]:
    base = tmp_path_factory.mktemp("profile")
    once = {"wrapper": "fsdp2", "path": str(base / "fsdp2.json"), "steps": 220, "budget_s": 60}
    ddp = {"wrapper": "ddp", "path": str(base / "ddp.json"), "steps": 90, "budget_s": 60}
    results = run_world(2, [("profile", once), ("profile", ddp)], module="collect_scenarios")
    first = Profile.load(base / "fsdp2.json")
    results += run_world(2, [("profile", {**once, "steps": 100})], module="collect_scenarios")
    return base, results, first


def test_losses_are_stock_s_under_every_setting(world: tuple[Path, list[list[Any]], Profile]) -> None:
    for scenario in world[1]:
        assert all(result["equal"] for result in succeed(scenario))


def test_the_profile_holds_stock_and_settings_of_one_workload(
    world: tuple[Path, list[list[Any]], Profile],
) -> None:
    profile = world[2]
    assert len(profile.workloads) == 1
    (name,) = profile.workloads
    labels = {sample.label for sample in profile.samples}
    assert "stock" in labels
    assert "serialised" in labels
    assert any(s.step is not None and s.step.launch for s in profile.samples)
    assert all(s.step is not None and s.step.workload == name and s.count == 10 for s in profile.samples)
    spans = profile.workloads[name].spans
    assert sum(c.kind == "all_gather" for s in spans for c in s.collectives for _ in range(s.count)) >= 6
    assert all(piece.alone_us > 0 for span in spans for piece in span.compute)


def test_a_second_run_adds_to_the_file_and_keeps_the_workload(
    world: tuple[Path, list[list[Any]], Profile],
) -> None:
    before, after = world[2], Profile.load(world[0] / "fsdp2.json")
    assert after.workloads == before.workloads
    assert after.samples[: len(before.samples)] == before.samples
    assert len(after.samples) > len(before.samples)
    assert len(after.conditions) == 2


def test_ddp_is_profiled_too(world: tuple[Path, list[list[Any]], Profile]) -> None:
    profile = Profile.load(world[0] / "ddp.json")
    kinds = {c.kind for w in profile.workloads.values() for s in w.spans for c in s.collectives}
    assert kinds == {"all_reduce"}
