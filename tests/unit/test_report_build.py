"""From a real recorded step and a schedule to the page, the Perfetto file and the frontier plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kareus.cli.main import main
from kareus.errors import InputError
from kareus.report.build import Context, RankInput, build_report
from kareus.report.data import ReportData, Source
from kareus.report.frontier_file import read_frontier
from kareus.report.tracks import collective_effects, recorded
from kareus.schedule import Decision, Effect, Schedule
from kareus.trace.graph import graphs
from kareus.trace.identity import collective_key, fingerprint
from kareus.trace.ranks import TraceSet
from kareus.trace.stats import step_times
from kareus.trace.types import I64, PowerSamples, StepGraph

TRACE = Path(__file__).parents[2] / "traces" / "fsdp2-nvlink-default"


class Played:
    """A simulation that replays the recording, faster by a factor."""

    def __init__(self, graph: StepGraph, factor: float) -> None:
        self.time_us = graph.duration_ns * factor / 1e3
        self.energy_j = 80 * factor
        self.op_start_ns: tuple[I64, ...] = (self._scaled(graph.ops.start_ns - graph.start_ns, factor),)
        self.op_end_ns: tuple[I64, ...] = (self._scaled(graph.ops.end_ns - graph.start_ns, factor),)

    @staticmethod
    def _scaled(times: I64, factor: float) -> I64:
        return np.round(times * factor).astype(np.int64)


@pytest.fixture(scope="module")
def graph() -> StepGraph:
    return graphs(TraceSet.open(TRACE).load(1))[-1]


@pytest.fixture(scope="module")
def schedule(graph: StepGraph) -> Schedule:
    keys = [collective_key(c) for c in graph.collectives]
    decisions = tuple(Decision(collective=key, num_ctas=8) for key in keys if key is not None)
    return Schedule(
        fingerprint=fingerprint(graph),
        decisions=decisions,
        forward_prefetch=2,
        stock=Effect(time_us=128_000, energy_j=89.0, source="predicted"),
        predicted=Effect(time_us=120_000, energy_j=84.0, source="predicted"),
        bound=Effect(time_us=120_000, energy_j=83.16, source="bound"),
        notes=("a note of the schedule",),
    )


@pytest.fixture(scope="module")
def built(graph: StepGraph, schedule: Schedule) -> ReportData:
    rank = RankInput(
        graph=graph, planned_graph=graph, stock=Played(graph, 1.01), scheduled=Played(graph, 0.95)
    )
    context = Context(subject="a trace", verified=False, serialised=Played(graph, 1.1))
    return build_report([rank], schedule, context)


def test_breakdown_equals_that_of_inspect(graph: StepGraph, built: ReportData) -> None:
    times = step_times(graph)
    parts = built.before
    assert parts.span_us == pytest.approx(times.time_us)
    assert parts.compute_us == pytest.approx(times.compute_us, abs=0.01)
    assert parts.comm_us == pytest.approx(times.comm_us, abs=0.01)
    assert parts.exposed_us == pytest.approx(times.exposed_comm_us, abs=0.01)


def test_figures_and_their_sources(graph: StepGraph, built: ReportData) -> None:
    assert built.title == "FSDP2 on 2 \u00d7 NVIDIA H200"
    assert (built.recorded.time_us, built.recorded.source) == (graph.duration_ns / 1e3, Source.MEASURED)
    assert built.composition_error == pytest.approx(0.01)
    assert built.scheduled.source is Source.PREDICTED
    assert built.solver is not None
    assert built.solver.gap == pytest.approx(0.01)
    assert built.stock_parts is not None
    assert built.stock_parts.span_us == pytest.approx(1.01 * graph.duration_ns / 1e3, rel=1e-6)
    assert built.parts_error == pytest.approx(128_000 / built.stock.time_us - 1)
    assert "a note of the schedule" in built.notes


def test_without_a_frontier_file_the_plot_has_simulated_points(built: ReportData) -> None:
    view = built.frontier
    assert view is not None
    assert view.points == ()
    assert view.serialised is not None
    assert view.serialised.energy_j == pytest.approx(88.0)


def test_every_op_is_drawn_once_and_compute_comes_first(graph: StepGraph, built: ReportData) -> None:
    (view,) = built.ranks
    for _, timeline in view.sides:
        ops = [piece.op for track in timeline.tracks for piece in track.slices]
        assert sorted(ops) == list(range(len(graph.ops)))
        assert timeline.tracks[0].name == f"compute, stream {graph.compute_stream}"


def test_collectives_say_what_the_schedule_gives_them(graph: StepGraph, built: ReportData) -> None:
    (view,) = built.ranks
    details = [
        {piece.detail for track in timeline.tracks for piece in track.slices if piece.kind.is_communication}
        for timeline in (view.before, view.after)
    ]
    assert all(text.startswith("24 CTAs, ") for text in details[0])
    assert all(text.startswith("8 CTAs, ") for text in details[1])
    assert sum(row.count for row in built.decisions) == len(graph.collectives)
    assert all(row.change == "at most 8 CTAs" for row in built.decisions)


def test_exposed_parts_add_up_to_the_steps_exposed_communication(graph: StepGraph) -> None:
    """Collectives of this trace overlap each other little; each part is exposed only outside compute."""
    times = (graph.ops.start_ns, graph.ops.end_ns)
    effects = collective_effects(graph, times, times)
    assert len(effects) == len(graph.collectives)
    assert sum(e.exposed_us[0] for e in effects) >= step_times(graph).exposed_comm_us - 0.01
    assert all(0 <= e.exposed_us[0] <= e.duration_us[0] for e in effects)


def test_power_samples_of_the_step_become_counters(graph: StepGraph) -> None:
    times = np.array([graph.start_ns - 1, graph.start_ns + 10, graph.end_ns + 1])
    column = np.array([1000, 650_500, 3000])
    power = PowerSamples(time_ns=times, energy_mj=column, power_mw=column, sm_clock_mhz=column * 0)
    counters = recorded(graph, power).counters
    assert [(c.name, c.samples) for c in counters] == [("power W", ((10, 650.5),))]


def test_a_report_needs_a_rank(schedule: Schedule) -> None:
    with pytest.raises(ValueError, match="at least one rank"):
        build_report([], schedule, Context(subject="", verified=False))


def frontier_document(**changes: Any) -> dict[str, Any]:
    point = {"time_us": 100, "energy_j": 2.0}
    proven = {**point, "status": "optimal", "bound_j": 1.99, "gap": 0.005, "certificate": "lagrangian"}
    document = {
        "schema": "kareus.step_frontier/1", "stock": {"time_us": 120, "energy_j": 2.5}, "serialised": point,
        "chosen": point, "knee": 0, "least_energy": -1, "points": [proven],
    }  # fmt: skip
    return {**document, **changes}


def test_frontier_file_marks_its_points(tmp_path: Path) -> None:
    path = tmp_path / "frontier.json"
    path.write_text(json.dumps(frontier_document()))
    view = read_frontier(path)
    assert view.knee is view.points[0]
    assert view.chosen is view.points[0]  # with its bound, as it is a point of the frontier
    assert view.least_energy is None
    assert view.stock is not None
    assert view.stock.bound_j is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"knee": 1}, "knee.*index of its 1 points, found 1"), ({"more": 1}, "unknown field `more`"),
     ({"schema": "kareus.schedule/1"}, "expected .*step_frontier")],
)  # fmt: skip
def test_frontier_file_that_cannot_be_used(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "frontier.json"
    path.write_text(json.dumps(frontier_document(**changes)))
    with pytest.raises(InputError, match=said):
        read_frontier(path)


def test_the_command_writes_page_and_timeline(
    schedule: Schedule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule.save(tmp_path / "s.json")
    page, timeline = tmp_path / "r.html", tmp_path / "p.json"
    code = main(
        [
            "report",
            str(TRACE),
            "--schedule",
            str(tmp_path / "s.json"),
            "-o",
            str(page),
            "--perfetto",
            str(timeline),
        ]
    )
    assert code == 0
    assert capsys.readouterr().out.splitlines()[0] == f"report: {page}"
    text = page.read_text()
    assert "Unverified" in text
    assert "<script" not in text
    names = {
        e["args"]["name"]
        for e in json.loads(timeline.read_text())["traceEvents"]
        if e["name"] == "process_name"
    }
    assert names >= {"rank 1 before (measured)", "rank 0 after (predicted)"}


def test_a_schedule_of_another_job_is_refused(
    schedule: Schedule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule.save(tmp_path / "s.json")
    code = main(["report", str(TRACE.parent / "ddp-nvlink-default"), "--schedule", str(tmp_path / "s.json"),
                 "-o", str(tmp_path / "r.html")])  # fmt: skip
    assert code == 7
    assert "does not fit the recorded job" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()
