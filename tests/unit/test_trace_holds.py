"""Kernels that keep the SMs: when what waits for them starts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_up_graph import MAIN, MadeUpOp, made_up_graph

from kareus.trace.holds import Crowd, FirstBlocks, Release
from kareus.trace.lags import learn_ranks
from kareus.trace.replay import replay
from kareus.trace.types import CollectiveKind, CollectiveOp, KernelClass, OpKind, Phase, StepGraph

COMM = 17
FIRST_BLOCKS_US = 600.0


def collective(ordinal: int) -> CollectiveOp:
    return CollectiveOp(
        kind=CollectiveKind.ALL_REDUCE, num_bytes=1 << 20, dtype="bf16", group=(0, 1), group_name="0", group_size=2,
        group_description="", sequence=-1, num_ctas=24, unit=f"bucket.{ordinal}", phase=Phase.BACKWARD,
        ordinal=ordinal, path="nccl", numel=1 << 19,
    )  # fmt: skip


def step(first_ends_us: list[float], *, rank: int = 0, tail_us: float | None = None) -> StepGraph:
    """A GEMM a millisecond that starts beside an all-reduce, and a second all-reduce that waits for room.

    The blocks that found no SM start when the first all-reduce ends, at `first_ends_us` after the GEMM's start, so the
    GEMM lasts longer the later that is; the second all-reduce starts when the GEMM's first blocks end. With
    `tail_us` it starts that long before the GEMM's end instead.
    """
    ops, edges = [], []
    for number, first_us in enumerate(first_ends_us):
        at = 2000.0 * number + 100
        end = at + FIRST_BLOCKS_US + first_us / 2
        held = at + FIRST_BLOCKS_US if tail_us is None else end - tail_us
        place, mine = len(ops), 2 * number
        comm = {"stream": COMM, "kind": OpKind.COLLECTIVE, "kernel_class": KernelClass.COMMUNICATION}
        ops += [
            MadeUpOp(start_us=at - 50, end_us=at + first_us, collective=mine, **comm),
            MadeUpOp(
                start_us=at, end_us=end, stream=MAIN, kind=OpKind.COMPUTE, kernel_class=KernelClass.GEMM
            ),
            MadeUpOp(start_us=held, end_us=held + 900, collective=mine + 1, **comm),
        ]
        edges.append((place, place + 2))
    members = [collective(ordinal) for ordinal in range(2 * len(first_ends_us))]
    graph = made_up_graph(ops, edges, members, rank=rank, world_size=2, units=("",))
    launched_just_before = np.where(np.arange(len(ops)) % 3 < 2, graph.ops.start_ns, 0)
    return replace(graph, host_delay_ns=launched_just_before)


def held_starts_us(graph: StepGraph, start_ns: np.ndarray) -> list[float]:
    """Starts of the second all-reduces, since their GEMM's start."""
    return [float(start_ns[row] - start_ns[row - 1]) / 1000 for row in range(2, len(graph.ops), 3)]


def test_room_comes_when_the_first_blocks_end() -> None:
    learnt = step([150, 350, 250])
    judged = step([400, 100, 300])
    lags = learn_ranks([learnt])[0]
    assert lags.release["holder", ("kernel", 1000, True)] == Release(after_ns=600_000, from_start=True)
    starts = held_starts_us(judged, replay(judged, lags).start_ns)
    assert starts == pytest.approx([600, 600, 600], abs=5)


def test_a_fixed_tail_is_counted_from_the_end() -> None:
    learnt, judged = step([150, 350, 250], tail_us=45), step([400, 100, 300], tail_us=45)
    lags = learn_ranks([learnt])[0]
    assert lags.release["holder", ("kernel", 1000, True)] == Release(after_ns=-45_000, from_start=False)
    starts = held_starts_us(judged, replay(judged, lags).start_ns)
    assert starts == pytest.approx(held_starts_us(judged, judged.ops.start_ns), abs=5)


def test_ranks_tell_together_when_a_kernel_lets_go() -> None:
    """One sample on each rank says nothing about what is constant; both together do."""
    ranks = [step([150]), step([350], rank=1)]
    alone, together = FirstBlocks(), FirstBlocks()
    for number, graph in enumerate(ranks):
        crowd = Crowd(graph)
        ready = [50_000, 100_000, int(graph.ops.end_ns[0])]
        late = [crowd.late(op, ready[op]) for op in range(3)]
        together.add(graph, crowd, late)
        if number == 0:
            alone.add(graph, crowd, late)
    alone.settle()
    together.settle()
    assert alone.after_ns == {}
    assert together.after_ns == {("kernel", 1000, True): 600_000}
    judged = step([250, 400])
    starts = held_starts_us(judged, replay(judged, learn_ranks(ranks)[0]).start_ns)
    assert starts == pytest.approx([600, 600], abs=5)
