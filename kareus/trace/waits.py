"""Cross-stream waits: which op of one stream waited for which op of another.

Three sources, each edge marked with its provenance:

* TRACED: the profiler recorded sync events (`enable_cuda_sync_events`, which `kareus collect` turns on).
* ASSUMED: NCCL's order inside a communicator, and FSDP2's and DDP's own structure. FSDP2 gathers a unit
  behind its copy-in and copies out behind the gather; a copy-in waits until an earlier unit is copied out;
  a reduce-scatter follows its gradient copy-in, and the next copy-in waits for it (torch up to 2.12 keeps
  one reduce-scatter in flight); the optimizer waits for all of them.
* INFERRED: default profiler settings record `cudaStreamWaitEvent` calls without saying what they wait for,
  and sync events of torch 2.11 name the waiting stream but not where the event was recorded. The next launch
  (on that stream, where it is known) is taken to wait for the newest work of every other stream; where the
  recording shows the op starting before that work ended, the edge is PRUNED.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kareus.trace.grouping import distinct
from kareus.trace.rawtrace import CALL_WAIT
from kareus.trace.regions import ROLE_COPY_OUT, ROLE_GATHER, ROLE_REDUCE, Regions
from kareus.trace.types import I64, CollectiveKind, CollectiveOp, OpKind, OpTable, Phase, Provenance

OVERLAP_TOLERANCE_NS = 1_000  # timestamps of different streams agree to well under a microsecond

Edge = tuple[int, int, int]


def find_waits(
    ops: OpTable,
    collectives: Sequence[CollectiveOp],
    regions: Regions,
    calls: I64,
    sync: I64,
    compute_stream: int,
) -> I64:
    """Return event edges as rows (source op, target op, Provenance), int64[n, 3], without repeats.

    Args:
        ops: by start. collectives: rows that `ops.collective` points at.
        regions: where launches lie. calls: runtime calls (start, end, thread, correlation, kind).
        sync: (time, stream, wait_on_stream, record correlation) of sync records.
        compute_stream: stream id of the model's compute.
    """
    edges, unresolved = _traced(ops, sync, calls)
    if regions.has_fsdp:
        edges += _fsdp(ops, regions, compute_stream)
    elif regions.has_ddp:
        edges += _ddp(ops, collectives, compute_stream)
    edges += _communicators(ops, collectives)
    if not regions.has_fsdp and not regions.has_ddp:
        edges += _inferred_on_stream(ops, unresolved) if len(sync) else _inferred(ops, calls)
    return _unique(ops, edges)


def _unique(ops: OpTable, edges: list[Edge]) -> I64:
    best: dict[tuple[int, int], int] = {}
    for source, target, provenance in edges:
        if source == target or ops.stream[source] == ops.stream[target]:
            continue
        if ops.end_ns[source] > ops.start_ns[target] + OVERLAP_TOLERANCE_NS:
            provenance = Provenance.PRUNED
        key = source, target
        best[key] = min(best.get(key, provenance), provenance)
    rows = [(s, t, p) for (s, t), p in best.items()]
    return np.array(sorted(rows), np.int64).reshape(-1, 3)


def _launch_order(ops: OpTable) -> I64:
    rows = np.flatnonzero(ops.launch_ns >= 0)
    return rows[np.argsort(ops.launch_ns[rows], kind="stable")]


def _traced(ops: OpTable, sync: I64, calls: I64) -> tuple[list[Edge], list[tuple[int, int]]]:
    """A wait record names the waiting stream and the event's record call: the source is the last op
    launched on the recording stream before that call, the target the next op on the waiting stream.

    Also returns (time, waiting stream) of the records that do not say where the event was recorded.
    """
    call_time = {int(c): int(t) for t, c in zip(calls[:, 0], calls[:, 3], strict=True) if c > 0}
    by_stream = {int(s): _launch_order_of(ops, int(s)) for s in distinct(ops.stream)}
    edges: list[Edge] = []
    unresolved: list[tuple[int, int]] = []
    for time, stream, source_stream, record in sync.tolist():
        recorded = call_time.get(record)
        if recorded is None or source_stream < 0:
            unresolved.append((time, stream))
            continue
        waiting, giving = by_stream.get(stream), by_stream.get(source_stream)
        if waiting is None or giving is None:
            continue
        last = np.searchsorted(ops.launch_ns[giving], recorded, side="right") - 1
        following = np.searchsorted(ops.launch_ns[waiting], time, side="left")
        if last >= 0 and following < len(waiting):
            edges.append((int(giving[last]), int(waiting[following]), Provenance.TRACED))
    return edges, unresolved


def _launch_order_of(ops: OpTable, stream: int) -> I64:
    rows = np.flatnonzero((ops.stream == stream) & (ops.launch_ns >= 0))
    return rows[np.argsort(ops.launch_ns[rows], kind="stable")]


def _fsdp(ops: OpTable, regions: Regions, compute_stream: int) -> list[Edge]:
    """FSDP2's own waits (torch 2.9 to 2.14, `_fsdp_param_group.py` and `_fsdp_state.py`).

    A copy-in waits for a copy-out two units back in forward (the buffers of the unit before may still be
    read), for the last copy-out at the turn to backward, and for the newest copy-out inside backward.
    """
    edges: list[Edge] = []
    gathered: dict[int, int] = {}  # unit -> its newest all-gather
    copied_in: dict[int, list[int]] = {}  # label -> copy-in ops launched under it so far
    reduce_tail: dict[int, int] = {}  # streams of reduce work -> newest op there
    last_reduce_label, last_compute = -1, -1
    copied_out: list[tuple[int, int]] = []  # (label, its last op), newest last
    freed = -1  # copy-out whose event the gather streams were told to wait for
    collective = ops.kind == OpKind.COLLECTIVE
    for row in _launch_order(ops):
        op, role, label, unit = int(row), regions.role[row], int(regions.label[row]), int(regions.unit[row])
        on_compute = ops.stream[op] == compute_stream
        backward = ops.phase[op] == Phase.BACKWARD
        if role == ROLE_GATHER:
            if collective[op]:
                edges += [(source, op, Provenance.ASSUMED) for source in copied_in.get(label, [])[-1:]]
                gathered[unit] = op
            elif not on_compute:
                if label not in copied_in:
                    source = copied_out[-1][1] if backward and copied_out else freed
                    edges += [(source, op, Provenance.ASSUMED)] if source >= 0 else []
                copied_in.setdefault(label, []).append(op)
        elif role == ROLE_COPY_OUT:
            if unit in gathered:
                edges.append((gathered.pop(unit), op, Provenance.ASSUMED))
            if copied_out and copied_out[-1][0] == label:
                copied_out[-1] = label, op
            else:
                freed = copied_out[-1][1] if copied_out else -1
                copied_out.append((label, op))
        elif role == ROLE_REDUCE:
            if on_compute and label != last_reduce_label:
                edges += [(tail, op, Provenance.ASSUMED) for tail in reduce_tail.values()]
                last_reduce_label = label
            elif not on_compute:
                if collective[op]:
                    edges += [(last_compute, op, Provenance.ASSUMED)] if last_compute >= 0 else []
                reduce_tail[int(ops.stream[op])] = op
        if on_compute:
            if ops.phase[op] == Phase.OPTIMIZER and reduce_tail:
                edges += [(tail, op, Provenance.ASSUMED) for tail in reduce_tail.values()]
                reduce_tail = {}
            last_compute = op
    return edges


def _ddp(ops: OpTable, collectives: Sequence[CollectiveOp], compute_stream: int) -> list[Edge]:
    """A bucket is reduced behind the newest compute launched before it; what comes after backward waits
    for every bucket (DDP's finalize waits for all of them on the compute stream)."""
    edges: list[Edge] = []
    pending: list[int] = []
    last_compute = -1
    order = _launch_order(ops)
    is_collective = (ops.kind[order] == int(OpKind.COLLECTIVE)).tolist()
    on_compute = (ops.stream[order] == compute_stream).tolist()
    backward = (ops.phase[order] == int(Phase.BACKWARD)).tolist()
    for op, collective, computes, inside in zip(
        order.tolist(), is_collective, on_compute, backward, strict=True
    ):
        if collective:
            if last_compute >= 0:
                edges.append((last_compute, op, Provenance.ASSUMED))
            if collectives[int(ops.collective[op])].kind == CollectiveKind.ALL_REDUCE:
                pending.append(op)
        elif computes:
            if pending and not inside:
                # Gradients of finished buckets are copied back first: who starts earlier did not wait.
                ended = [s for s in pending if ops.end_ns[s] <= ops.start_ns[op] + OVERLAP_TOLERANCE_NS]
                edges += [(source, op, Provenance.ASSUMED) for source in ended]
                pending = [source for source in pending if source not in ended]
            last_compute = op
    return edges


def _communicators(ops: OpTable, collectives: Sequence[CollectiveOp]) -> list[Edge]:
    """NCCL runs the kernels of one communicator one at a time in launch order, whatever their streams."""
    edges: list[Edge] = []
    newest: dict[str, int] = {}
    order = _launch_order(ops)
    for op in order[ops.kind[order] == int(OpKind.COLLECTIVE)].tolist():
        collective = collectives[int(ops.collective[op])]
        if collective.path == "nccl" and collective.group_name:
            if collective.group_name in newest:
                edges.append((newest[collective.group_name], op, Provenance.ASSUMED))
            newest[collective.group_name] = op
    return edges


def _inferred(ops: OpTable, calls: I64) -> list[Edge]:
    """The first launch of a thread after a wait call waits for the newest work of every other stream."""
    edges: list[Edge] = []
    order = _launch_order(ops)
    thread = ops.launch_thread[order]
    waited = np.zeros(len(order), bool)
    waits = calls[calls[:, 4] == CALL_WAIT]
    for one in distinct(waits[:, 2]):
        rows = np.flatnonzero(thread == one)
        after = np.searchsorted(ops.launch_ns[order[rows]], waits[waits[:, 2] == one, 0], side="left")
        waited[rows[after[after < len(rows)]]] = True
    streams, columns = np.unique(ops.stream[order], return_inverse=True)
    newest = np.full(len(streams), -1, np.int64)
    for op, column, waits_here in zip(order.tolist(), columns.tolist(), waited.tolist(), strict=True):
        if waits_here:
            edges += [
                (int(source), op, Provenance.INFERRED)
                for other, source in enumerate(newest)
                if other != column and source >= 0
            ]
        newest[column] = op
    return edges


def _inferred_on_stream(ops: OpTable, waits: list[tuple[int, int]]) -> list[Edge]:
    """The next op of a stream that waits, at (time, stream), waits for the newest work of every other."""
    by_stream = {int(s): _launch_order_of(ops, int(s)) for s in distinct(ops.stream)}
    edges: list[Edge] = []
    for time, stream in waits:
        waiting = by_stream.get(stream)
        following = -1 if waiting is None else int(np.searchsorted(ops.launch_ns[waiting], time, side="left"))
        if waiting is None or following == len(waiting):
            continue
        for other, giving in by_stream.items():
            last = int(np.searchsorted(ops.launch_ns[giving], time, side="right")) - 1
            if other != stream and last >= 0:
                edges.append((int(giving[last]), int(waiting[following]), Provenance.INFERRED))
    return edges
