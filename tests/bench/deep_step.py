"""A made-up FSDP2 step of many equal layers, for benchmarks of the simulator: nothing in it was recorded."""

from __future__ import annotations

import numpy as np

from kareus.trace.types import (
    CollectiveKind,
    CollectiveOp,
    EdgeKind,
    KernelClass,
    OpKind,
    OpTable,
    Phase,
    Provenance,
    StepGraph,
)

MAIN, GATHER, REDUCE = 7, 22, 23
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
        rows.append((begin, begin + us, stream, kind, kernel_class, phase, unit, collective))
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
        begin = max(begin, rows[previous][1] if previous is not None else 0.0)
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
            now = max(now, rows[gathers[layer]][1])
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
    return _graph(rows, edges, members, layers, rank, world_size)


def _graph(rows, edges, members, layers, rank, world_size):
    order = sorted(range(len(rows)), key=lambda i: (rows[i][0], i))
    place = {old: new for new, old in enumerate(order)}
    columns = list(zip(*(rows[i] for i in order), strict=True))
    start, end = (np.round(np.array(c) * 1e3).astype(np.int64) for c in columns[:2])
    n = len(rows)
    unknown = np.full(n, -1, np.int64)
    table = OpTable(
        start_ns=start,
        end_ns=end,
        stream=np.array(columns[2], np.int64),
        kind=np.array(columns[3], np.int8),
        kernel_class=np.array(columns[4], np.int8),
        phase=np.array(columns[5], np.int8),
        name=np.zeros(n, np.int32),
        launch_ns=unknown,
        launch_thread=unknown,
        grid=np.full(n, 1000, np.int32),
        block=np.full(n, 256, np.int32),
        num_bytes=np.zeros(n, np.int64),
        unit=np.array(columns[6], np.int32),
        module=np.full(n, -1, np.int32),
        collective=np.array(columns[7], np.int32),
        alone_ns=end - start,
        correlation=unknown,
        flags=np.zeros(n, np.int32),
    )
    pairs = np.array([(place[a], place[b]) for a, b in edges], np.int64)
    return StepGraph(
        rank=rank,
        world_size=world_size,
        num_sms=132,
        gpu="NVIDIA H200",
        index=0,
        start_ns=0,
        end_ns=int(end.max()),
        ops=table,
        collectives=tuple(members),
        names=("kernel",),
        units=tuple(f"blocks.{i}" for i in range(layers)),
        modules=(),
        edges=pairs,
        edge_kind=np.full(len(pairs), EdgeKind.STREAM, np.int8),
        edge_provenance=np.full(len(pairs), Provenance.TRACED, np.int8),
        host_delay_ns=np.zeros(n, np.int64),
        compute_stream=MAIN,
        wrapper="fsdp2",
    )
