"""A made-up FSDP2 step of many equal layers, for benchmarks of the simulator: nothing in it was recorded."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script: what tests share lies one folder up

from made_up_graph import MAIN, MadeUpOp, made_up_graph

from kareus.trace.types import CollectiveKind, CollectiveOp, KernelClass, OpKind, Phase, StepGraph

GATHER, REDUCE = 22, 23
# kernels of a block: class and duration in us, forward; backward takes each GEMM and attention twice
BLOCK = (
    [(KernelClass.MEMORY, 60.0)] * 3
    + [(KernelClass.GEMM, 450.0), (KernelClass.MEMORY, 40.0), (KernelClass.MEMORY, 40.0)]
    + [(KernelClass.ATTENTION, 530.0), (KernelClass.GEMM, 300.0), (KernelClass.MEMORY, 60.0)]
    + [(KernelClass.MEMORY, 60.0)] * 3
    + [(KernelClass.GEMM, 1100.0), (KernelClass.MEMORY, 90.0), (KernelClass.GEMM, 1100.0)]
    + [(KernelClass.MEMORY, 90.0), (KernelClass.GEMM, 1100.0), (KernelClass.MEMORY, 60.0)]
    + [(KernelClass.COPY, 30.0)] * 2
)  # fmt: skip
GATHER_US, REDUCE_US, SHARD_BYTES = 900.0, 950.0, 218_000_000


def deep_step(layers: int, rank: int = 0, world_size: int = 1) -> StepGraph:
    """Return a step: gathers one layer ahead, reduce-scatters one layer behind.

    Args:
        layers: blocks. rank, world_size: of the rank whose step it is.
    """
    rows, edges, members = [], [], []
    now, order = 0.0, 0
    last_of: dict[int, int] = {}

    def add(stream, kind, kernel_class, phase, unit, begin, us, collective=-1):
        rows.append(
            MadeUpOp(
                start_us=begin,
                end_us=begin + us,
                stream=stream,
                kind=kind,
                kernel_class=kernel_class,
                phase=phase,
                unit=unit,
                collective=collective,
            )
        )
        last_of[stream] = len(rows) - 1
        return len(rows) - 1

    def communicate(kind, phase, layer, begin, us):
        stream = GATHER if kind == CollectiveKind.ALL_GATHER else REDUCE
        members.append(
            CollectiveOp(
                kind=kind,
                num_bytes=2 * SHARD_BYTES,
                group=tuple(range(world_size)),
                group_name="0",
                sequence=len(members),
                num_ctas=24,
                unit=f"blocks.{layer}",
                phase=phase,
            )
        )
        previous = last_of.get(stream)
        begin = max(begin, rows[previous].end_us if previous is not None else 0.0)
        found = add(
            stream, OpKind.COLLECTIVE, KernelClass.COMMUNICATION, phase, layer, begin, us, len(members) - 1
        )
        if previous is not None:
            edges.append((previous, found))
        return found

    for phase in (Phase.FORWARD, Phase.BACKWARD):
        sequence = range(layers) if phase == Phase.FORWARD else range(layers - 1, -1, -1)
        kernels = BLOCK if phase == Phase.FORWARD else [k for k in BLOCK for _ in range(2)]
        gathers: dict[int, int] = {}
        for place, layer in enumerate(sequence):
            for ahead in (place, place + 1):
                if ahead < layers and sequence[ahead] not in gathers:
                    gather = communicate(CollectiveKind.ALL_GATHER, phase, sequence[ahead], now, GATHER_US)
                    gathers[sequence[ahead]] = gather
            now = max(now, rows[gathers[layer]].end_us)
            for order, (kernel_class, us) in enumerate(kernels):
                before = last_of.get(MAIN)
                op = add(MAIN, OpKind.COMPUTE, kernel_class, phase, layer, now, us)
                edges += [(before, op)] if before is not None else []
                if order == 0:
                    edges.append((gathers[layer], op))
                now += us
            if phase == Phase.BACKWARD:
                before = last_of[MAIN]
                edges.append(
                    (before, communicate(CollectiveKind.REDUCE_SCATTER, phase, layer, now, REDUCE_US))
                )
    return made_up_graph(
        rows,
        edges,
        members,
        rank=rank,
        world_size=world_size,
        units=tuple(f"blocks.{i}" for i in range(layers)),
    )
