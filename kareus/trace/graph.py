"""Builds the StepGraph: one step's ops with typed dependency edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kareus.errors import InputError
from kareus.trace.grouping import distinct
from kareus.trace.kineto import compute_stream_of
from kareus.trace.types import (
    I64,
    CollectiveOp,
    EdgeKind,
    OpTable,
    Provenance,
    StepGraph,
    Trace,
)


def graphs(trace: Trace) -> list[StepGraph]:
    """Return the graph of every complete step of a trace, in order."""
    stream, wrapper = compute_stream_of(trace.ops), wrapper_of(trace)
    return [_build(trace, index, stream, wrapper) for index in range(len(trace.steps))]


def build_graph(trace: Trace, index: int) -> StepGraph:
    """Return one step as a graph.

    Ops belong to the step they start in; times stay absolute.

    Raises:
        InputError: the trace has no such step.
    """
    if not 0 <= index < len(trace.steps):
        raise InputError(
            f"{trace.path}: step {index} asked for, the trace holds {len(trace.steps)} complete steps"
        )
    return _build(trace, index, compute_stream_of(trace.ops), wrapper_of(trace))


def _build(trace: Trace, index: int, compute_stream: int, wrapper: str) -> StepGraph:
    start_ns, end_ns = trace.steps[index]
    rows = np.flatnonzero((trace.ops.start_ns >= start_ns) & (trace.ops.start_ns < end_ns))
    ops = trace.ops.take(rows)
    ops, collectives = _own_collectives(ops, trace.collectives)
    local = np.full(len(trace.ops), -1, np.int64)
    local[rows] = np.arange(len(rows))
    table = np.concatenate([_stream_edges(ops), _wait_edges(trace.waits, local)])
    return StepGraph(
        rank=trace.rank,
        world_size=trace.world_size,
        num_sms=trace.num_sms,
        gpu=trace.gpu,
        index=index,
        start_ns=start_ns,
        end_ns=max(end_ns, int(ops.end_ns.max())) if len(ops) else end_ns,
        ops=ops,
        collectives=collectives,
        names=trace.names,
        units=trace.units,
        modules=trace.modules,
        edges=table[:, :2],
        edge_kind=table[:, 2].astype(np.int8),
        edge_provenance=table[:, 3].astype(np.int8),
        host_delay_ns=np.where(ops.launch_ns >= 0, np.maximum(ops.launch_ns - start_ns, 0), 0),
        compute_stream=compute_stream,
        wrapper=wrapper,
    )


def wrapper_of(trace: Trace) -> str:
    """Return "fsdp2" where units are named, "ddp" where gradients are all-reduced in buckets, else ""."""
    if trace.units and any(c.unit in trace.units for c in trace.collectives):
        return "fsdp2"
    return "ddp" if any(c.unit.startswith("bucket.") for c in trace.collectives) else ""


def _own_collectives(
    ops: OpTable, collectives: tuple[CollectiveOp, ...]
) -> tuple[OpTable, tuple[CollectiveOp, ...]]:
    """Re-point `ops.collective` at the step's own list, in issue order."""
    used = distinct(ops.collective[ops.collective >= 0])
    column = np.where(ops.collective >= 0, np.searchsorted(used, ops.collective), -1).astype(np.int32)
    return replace(ops, collective=column), tuple(collectives[i] for i in used)


def _stream_edges(ops: OpTable) -> I64:
    """Rows (source, target, EdgeKind, Provenance) between neighbours on each stream, int64[n, 4]."""
    tables = [np.zeros((0, 4), np.int64)]
    for stream in distinct(ops.stream):
        rows = np.flatnonzero(ops.stream == stream)
        source, target = rows[:-1], rows[1:]
        overlaps = ops.end_ns[source] > ops.start_ns[target]
        provenance = np.where(overlaps, int(Provenance.PRUNED), int(Provenance.TRACED))
        kind = np.full(len(source), int(EdgeKind.STREAM))
        tables.append(np.stack([source, target, kind, provenance], axis=1))
    return np.concatenate(tables)


def _wait_edges(waits: I64, local: I64) -> I64:
    inside = (local[waits[:, 0]] >= 0) & (local[waits[:, 1]] >= 0)
    waits = waits[inside]
    kind = np.full(len(waits), int(EdgeKind.EVENT))
    return np.stack([local[waits[:, 0]], local[waits[:, 1]], kind, waits[:, 2]], axis=1)
