"""What a step consists of: time by interval union, and one row per collective.

Exposed communication is the union of collectives minus the union of compute; overlap percentages are not
reported, since a slowed-down kernel makes them look good.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kareus.trace.intervals import intersection_ns, length, overlap_ns, union
from kareus.trace.types import CollectiveOp, KernelClass, OpKind, StepGraph


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Where a step's time goes, microseconds; compute + exposed + idle = time."""

    time_us: float
    compute_us: float
    comm_us: float
    exposed_comm_us: float
    idle_us: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveRow:
    """One collective of a step.

    Attributes:
        collective: what it is. start_us: from the step's start. duration_us, exposed_us: of its kernel.
        beside: kernel class name -> (time beside it in us, how many times longer those kernels took than
            alone; 1.0 is not slowed).
    """

    collective: CollectiveOp
    start_us: float
    duration_us: float
    exposed_us: float
    beside: dict[str, tuple[float, float]] = field(default_factory=dict)


def step_times(graph: StepGraph) -> StepTimes:
    """Return the breakdown of one step."""
    ops = graph.ops
    comm = ops.kind == OpKind.COLLECTIVE
    start, end = np.minimum(ops.start_ns, graph.end_ns), np.minimum(ops.end_ns, graph.end_ns)
    communication = union(start[comm], end[comm])
    compute = union(start[~comm], end[~comm])
    busy = length(union(start, end))
    return StepTimes(
        time_us=graph.duration_ns / 1000,
        compute_us=length(compute) / 1000,
        comm_us=length(communication) / 1000,
        exposed_comm_us=(length(communication) - intersection_ns(communication, compute)) / 1000,
        idle_us=(graph.duration_ns - busy) / 1000,
    )


def collective_rows(graph: StepGraph) -> list[CollectiveRow]:
    """Return one row per collective of a step, in issue order."""
    ops = graph.ops
    comm = ops.kind == OpKind.COLLECTIVE
    compute_start, compute_end = ops.start_ns[~comm], ops.end_ns[~comm]
    rows = []
    for op in np.flatnonzero(comm)[np.argsort(ops.collective[comm], kind="stable")]:
        start, end = ops.start_ns[op : op + 1], ops.end_ns[op : op + 1]
        covered = int(overlap_ns(start, end, compute_start, compute_end)[0])
        rows.append(
            CollectiveRow(
                collective=graph.collectives[int(ops.collective[op])],
                start_us=(int(start[0]) - graph.start_ns) / 1000,
                duration_us=int(end[0] - start[0]) / 1000,
                exposed_us=(int(end[0] - start[0]) - covered) / 1000,
                beside=_beside(graph, int(start[0]), int(end[0]), ~comm),
            )
        )
    return rows


def _beside(
    graph: StepGraph, start_ns: int, end_ns: int, compute: np.ndarray
) -> dict[str, tuple[float, float]]:
    """Classes that ran mostly (half of their own time) beside an interval, and how much slower they were."""
    ops = graph.ops
    shared = np.minimum(ops.end_ns, end_ns) - np.maximum(ops.start_ns, start_ns)
    duration = ops.duration_ns
    inside = compute & (shared > 0)
    mostly = inside & (shared * 2 >= duration)
    found = {}
    for kernel_class in KernelClass:
        rows = inside & (ops.kernel_class == kernel_class)
        if rows.any():
            full = mostly & rows
            alone = float(ops.alone_ns[full].sum())
            slowdown = float(duration[full].sum()) / alone if alone > 0 else float("nan")
            found[kernel_class.name.lower()] = (float(shared[rows].sum()) / 1000, slowdown)
    return found
