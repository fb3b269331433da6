"""What a step runs, as the profile stores it: spans of kernels beside collectives, from one recorded step."""

from __future__ import annotations

from collections import defaultdict
from typing import get_args

import numpy as np

from kareus.model.profile import ClassName, KindName, Piece, SpanCollectiveTemplate, SpanTemplate, Workload
from kareus.trace.spans import find_spans
from kareus.trace.types import CollectiveKind, KernelClass, OpKind, Span, StepGraph

KINDS: dict[CollectiveKind, KindName] = {
    CollectiveKind.ALL_GATHER: "all_gather",
    CollectiveKind.REDUCE_SCATTER: "reduce_scatter",
    CollectiveKind.ALL_REDUCE: "all_reduce",
}
CLASSES: dict[KernelClass, ClassName] = {KernelClass[name.upper()]: name for name in get_args(ClassName)}


def workload_from(graph: StepGraph, *, provenance: str) -> Workload:
    """Return a recorded step as a workload; equal spans are one template with a count.

    Kernel durations are those estimated without a collective beside them (`OpTable.alone_ns`).

    Args:
        graph: one step. provenance: a sentence on where it was recorded.
    """
    groups: dict[str, list[Span]] = defaultdict(list)
    for span in find_spans(graph):
        groups[span.signature].append(span)
    templates = tuple(
        SpanTemplate(
            name=spans[0].name,
            count=len(spans),
            compute=_pieces(graph, spans),
            collectives=_collectives(graph, spans[0]),
        )
        for spans in groups.values()
        if len(spans[0].compute)
    )
    return Workload(spans=templates, idle_us=_idle_us(graph), provenance=provenance)


def _pieces(graph: StepGraph, spans: list[Span]) -> tuple[Piece, ...]:
    """Kernels of a span in order, each the median over equal spans; equal neighbours stay apart, because
    positions on the compute axis count kernels."""
    ops = graph.ops
    rows = np.stack([span.compute for span in spans])
    alone_us = np.maximum(np.median(ops.alone_ns[rows], axis=0) / 1000, 1e-3)
    first = spans[0].compute
    return tuple(
        Piece(
            kernel_class=CLASSES.get(KernelClass(int(ops.kernel_class[row])), "other"),
            alone_us=float(us),
            grid=int(ops.grid[row]),
        )
        for row, us in zip(first, alone_us, strict=True)
    )


def _collectives(graph: StepGraph, span: Span) -> tuple[SpanCollectiveTemplate, ...]:
    found = []
    for member in span.collectives:
        collective = graph.collectives[member.row]
        kind = KINDS.get(collective.kind)
        if kind is None:
            continue
        found.append(
            SpanCollectiveTemplate(
                kind=kind,
                num_bytes=collective.num_bytes,
                group_size=len(collective.group) or graph.world_size,
                num_ctas=collective.num_ctas,
                position=member.stock,
                required_at=member.required_at,
            )
        )
    return tuple(found)


def _idle_us(graph: StepGraph) -> float:
    """Time of the step in which nothing ran on any stream, microseconds."""
    ops = graph.ops
    busy = ops.kind != OpKind.MEMSET
    order = np.argsort(ops.start_ns[busy], kind="stable")
    start, end = ops.start_ns[busy][order], ops.end_ns[busy][order]
    if len(start) == 0:
        return graph.duration_ns / 1000
    reach = np.maximum.accumulate(end)
    gaps = np.maximum(start[1:] - reach[:-1], 0).sum() + max(0, int(start[0]) - graph.start_ns)
    return float(gaps) / 1000
