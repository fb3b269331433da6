"""What a recorded step shows of the schedule that was in force: budgets, paths and launch points.

The grid of an NCCL kernel is the number of SMs it holds, so a recording says whether the budget that was
requested is the one that ran; NCCL may use fewer thread blocks than it is allowed, never more.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from kareus.schedule import CollectiveKey, Decision, LaunchPoint, Path, Schedule
from kareus.trace.identity import collective_key
from kareus.trace.types import CollectiveOp, KernelClass, OpKind, Phase, StepGraph


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedOut:
    """One decision beside what was recorded.

    Attributes:
        decision: what the schedule asks for. found: whether the step holds the collective at all.
        num_ctas: grid of its kernel; None where the recording does not know. path: how its bytes travelled.
        after_point_us: from its launch point to its start, at most; negative where it started before. None
            without a launch point, or where the recording does not show the module.
        problem: what differs from the decision, "" for nothing.
    """

    decision: Decision
    found: bool
    num_ctas: int | None = None
    path: str = ""
    after_point_us: float | None = None
    problem: str = ""


TOLERANCE_US = 2.0  # streams' time stamps agree to about a microsecond


def carried_out(graph: StepGraph, schedule: Schedule) -> list[CarriedOut]:
    """Compare every decision of a schedule with a step that was recorded while it was in force.

    Args:
        graph: the step. schedule: as replayed.

    Returns:
        One entry a decision, in the schedule's order.
    """
    members: dict[CollectiveKey, int] = {}
    early: dict[str, int] = {}
    for op in np.flatnonzero(graph.ops.kind == OpKind.COLLECTIVE).tolist():
        key = collective_key(graph.collectives[int(graph.ops.collective[op])])
        if key is not None and key.kind == "all_gather" and key.phase == "optimizer":
            early.setdefault(key.unit, op)
        elif key is not None:
            members.setdefault(key, op)
    found = []
    for decision in schedule.decisions:
        key = decision.collective
        op_row = members.get(key)
        if key.kind == "all_gather" and key.phase == "forward" and key.unit in early:
            decision = msgspec.structs.replace(decision, launch=None)  # its launch point does not count then
            op_row = early[key.unit]
        if op_row is None:
            found.append(CarriedOut(decision=decision, found=False, problem="not in the recorded step"))
            continue
        found.append(_judged(graph, decision, op_row))
    return found


def early_gathers(graph: StepGraph) -> int:
    """Return how many all-gathers of the recorded step were issued inside its optimizer."""
    keys = map(collective_key, graph.collectives)
    return sum(key is not None and key.kind == "all_gather" and key.phase == "optimizer" for key in keys)


def _judged(graph: StepGraph, decision: Decision, op: int) -> CarriedOut:
    member: CollectiveOp = graph.collectives[int(graph.ops.collective[op])]
    copies = member.path == Path.COPY_ENGINE
    ctas = member.num_ctas or None
    point_ns = None if decision.launch is None else _point_ns(graph, decision.launch)
    after_us = None if point_ns is None else (int(graph.ops.start_ns[op]) - point_ns) / 1e3
    problems = []
    if copies != (decision.path is Path.COPY_ENGINE):
        problems.append(f"travelled by {'the copy engine' if copies else 'a kernel'}")
    elif decision.num_ctas is not None and ctas is not None and ctas > decision.num_ctas:
        problems.append(f"{ctas} CTAs, {decision.num_ctas} requested")
    if after_us is not None and after_us < -TOLERANCE_US:
        problems.append(f"started {-after_us:.0f} us before its launch point")
    return CarriedOut(
        decision=decision,
        found=True,
        num_ctas=None if copies else ctas,
        path=str(member.path),
        after_point_us=after_us,
        problem="; ".join(problems),
    )


def _point_ns(graph: StepGraph, point: LaunchPoint) -> int | None:
    """Return a time before which the compute stream cannot have reached a point.

    That is the end of the last GEMM or attention kernel in front of it: FSDP's own copies run between a
    module's kernels and may belong to either side.
    """
    ops = graph.ops
    main = np.isin(ops.kernel_class, (KernelClass.GEMM, KernelClass.ATTENTION))
    rows = np.flatnonzero((ops.stream == graph.compute_stream) & (ops.kind != OpKind.COLLECTIVE) & main)
    wanted = Phase.FORWARD if point.phase == "forward" else Phase.BACKWARD
    prefix = f"{point.module}." if point.module else ""
    inside = [i for i, name in enumerate(graph.modules) if name == point.module or name.startswith(prefix)]
    own = np.flatnonzero((ops.phase[rows] == wanted) & np.isin(ops.module[rows], inside))
    if not len(own):
        return None
    last = own[0] - 1 if point.side == "before" else own[-1]
    return graph.start_ns if last < 0 else int(ops.end_ns[rows[last]])
