"""Early gathers offline: what the simulator says of them, and when `kareus solve` takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_samples import COST, recorded

from kareus.cli.main import main
from kareus.model.early import first_gathers
from kareus.model.simulate import Simulation, simulate
from kareus.plan.early import with_early_gathers
from kareus.schedule import Fingerprint, Schedule, UnitShape
from kareus.trace.types import Phase, StepGraph

TRACES = Path(__file__).parents[2] / "traces"
NAME = "fsdp2-nvlink-default"


def schedule(count: int) -> Schedule:
    return Schedule(fingerprint=Fingerprint(wrapper="fsdp2", world_size=2, units=()), early_gathers=count)


def optimizer_start_us(graph: StepGraph, played: Simulation) -> float:
    rows = (graph.ops.phase == Phase.OPTIMIZER) & (graph.ops.stream == graph.compute_stream)
    return float(played.op_start_ns[0][rows].min()) / 1e3


def test_first_gathers_are_those_of_the_first_units_in_forward_order() -> None:
    graph = recorded(NAME)
    units = [graph.collectives[int(graph.ops.collective[op])].unit for op in first_gathers(graph, 3)]
    assert units == ["", "blocks.0", "blocks.1"]
    assert first_gathers(recorded("ddp-nvlink-default"), 3) == []


def test_gathers_move_into_the_optimizer_one_after_the_other_and_the_step_gets_shorter() -> None:
    graph = recorded(NAME)
    stock, early = simulate([graph], schedule(0), COST), simulate([graph], schedule(2), COST)
    assert early.time_us < stock.time_us
    first, second = (float(early.op_start_ns[0][op]) / 1e3 for op in first_gathers(graph, 2))
    assert optimizer_start_us(graph, early) < first < second
    # What they no longer delay begins at once.
    compute = graph.ops.stream == graph.compute_stream
    start = np.sort(early.op_start_ns[0][compute])
    assert start[0] / 1e3 < first
    assert early.notes == ()


def test_a_gather_waits_for_its_units_share_of_the_optimizer() -> None:
    graph = recorded(NAME)
    early = simulate([graph], schedule(1), COST)
    op = first_gathers(graph, 1)[0]
    sizes = [
        graph.collectives[int(graph.ops.collective[other])].num_bytes
        for other in first_gathers(graph, len(graph.ops))
    ]
    rows = (graph.ops.phase == Phase.OPTIMIZER) & (graph.ops.stream == graph.compute_stream)
    share_us = graph.ops.alone_ns[rows].sum() / 1e3 * sizes[0] / sum(sizes)
    assert early.op_start_ns[0][op] / 1e3 >= optimizer_start_us(graph, early) + share_us - 1


def test_a_step_without_an_optimizer_says_that_it_was_not_simulated() -> None:
    graph = recorded(NAME)
    graph.ops.phase[graph.ops.phase == Phase.OPTIMIZER] = Phase.OTHER
    try:
        early = simulate([graph], schedule(1), COST)
        assert early.time_us == simulate([graph], None, COST).time_us
    finally:
        graph.ops.phase[graph.ops.phase == Phase.OTHER] = Phase.OPTIMIZER
    assert "early gathers" in " ".join(early.notes)


def test_the_best_number_is_taken_and_none_where_it_does_not_help() -> None:
    graph = recorded(NAME)
    stock = simulate([graph], schedule(0), COST)

    def by_time(_: Schedule, played: Simulation) -> tuple[float, float]:
        return 0.0, played.time_us

    found, played = with_early_gathers(graph, schedule(0), stock, COST, 3, by_time)
    times = [simulate([graph], schedule(count), COST).time_us for count in range(4)]
    assert played.time_us == times[found.early_gathers]
    assert min(times) >= played.time_us * 0.995
    assert f"the first {found.early_gathers} unit(s)" in found.notes[-1]
    same, _ = with_early_gathers(graph, schedule(0), stock, COST, 3, lambda s, _: (s.early_gathers, 1.0))
    assert same == schedule(0)
    none, _ = with_early_gathers(graph, schedule(0), stock, COST, 0, by_time)
    assert none == schedule(0)


def test_solve_takes_them_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[int, Any] = {}
    for count in (0, 2):
        output = tmp_path / f"s{count}.json"
        common = [str(TRACES / NAME), "--json"]
        assert main(["solve", *common, "--early-gathers", str(count), "-o", str(output)]) == 0
        found[count] = json.loads(capsys.readouterr().out)
        assert Schedule.load(str(output)).early_gathers == found[count]["early_gathers"]
    assert (found[0]["early_gathers"], found[2]["early_gathers"]) == (0, 2)
    times = {count: found[count]["simulated"]["scheduled"]["time_us"] for count in found}
    assert times[2] < times[0]
    assert found[0]["predicted"] == found[2]["predicted"]
    assert main(["simulate", str(TRACES / NAME), "--json", "--schedule", str(tmp_path / "s2.json")]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["scheduled"]["time_us"] == pytest.approx(times[2], rel=0.02)  # every rank is played here


@pytest.mark.parametrize(
    ("trace", "count", "words"),
    [(NAME, "9", "expected 0 to 8 units"), ("ddp-nvlink-default", "1", "no all-gather that names")],
)
def test_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trace: str, count: str, words: str
) -> None:
    arguments = ["solve", str(TRACES / trace), "--early-gathers", count, "-o", str(tmp_path / "s.json")]
    assert main(arguments) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "s.json").exists()


def test_a_ddp_schedule_has_none() -> None:
    fingerprint = Fingerprint(wrapper="ddp", world_size=2, units=(UnitShape(name="", numel=4, dtype="fp32"),))
    with pytest.raises(ValueError, match="early_gathers: expected 0 or more with fsdp2, 0 with ddp, found 1"):
        Schedule(fingerprint=fingerprint, early_gathers=1)
