"""Requested against observed: what a recording shows of the schedule that was in force."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path as File
from typing import Any

import numpy as np
import pytest
from made_up_graph import MAIN, MadeUpOp, made_up_graph

from kareus.cli.main import main
from kareus.report.observed import observed_document, print_observed
from kareus.schedule import CollectiveKey, Decision, Fingerprint, LaunchPoint, Path, Schedule
from kareus.trace.carried_out import carried_out
from kareus.trace.types import CollectiveKind, CollectiveOp, KernelClass, OpKind, Phase, StepGraph

TRACES = File(__file__).parents[2] / "traces"
GATHER = CollectiveKey(kind="all_gather", unit="b.1", phase="forward")
REDUCE = CollectiveKey(kind="reduce_scatter", unit="b.1", phase="backward")


def gemm(start: float, end: float, phase: Phase = Phase.FORWARD) -> MadeUpOp:
    return MadeUpOp(
        start_us=start,
        end_us=end,
        stream=MAIN,
        kind=OpKind.COMPUTE,
        kernel_class=KernelClass.GEMM,
        phase=phase,
    )


def collective(start: float, row: int, phase: Phase) -> MadeUpOp:
    return MadeUpOp(
        start_us=start,
        end_us=start + 50,
        stream=9,
        kind=OpKind.COLLECTIVE,
        kernel_class=KernelClass.COMMUNICATION,
        phase=phase,
        collective=row,
    )


def step(*, gather_at: float, ctas: int = 8, path: str = "nccl", early: bool = False) -> StepGraph:
    """GEMMs of b.0.attention (0 to 100), b.0.mlp (110 to 200) and of backward (300 to 400)."""
    phase = Phase.OPTIMIZER if early else Phase.FORWARD
    ops = [
        gemm(0, 100),
        gemm(110, 200),
        gemm(300, 400, Phase.BACKWARD),
        collective(gather_at, 0, phase),
        collective(410, 1, Phase.BACKWARD),
    ]
    members = [
        CollectiveOp(
            kind=CollectiveKind.ALL_GATHER, unit="b.1", phase=phase, num_ctas=ctas, path=path, num_bytes=64
        ),
        CollectiveOp(
            kind=CollectiveKind.REDUCE_SCATTER, unit="b.1", phase=Phase.BACKWARD, num_ctas=24, num_bytes=64
        ),
    ]
    graph = made_up_graph(ops, [], members, rank=0, world_size=2, units=("b.1",))
    module = np.full(len(graph.ops), -1, np.int32)
    for name, start in (("b.0.attention", 0), ("b.0.mlp", 110)):
        module[graph.ops.start_ns == start * 1000] = ("b.0.attention", "b.0.mlp").index(name)
    return replace(graph, modules=("b.0.attention", "b.0.mlp"), ops=replace(graph.ops, module=module))


def asking(**changes: Any) -> Schedule:
    launch = LaunchPoint(module="b.0.mlp", phase="forward", side=changes.pop("side", "before"))
    return Schedule(
        fingerprint=Fingerprint(wrapper="fsdp2", world_size=2, units=()),
        decisions=(Decision(collective=GATHER, launch=launch, **{"num_ctas": 8, **changes}),),
    )


@pytest.mark.parametrize(
    ("side", "gather_at", "after_us"),
    [("before", 105, 5), ("before", 60, -40), ("after", 205, 5), ("after", 150, -50)],
)
def test_a_start_is_told_from_its_launch_point(side: str, gather_at: float, after_us: float) -> None:
    (found,) = carried_out(step(gather_at=gather_at), asking(side=side))
    assert found.after_point_us == after_us
    assert (found.problem == "") == (after_us > 0)
    if after_us < 0:
        assert found.problem == f"started {-after_us} us before its launch point"


@pytest.mark.parametrize(
    ("ctas", "path", "words"),
    [
        (8, "nccl", ""),
        (4, "nccl", ""),  # NCCL takes fewer where there is little to send
        (24, "nccl", "24 CTAs, 8 requested"),
        (0, "copy_engine", "travelled by the copy engine"),
    ],
)
def test_the_grid_is_held_against_the_budget(ctas: int, path: str, words: str) -> None:
    (found,) = carried_out(step(gather_at=105, ctas=ctas, path=path), asking())
    assert found.problem == words
    assert found.num_ctas == (ctas or None)


def test_a_path_that_was_not_taken_is_named() -> None:
    (found,) = carried_out(step(gather_at=105), asking(num_ctas=None, path=Path.COPY_ENGINE))
    assert found.problem == "travelled by a kernel"


def test_a_collective_that_is_not_there_is_named() -> None:
    other = CollectiveKey(kind="all_gather", unit="b.7", phase="forward")
    schedule = Schedule(
        fingerprint=Fingerprint(wrapper="fsdp2", world_size=2, units=()),
        decisions=(Decision(collective=other, num_ctas=2),),
    )
    (found,) = carried_out(step(gather_at=105), schedule)
    assert not found.found
    assert found.problem == "not in the recorded step"


def test_an_early_gather_is_found_in_the_optimizer_and_its_launch_point_does_not_count() -> None:
    document = observed_document(step(gather_at=600, early=True), asking())
    assert document["early_gathers"] == {"requested": 0, "observed": 1}
    assert document["decisions"][0]["problem"] == ""
    assert document["decisions"][0]["after_point_us"] is None


def test_the_table_groups_requests_and_names_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    print_observed(observed_document(step(gather_at=60, ctas=24), asking()))
    shown = capsys.readouterr().out
    assert "<= 8 CTAs" in shown
    assert "24 CTAs" in shown
    assert "1 of 1 shown, -40 us at least" in shown
    assert (
        "all_gather(b.1, forward): 24 CTAs, 8 requested; started 40 us before its launch point"
        in shown
    )  # fmt: skip


def test_inspect_compares_a_recording_with_the_schedule(
    tmp_path: File, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, schedule = str(TRACES / "fsdp2-nvlink-default"), tmp_path / "s.json"
    Schedule(
        fingerprint=Fingerprint(wrapper="fsdp2", world_size=2, units=()),
        decisions=(
            Decision(
                collective=CollectiveKey(kind="all_gather", unit="blocks.1", phase="forward"), num_ctas=8
            ),
        ),
    ).save(str(schedule))
    assert main(["inspect", trace, "--rank", "0", "--json", "--schedule", str(schedule)]) == 0
    document = json.loads(capsys.readouterr().out)
    (entry,) = document["ranks"][0]["under_schedule"]["decisions"]
    assert entry["observed"] == {"num_ctas": 24, "path": "nccl"}  # it was recorded as stock
    assert entry["problem"] == "24 CTAs, 8 requested"
