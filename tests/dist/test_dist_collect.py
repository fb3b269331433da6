"""Recording on two gloo processes: the same losses, files every tool reads, failures named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gloo_world import run_world, succeed

from kareus.schedule import Schedule
from kareus.trace.carried_out import carried_out, early_gathers
from kareus.trace.graph import graphs
from kareus.trace.ranks import TraceSet
from kareus.trace.types import CollectiveKind, Phase

pytestmark = [pytest.mark.dist, pytest.mark.slow]
pytest.importorskip("torch")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Any]]]:
    base = tmp_path_factory.mktemp("collect")
    (base / "file").touch()
    scenarios: dict[str, dict[str, Any]] = {
        "fsdp2": {"wrapper": "fsdp2", "folders": [str(base / "fsdp2")], "steps": 12},
        "ddp": {"wrapper": "ddp", "folders": [str(base / "ddp")], "steps": 12, "wait": 3, "active": 2},
        "apart": {"wrapper": "fsdp2", "folders": [str(base / "apart0"), str(base / "apart1")], "steps": 11},
        "no disk": {"wrapper": "ddp", "folders": [str(base / "one"), str(base / "file" / "x")], "steps": 11},
        "early end": {"wrapper": "ddp", "folders": [str(base / "early")], "steps": 9},
        "too short": {"wrapper": "ddp", "folders": [str(base / "short")], "steps": 3},
    }
    calls = [("record", parameters) for parameters in scenarios.values()]
    results = run_world(2, calls, module="collect_scenarios")
    return base, dict(zip(scenarios, results, strict=True))


@pytest.mark.parametrize("name", ["fsdp2", "ddp", "apart", "no disk", "early end", "too short"])
def test_losses_are_stock_s_and_no_hook_stays(world: tuple[Path, dict[str, list[Any]]], name: str) -> None:
    for result in succeed(world[1][name]):
        assert result["equal"]
        assert result["extra_hooks"] == 0


def test_fsdp2_recording_reads_as_steps_with_named_units_and_modules(
    world: tuple[Path, dict[str, list[Any]]],
) -> None:
    traces = TraceSet.open(world[0] / "fsdp2")
    assert traces.complete
    assert traces.manifest is not None
    assert traces.manifest.world_size == 2
    assert traces.manifest.missing == {}
    for rank in traces.ranks:
        trace = traces.load(rank)
        assert trace.steps_from == "profiler"
        steps = graphs(trace)
        assert len(steps) == 3
        assert "blocks.1.mlp.0" in trace.modules
        for step in steps:
            assert step.wrapper == "fsdp2"
            kinds = [(c.kind, c.unit, c.phase) for c in step.collectives]
            assert kinds.count((CollectiveKind.ALL_GATHER, "blocks.1", Phase.FORWARD)) == 1
            assert kinds.count((CollectiveKind.REDUCE_SCATTER, "blocks.1", Phase.BACKWARD)) == 1
            assert {c.unit for c in step.collectives} == {"", "blocks.0", "blocks.1", "blocks.2"}
            assert all(c.numel > 0 and c.dtype == "fp32" for c in step.collectives)
            backward = step.ops.phase == Phase.BACKWARD
            assert {step.modules[m] for m in step.ops.module[backward] if m >= 0} >= {
                "blocks.0.mlp.0",
                "head",
            }


def test_ddp_recording_has_buckets_in_order(world: tuple[Path, dict[str, list[Any]]]) -> None:
    traces = TraceSet.open(world[0] / "ddp")
    for rank in traces.ranks:
        steps = graphs(traces.load(rank))
        assert len(steps) == 2
        for step in steps:
            assert step.wrapper == "ddp"
            units = [c.unit for c in step.collectives]
            assert units == [f"bucket.{i}" for i in range(len(units))]
            assert len(units) > 1
            assert traces.manifest is not None
            gradients = traces.manifest.gradients  # what the plan fills other buckets with
            assert sum(g.num_bytes for g in gradients) == sum(c.num_bytes for c in step.collectives)
            assert {g.module for g in gradients} <= set(step.modules)


def test_folders_that_are_not_shared_are_gathered_to_rank_0(
    world: tuple[Path, dict[str, list[Any]]],
) -> None:
    base, results = world
    first, second = succeed(results["apart"])
    assert first["files"] == ["manifest.json", "rank0.json.gz", "rank1.json.gz"]
    assert second["files"] == ["rank1.json.gz"]
    assert (base / "apart0" / "rank1.json.gz").read_bytes() == (
        base / "apart1" / "rank1.json.gz"
    ).read_bytes()


def test_a_rank_that_cannot_write_is_named_and_the_rest_is_readable(
    world: tuple[Path, dict[str, list[Any]]],
) -> None:
    base, results = world
    assert succeed(results["no disk"])[0]["files"] == ["manifest.json", "rank0.json.gz"]
    manifest = json.loads((base / "one" / "manifest.json").read_text())
    assert "rank 1" in manifest["missing"]["1"]
    assert "Not a directory" in manifest["missing"]["1"]
    traces = TraceSet.open(base / "one")
    assert graphs(traces.load(0))
    assert any("1" in warning.text for warning in traces.warnings)


def test_a_job_that_ends_early_keeps_the_steps_it_saw(world: tuple[Path, dict[str, list[Any]]]) -> None:
    traces = TraceSet.open(world[0] / "early")
    assert [len(graphs(traces.load(rank))) for rank in traces.ranks] == [2, 2]
    assert not (world[0] / "short").exists()


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    base = tmp_path_factory.mktemp("replayed")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("under_schedule", {"folder": str(base / "kept"), "steps": 18}),
        ("under_schedule", {"folder": str(base / "judged"), "steps": 14, "guard": True}),
    ]
    return base, run_world(2, calls, module="collect_scenarios")


def test_steps_under_a_schedule_show_what_it_asks_for(replayed: tuple[Path, list[Any]]) -> None:
    base, results = replayed
    for result in succeed(results[0]):
        assert result["equal"]
    schedule = Schedule.load(str(base / "kept.json"))
    traces = TraceSet.open(base / "kept")
    assert traces.manifest is not None
    assert schedule.digest()[:12] in traces.manifest.notes[0]
    for rank in traces.ranks:
        for step in graphs(traces.load(rank)):
            assert early_gathers(step) == schedule.early_gathers == 2
            found = carried_out(step, schedule)
            assert [item.problem for item in found] == [""] * len(schedule.decisions)
            assert sum(item.after_point_us is not None for item in found) >= 4


def test_a_schedule_that_did_not_settle_leaves_no_recording(replayed: tuple[Path, list[Any]]) -> None:
    for result in succeed(replayed[1][1]):
        assert result["equal"]
        assert result["files"] == []


def test_a_rank_that_dies_leaves_the_other_s_file(tmp_path: Path) -> None:
    folder = tmp_path / "dead"
    results = run_world(
        2,
        [("lose_a_rank", {"folder": str(folder), "die_at": 9})],
        module="collect_scenarios",
        timeout_s=60,
        group_timeout_s=10,
    )
    assert results[0][0]["error_seen"] == "RuntimeError"
    traces = TraceSet.open(folder)
    assert traces.ranks == (0,)
    assert traces.manifest is not None
    assert list(traces.manifest.missing) == ["1"]
    assert len(graphs(traces.load(0))) >= 1
