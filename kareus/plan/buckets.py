"""DDP's bucket size: the recorded step as it would be with other buckets.

DDP closes a bucket once its gradients reach the size limit, in the order in which they arrive, and reduces
it at once. Small buckets start earlier and leave less behind at the end of backward; large ones pay their
latency less often. Which is best depends on the link and on how long backward takes, so each size is simulated.

Where the sizes worked out for the recorded limit are not those of the recording, nothing is changed.
Source: torch/csrc/distributed/c10d/reducer.cpp, `compute_bucket_assignment_by_size` and `rebuild_buckets`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kareus.model.cost import CostModel
from kareus.model.simulate import simulate
from kareus.trace.manifest import Gradient
from kareus.trace.types import I64, EdgeKind, OpKind, OpTable, Phase, Provenance, StepGraph

MIB = 1 << 20
STOCK_CAPS = (1 * MIB, 25 * MIB)  # of the first bucket and of the others (torch/nn/parallel/distributed.py)
CAPS_MB = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
MOST_BUCKETS = 128
NEAR = 0.05  # bucket sizes that differ by less are the recorded ones: the order inside a module is not known
WORTH = 5e-3  # relative gain below which buckets are left alone


@dataclass(frozen=True, kw_only=True, slots=True)
class Regrouped:
    """The step with other buckets: limit in MiB, the graph, and the simulated times that speak for it."""

    cap_mb: float
    graph: StepGraph
    time_us: float
    stock_us: float


def best_buckets(graph: StepGraph, gradients: Sequence[Gradient], cost: CostModel) -> Regrouped | None:
    """Return the step under the bucket size that simulates fastest; None where stock's are as good or unknown.

    Args:
        graph: a recorded step. gradients: of the model, in registration order. cost: the model.
    """
    if graph.wrapper != "ddp" or not gradients:
        return None
    arrivals = _arrivals(graph, gradients)
    if arrivals is None or not _explains(graph, arrivals):
        return None
    stock_us = simulate([graph], None, cost).time_us
    best: Regrouped | None = None
    seen: set[tuple[int, ...]] = set()
    for cap_mb in CAPS_MB:
        cap = int(cap_mb * MIB)
        buckets = _close([size for _, size, _ in arrivals], (cap, cap))
        ends = tuple(bucket[-1] for bucket in buckets)
        if len(buckets) > MOST_BUCKETS or ends in seen:
            continue
        seen.add(ends)
        other = _with_buckets(graph, arrivals, buckets)
        time_us = simulate([other], None, cost).time_us
        if time_us < (best.time_us if best else stock_us) * (1 - WORTH):
            best = Regrouped(cap_mb=cap_mb, graph=other, time_us=time_us, stock_us=stock_us)
    return best


def regrouped(graph: StepGraph, gradients: Sequence[Gradient], cap_mb: float) -> StepGraph | None:
    """Return the step with buckets of one size limit; None where the recording does not show how they fill."""
    arrivals = _arrivals(graph, gradients) if graph.wrapper == "ddp" and gradients else None
    if arrivals is None or not _explains(graph, arrivals):
        return None
    cap = int(cap_mb * MIB)
    return _with_buckets(graph, arrivals, _close([size for _, size, _ in arrivals], (cap, cap)))


def _arrivals(graph: StepGraph, gradients: Sequence[Gradient]) -> list[tuple[int, int, int]] | None:
    """(compute op behind which a gradient is there, its bytes, its elements), in order of arrival.

    A gradient arrives when the last op of its module's backward has run; where the recording shows none, with
    the module registered behind it. None where no module is known.
    """
    ops = graph.ops
    on_compute = (ops.stream == graph.compute_stream) & (ops.kind != OpKind.COLLECTIVE)
    last: dict[str, int] = {}
    for row in np.flatnonzero(on_compute & (ops.phase == Phase.BACKWARD) & (ops.module >= 0)).tolist():
        last[graph.modules[int(ops.module[row])]] = row
    if not any(gradient.module in last for gradient in gradients):
        return None
    place = max(last.values()) if gradients[-1].module not in last else last[gradients[-1].module]
    found = []
    for order, gradient in enumerate(reversed(gradients)):
        place = last.get(gradient.module, place)
        found.append((place, order, gradient.num_bytes, gradient.numel))
    return [(place, size, numel) for place, _, size, numel in sorted(found)]


def _close(sizes: Sequence[int], caps: tuple[int, int]) -> list[list[int]]:
    """Places of the gradients in each bucket: one is closed as soon as it has reached its limit, bytes."""
    buckets: list[list[int]] = []
    current: list[int] = []
    filled = 0
    for place, size in enumerate(sizes):
        current.append(place)
        filled += size
        if filled >= caps[min(len(buckets), 1)]:
            buckets.append(current)
            current, filled = [], 0
    return [*buckets, current] if current else buckets


def _explains(graph: StepGraph, arrivals: list[tuple[int, int, int]]) -> bool:
    """Whether stock's limits give the recorded buckets, and something waits for them."""
    recorded = [c.numel for c in graph.collectives if c.unit.startswith("bucket.")]
    expected = [
        sum(arrivals[i][2] for i in bucket) for bucket in _close([a[1] for a in arrivals], STOCK_CAPS)
    ]
    total = max(sum(recorded), 1)
    return (
        bool(_waiting(graph))
        and len(recorded) == len(expected)
        and all(abs(a - b) <= NEAR * total for a, b in zip(recorded, expected, strict=True))
    )


def _with_buckets(
    graph: StepGraph, arrivals: list[tuple[int, int, int]], buckets: list[list[int]]
) -> StepGraph:
    """Replace the recorded all-reduces by one a bucket, each behind its last gradient.

    The op that waited for all of them keeps its recorded pause, which is why every new one ends with the last
    of the old: only the order of starts and the bytes of a collective are read from here on.
    """
    ops = graph.ops
    old, waiting = _bucket_ops(graph), _waiting(graph)
    end_ns = int(ops.end_ns[old].max())
    model = int(old[0])
    sample = graph.collectives[int(ops.collective[model])]
    kept = np.setdiff1d(np.arange(len(ops)), old)
    behind = [max(arrivals[i][0] for i in bucket) for bucket in buckets]
    others = [c for c in graph.collectives if not c.unit.startswith("bucket.")]
    members = [
        replace(
            sample,
            num_bytes=sum(arrivals[i][1] for i in bucket),
            numel=sum(arrivals[i][2] for i in bucket),
            unit=f"bucket.{number}",
            ordinal=0,
        )
        for number, bucket in enumerate(buckets)
    ]
    table = _extend(ops.take(kept), ops.take(np.full(len(buckets), model)), ops.end_ns[behind], end_ns)
    order = np.lexsort((np.arange(len(table)), table.start_ns))
    place = np.empty(len(table), np.int64)
    place[order] = np.arange(len(table))
    where = np.full(len(ops), -1, np.int64)
    where[kept] = place[: len(kept)]
    new = place[len(kept) :]
    inside = (where[graph.edges[:, 0]] >= 0) & (where[graph.edges[:, 1]] >= 0)
    edges = [
        np.stack([where[graph.edges[inside, 0]], where[graph.edges[inside, 1]]], axis=1),
        np.stack([where[behind], new], axis=1),
        np.array([(a, where[b]) for a in new for b in waiting], np.int64).reshape(-1, 2),
    ]
    added = len(edges[1]) + len(edges[2])
    remap = {i: n for n, i in enumerate(i for i, c in enumerate(graph.collectives) if c in others)}
    column = np.array([remap.get(int(c), -1) for c in table.collective], np.int32)
    column[len(kept) :] = len(others) + np.arange(len(buckets))
    return replace(
        graph,
        ops=replace(table, collective=column).take(order),
        collectives=(*others, *members),
        edges=np.concatenate(edges),
        edge_kind=np.concatenate([graph.edge_kind[inside], np.full(added, EdgeKind.EVENT, np.int8)]),
        edge_provenance=np.concatenate(
            [graph.edge_provenance[inside], np.full(added, Provenance.ASSUMED, np.int8)]
        ),
        host_delay_ns=np.concatenate([graph.host_delay_ns[kept], np.zeros(len(buckets), np.int64)])[order],
    )


def _bucket_ops(graph: StepGraph) -> I64:
    """Rows of the recorded buckets' all-reduces."""
    rows = np.flatnonzero(graph.ops.collective >= 0)
    units = [graph.collectives[int(graph.ops.collective[row])].unit for row in rows]
    return rows[[unit.startswith("bucket.") for unit in units]].astype(np.int64)


def _waiting(graph: StepGraph) -> list[int]:
    """The compute op that waits for the last of the recorded buckets; empty where none does."""
    ops, old = graph.ops, _bucket_ops(graph)
    live = graph.edge_provenance != Provenance.PRUNED
    targets = graph.edges[live & np.isin(graph.edges[:, 0], old), 1]
    targets = targets[
        (ops.stream[targets] == graph.compute_stream) & (ops.kind[targets] != OpKind.COLLECTIVE)
    ]
    return [int(targets.max())] if len(targets) else []


def _extend(kept: OpTable, added: OpTable, start_ns: I64, end_ns: int) -> OpTable:
    added = replace(
        added,
        start_ns=start_ns,
        end_ns=np.full(len(added), end_ns, np.int64),
        alone_ns=end_ns - start_ns,
        launch_ns=start_ns,
    )
    return OpTable(
        **{
            name: np.concatenate([getattr(kept, name), getattr(added, name)])
            for name in OpTable.__dataclass_fields__
        }
    )
