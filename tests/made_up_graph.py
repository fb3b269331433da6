"""Step graphs of made-up ops, for tests and benchmarks of what comes after the trace reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kareus.trace.types import (
    CollectiveOp,
    EdgeKind,
    KernelClass,
    OpKind,
    OpTable,
    Phase,
    Provenance,
    StepGraph,
)

MAIN = 7  # stream of compute


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeUpOp:
    """One op: its times, and indices of its unit and, where it is a collective, of its row."""

    start_us: float
    end_us: float
    stream: int
    kind: OpKind
    kernel_class: KernelClass
    phase: Phase = Phase.FORWARD
    unit: int = 0
    collective: int = -1


def made_up_graph(
    ops: Sequence[MadeUpOp],
    edges: Sequence[tuple[int, int]],
    collectives: Sequence[CollectiveOp],
    *,
    rank: int,
    world_size: int,
    units: tuple[str, ...],
) -> StepGraph:
    """Return an H200's FSDP2 step of the ops in any order; edges are (before, after) places in `ops`."""
    order = sorted(range(len(ops)), key=lambda i: (ops[i].start_us, i))
    place = {old: new for new, old in enumerate(order)}
    sorted_ops = [ops[i] for i in order]
    start_ns = np.array([round(op.start_us * 1e3) for op in sorted_ops], np.int64)
    end_ns = np.array([round(op.end_us * 1e3) for op in sorted_ops], np.int64)
    n = len(ops)
    unknown = np.full(n, -1, np.int64)
    table = OpTable(
        start_ns=start_ns,
        end_ns=end_ns,
        stream=np.array([op.stream for op in sorted_ops], np.int64),
        kind=np.array([op.kind for op in sorted_ops], np.int8),
        kernel_class=np.array([op.kernel_class for op in sorted_ops], np.int8),
        phase=np.array([op.phase for op in sorted_ops], np.int8),
        name=np.zeros(n, np.int32),
        launch_ns=unknown,
        launch_thread=unknown,
        grid=np.full(n, 1000, np.int32),
        block=np.full(n, 256, np.int32),
        num_bytes=np.zeros(n, np.int64),
        unit=np.array([op.unit for op in sorted_ops], np.int32),
        module=np.full(n, -1, np.int32),
        collective=np.array([op.collective for op in sorted_ops], np.int32),
        alone_ns=end_ns - start_ns,
        correlation=unknown,
        flags=np.zeros(n, np.int32),
    )
    return StepGraph(
        rank=rank,
        world_size=world_size,
        num_sms=132,
        gpu="NVIDIA H200",
        index=0,
        start_ns=0,
        end_ns=int(end_ns.max()),
        ops=table,
        collectives=tuple(collectives),
        names=("kernel",),
        units=units,
        modules=(),
        edges=np.array([(place[a], place[b]) for a, b in edges], np.int64),
        edge_kind=np.full(len(edges), EdgeKind.STREAM, np.int8),
        edge_provenance=np.full(len(edges), Provenance.TRACED, np.int8),
        host_delay_ns=np.zeros(n, np.int64),
        compute_stream=MAIN,
        wrapper="fsdp2",
    )
