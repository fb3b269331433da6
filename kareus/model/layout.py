"""Turns a StepGraph and a Schedule into the tasks that the simulator plays: who waits for whom, and how long.

Dependencies are the graph's edges. What they do not explain (the CPU issued a collective late, a launch
gap) is kept as an anchor, "after this op of the compute stream", and a lag seen in the recording. A
schedule moves anchors, budgets and paths; it never removes an edge, so no collective can start before its
data are there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kareus.errors import InputError
from kareus.model.early import move_early
from kareus.model.rates import COPY_ENGINE, Flow
from kareus.schedule import Decision, Path, Schedule
from kareus.trace.blocking import blocking_collectives
from kareus.trace.identity import collective_key
from kareus.trace.spans import find_spans
from kareus.trace.types import F64, I64, CollectiveKind, EdgeKind, OpKind, Provenance, StepGraph


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Tasks of one rank, one for each op of its graph.

    Attributes:
        waits: for each op, the ops that must have ended. lag_us: pause after the last of them, float[ops].
        work_us: duration alone at the reference clock, float[ops]; 0 for collectives.
        flow: of collectives, None for compute. key: matches collectives across ranks, None for compute.
        compute: rows of the compute stream in order. notes: what of the schedule could not be simulated.
    """

    waits: list[list[int]]
    lag_us: F64
    work_us: F64
    flow: list[Flow | None]
    key: list[tuple[object, ...] | None]
    compute: I64
    notes: tuple[str, ...]


def layout(graph: StepGraph, schedule: Schedule | None, default_ctas: int) -> Layout:
    """Return the tasks of a step as recorded, or under a schedule.

    Args:
        graph: the step. schedule: None is as recorded. default_ctas: budget where the trace has none.

    Raises:
        InputError: a decision for a collective or launch point that the step does not have.
    """
    ops = graph.ops
    collective = ops.kind == OpKind.COLLECTIVE
    compute = np.flatnonzero((ops.stream == graph.compute_stream) & ~collective).astype(np.int64)
    waits = _edges(graph)
    anchors = _anchors(graph, compute)
    stock = {op: before for op, before in _communicator_order(graph) if before >= 0}
    for op, before in stock.items():
        waits[op].append(before)
    blocking = blocking_collectives(graph)
    for op, held in blocking.items():
        waits[held].append(op)
    lag_us = _lags(graph, waits, anchors)
    flow: list[Flow | None] = [None] * len(ops)
    key: list[tuple[object, ...] | None] = [None] * len(ops)
    op_of = {int(ops.collective[op]): int(op) for op in np.flatnonzero(collective)}
    for row, op in op_of.items():
        member = graph.collectives[row]
        ctas = member.num_ctas or (COPY_ENGINE if member.path == Path.COPY_ENGINE else default_ctas)
        flow[op] = Flow(kind=int(member.kind), num_ctas=ctas)
        key[op] = (member.kind, member.group, member.unit, member.phase, member.ordinal)
    notes: tuple[str, ...] = ()
    if schedule is not None:
        for op, before in stock.items():
            waits[op].remove(before)
        for op in _in_background(graph, schedule, blocking):
            waits[blocking[op]].remove(op)
        _apply(graph, schedule, waits, anchors, lag_us, flow, op_of, compute)
        last: list[int] = []
        problem = ""
        if schedule.early_gathers:
            last, problem = move_early(
                graph, schedule.early_gathers, compute, waits, anchors, lag_us,
                lambda op: _feeders(graph, op, waits),
            )  # fmt: skip
        for op, before in _communicator_order(graph, moved=_moved(graph, schedule, op_of), last=last):
            if before >= 0:
                waits[op].append(before)
        notes = _not_simulated(schedule, problem)
    for op, anchor in enumerate(anchors):
        if anchor >= 0:
            waits[op].append(int(anchor))
    return Layout(
        waits=waits,
        lag_us=lag_us,
        work_us=np.where(collective, 0.0, ops.alone_ns / 1e3),
        flow=flow,
        key=key,
        compute=compute,
        notes=notes,
    )


def _edges(graph: StepGraph) -> list[list[int]]:
    waits: list[list[int]] = [[] for _ in range(len(graph.ops))]
    live = (graph.edge_provenance != Provenance.PRUNED) & (graph.edge_kind != EdgeKind.LAUNCH)
    for source, target in graph.edges[live].tolist():
        waits[target].append(source)
    return waits


def _communicator_order(
    graph: StepGraph, moved: dict[int, tuple[object, ...]] | None = None, last: Sequence[int] = ()
) -> list[tuple[int, int]]:
    """Pairs (collective, the one before it on its communicator or -1), in recorded order; `last` come after all.

    Collectives of one process group share a communicator, except those that a schedule moved to another.
    """
    ops = graph.ops
    newest: dict[tuple[object, ...], int] = {}
    pairs = []
    recorded = [op for op in np.flatnonzero(ops.kind == OpKind.COLLECTIVE).tolist() if op not in last]
    for op in [*recorded, *last]:
        member = graph.collectives[int(ops.collective[op])]
        lane = (moved or {}).get(op, (member.group_name, member.group))
        pairs.append((op, newest.get(lane, -1)))
        newest[lane] = op
    return pairs


def _moved(graph: StepGraph, schedule: Schedule, op_of: dict[int, int]) -> dict[int, tuple[object, ...]]:
    """Collectives that a schedule gives another communicator, with that communicator's name."""
    moved: dict[int, tuple[object, ...]] = {}
    decisions = {d.collective: d for d in schedule.decisions}
    for row, op in op_of.items():
        member = graph.collectives[row]
        key = collective_key(member)
        decision = decisions.get(key) if key is not None else None
        if decision is not None and decision.path is Path.COPY_ENGINE:
            moved[op] = (member.group, member.kind, COPY_ENGINE)
        elif decision is not None and decision.num_ctas is not None and decision.num_ctas != member.num_ctas:
            moved[op] = (member.group, member.kind, decision.num_ctas)
        elif schedule.separate_reduce_scatter_group and member.kind == CollectiveKind.REDUCE_SCATTER:
            moved[op] = (member.group, member.kind)
    return moved


def _in_background(graph: StepGraph, schedule: Schedule, blocking: dict[int, int]) -> list[int]:
    """Blocking gathers that go on beside compute under a schedule: all of a pass in which it launches any."""
    ahead = {d.collective.phase for d in schedule.decisions if d.launch and d.collective.kind == "all_gather"}
    found = []
    for op in blocking:
        key = collective_key(graph.collectives[int(graph.ops.collective[op])])
        if key is not None and key.kind == "all_gather" and key.phase in ahead:
            found.append(op)
    return found


def _anchors(graph: StepGraph, compute: I64) -> I64:
    """For ops off the compute stream, the op of it that had ended last when they started; -1 none."""
    ops = graph.ops
    anchors = np.full(len(ops), -1, np.int64)
    others = np.setdiff1d(np.arange(len(ops)), compute)
    if len(compute) and len(others):
        ends = np.maximum.accumulate(ops.end_ns[compute])
        place = np.searchsorted(ends, ops.start_ns[others], side="right")
        anchors[others] = np.where(place > 0, compute[np.maximum(place - 1, 0)], -1)
    return anchors


def _lags(graph: StepGraph, waits: list[list[int]], anchors: I64) -> F64:
    """Pause between the end of what an op waits for and its start, as recorded, us."""
    ops = graph.ops
    end, start = ops.end_ns.tolist(), ops.start_ns.tolist()
    lag = np.zeros(len(ops))
    for op, before in enumerate(waits):
        ready = max((end[i] for i in before), default=graph.start_ns)
        if anchors[op] >= 0:
            ready = max(ready, end[anchors[op]])
        lag[op] = max(start[op] - ready, 0) / 1e3
    return lag


def _apply(
    graph: StepGraph,
    schedule: Schedule,
    waits: list[list[int]],
    anchors: I64,
    lag_us: F64,
    flow: list[Flow | None],
    op_of: dict[int, int],
    compute: I64,
) -> None:
    decisions = {d.collective: d for d in schedule.decisions}
    if not decisions:
        return
    points = _launch_positions(graph, compute) if any(d.launch for d in decisions.values()) else {}
    place = {int(op): i for i, op in enumerate(compute)}
    for row, op in op_of.items():
        key = collective_key(graph.collectives[row])
        decision = decisions.pop(key, None) if key is not None else None
        if decision is None:
            continue
        old = flow[op]
        assert old is not None  # collectives have flows
        flow[op] = _flow(decision, old)
        if decision.launch is not None:
            position = points.get((row, str(decision.launch)))
            if position is None:
                raise InputError(
                    f"rank {graph.rank} step {graph.index}: {decision.collective} is to start "
                    f"{decision.launch}, a point that the recorded step does not have; solve this trace again"
                )
            anchor = int(compute[position - 1]) if position > 0 else -1
            for feeder in [op, *_feeders(graph, op, waits)]:
                anchors[feeder], lag_us[feeder] = anchor, min(lag_us[feeder], 5.0)
        if decision.serialise:
            after = place[int(anchors[op])] + 1 if anchors[op] >= 0 else 0
            if after < len(compute):
                waits[int(compute[after])].append(op)
    if decisions:
        missing = ", ".join(str(k) for k in list(decisions)[:3])
        raise InputError(
            f"rank {graph.rank} step {graph.index}: the schedule decides {len(decisions)} collective(s) the "
            f"recorded step does not have ({missing}); use the trace it was made from, or solve again"
        )


def _flow(decision: Decision, old: Flow) -> Flow:
    if decision.path is Path.COPY_ENGINE:
        return Flow(kind=old.kind, num_ctas=COPY_ENGINE, scale=old.scale)
    return Flow(kind=old.kind, num_ctas=decision.num_ctas or old.num_ctas, scale=old.scale)


def _launch_positions(graph: StepGraph, compute: I64) -> dict[tuple[int, str], int]:
    """(collective row, launch point as text) -> how many compute ops of the step precede it."""
    place = {int(op): i for i, op in enumerate(compute)}
    found: dict[tuple[int, str], int] = {}
    for span in find_spans(graph):
        first = place[int(span.compute[0])] if len(span.compute) else 0
        for member in span.collectives:
            for position, text in zip(member.positions, member.points, strict=True):
                side, _, rest = text.partition("|")
                module, _, phase = rest.rpartition("|")
                if text:
                    found[member.row, f"{side} {module or 'root'} ({phase})"] = first + position
    return found


def _feeders(graph: StepGraph, op: int, waits: list[list[int]]) -> list[int]:
    """Ops off the compute stream that only prepare a collective's input (copies into its buffer)."""
    ops = graph.ops
    found: list[int] = []
    todo = [op]
    while todo:
        for before in waits[todo.pop()]:
            off = ops.stream[before] != graph.compute_stream and ops.kind[before] != OpKind.COLLECTIVE
            if off and before not in found:
                found.append(before)
                todo.append(before)
    return found


def _not_simulated(schedule: Schedule, early: str) -> tuple[str, ...]:
    knobs = {
        "forward prefetch": schedule.forward_prefetch,
        "backward prefetch": schedule.backward_prefetch,
        "reduce-scatter deferral": schedule.reduce_scatter_deferral or None,
        "bucket size": schedule.ddp_bucket_cap_mb or schedule.ddp_bucket_cap_mb_list or None,
        "BLAS carve-out": schedule.compute_sm_margin,
    }
    named = [name for name, value in knobs.items() if value is not None] + ([early] if early else [])
    return (f"not simulated, taken as recorded: {', '.join(named)}",) if named else ()


def successors(waits: list[list[int]]) -> list[list[int]]:
    """Invert the wait lists."""
    after: dict[int, list[int]] = defaultdict(list)
    for op, before in enumerate(waits):
        for source in set(before):
            after[source].append(op)
    return [after[op] for op in range(len(waits))]
