"""Made-up FSDP2 steps of one layer, small enough to try every setting of every collective."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from made_up_graph import MAIN, MadeUpOp, made_up_graph

from kareus.trace.types import CollectiveKind, CollectiveOp, KernelClass, OpKind, Phase, StepGraph

GATHERS, REDUCES = 20, 21  # streams
GB_PER_S = 270.0  # of the recording, about NVLink's between two H200s


def one_layer_step(seed: int) -> StepGraph:
    """Embedding, a block, a head, their backwards and the optimizer; 26 compute ops, three collectives.

    The block's parameters are gathered beside the embedding and again beside head and loss, its gradients reduced
    beside the embedding's backward. A collective takes between a fifth and six fifths of the compute it may run beside.
    """
    rng = random.Random(seed)
    parts = [
        (Phase.FORWARD, 0, 4), (Phase.FORWARD, 1, 6), (Phase.FORWARD, 0, 3), (Phase.BACKWARD, 0, 3),
        (Phase.BACKWARD, 1, 6), (Phase.BACKWARD, 0, 3), (Phase.OPTIMIZER, 0, 1),
    ]  # fmt: skip
    ops: list[MadeUpOp] = []
    firsts, now = [], 0.0
    for phase, unit, count in parts:
        firsts.append(len(ops))
        for _ in range(count):
            kind = rng.choice((KernelClass.GEMM, KernelClass.GEMM, KernelClass.ATTENTION, KernelClass.MEMORY))
            length = rng.uniform(100.0, 900.0)
            ops.append(
                MadeUpOp(
                    start_us=now, end_us=now + length, stream=MAIN, kind=OpKind.COMPUTE, kernel_class=kind,
                    phase=phase, unit=unit,
                )
            )  # fmt: skip
            now += length
    count = len(ops)
    edges = [(i, i + 1) for i in range(count - 1)]
    members: list[CollectiveOp] = []
    for kind, phase, ready, needed in (
        (CollectiveKind.ALL_GATHER, Phase.FORWARD, 0, firsts[1]),
        (CollectiveKind.ALL_GATHER, Phase.BACKWARD, firsts[2], firsts[4]),
        (CollectiveKind.REDUCE_SCATTER, Phase.BACKWARD, firsts[5], firsts[6]),
    ):
        beside = sum(op.end_us - op.start_us for op in ops[ready:needed])
        length = beside * rng.uniform(0.2, 1.2)
        begin = ops[ready].start_us
        edges += [(ready - 1, len(ops))] if ready else []
        edges.append((len(ops), needed))
        stream = REDUCES if kind == CollectiveKind.REDUCE_SCATTER else GATHERS
        ops.append(
            MadeUpOp(
                start_us=begin, end_us=begin + length, stream=stream, kind=OpKind.COLLECTIVE,
                kernel_class=KernelClass.COMMUNICATION, phase=phase, unit=1, collective=len(members),
            )
        )  # fmt: skip
        members.append(
            CollectiveOp(
                kind=kind, num_bytes=round(2 * length * GB_PER_S * 1e3), group=(0, 1), group_name="0",
                unit="blocks.0", phase=phase, num_ctas=24,
            )
        )  # fmt: skip
    graph = made_up_graph(ops, edges, members, rank=0, world_size=2, units=("", "blocks.0"))
    compute = np.flatnonzero(graph.ops.kind == OpKind.COMPUTE)
    module = graph.ops.module.copy()
    module[compute] = np.arange(len(compute))  # a module, and so a hook point, for every op
    names = tuple(f"part{part}.{i}" for part, (_, _, n) in enumerate(parts) for i in range(n))
    return replace(graph, ops=replace(graph.ops, module=module), modules=names)
