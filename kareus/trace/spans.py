"""Cuts a step into spans: stretches of the compute stream, with the collectives that may run beside them.

The compute stream is cut where it waits for gathered parameters and where a phase ends, unless a gather for later
runs across. Between two cuts nothing on the compute stream depends on a collective launched there, except where
`SpanCollective.required_at` says so, so the choices made inside one span are independent of the others (up to
power and clock). A collective whose result is needed only after its span's end (a gather two units ahead, a
reduce-scatter while a second buffer is free) is nevertheless taken to end with it: alone, a span is then priced
too dear, never too cheap. The whole-step simulation follows the real edges, and so does the improver.

    forward blocks.3    [copy-out, norm, qkv, attention, ..., down]     beside: all-gather blocks.4
    backward blocks.3   [copy-out, down', ..., qkv', grad copy-in]      beside: all-gather blocks.2,
                                                                                reduce-scatter blocks.4
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from kareus.trace.blocking import blocking_collectives
from kareus.trace.types import (
    I64,
    CollectiveKind,
    EdgeKind,
    OpKind,
    Phase,
    Provenance,
    Span,
    SpanCollective,
    StepGraph,
)

_REDUCES = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)
_PHASES = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
    Phase.OTHER: "other",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reach:
    """A collective on the compute stream's axis (positions in compute order).

    Attributes:
        row: index into StepGraph.collectives. kind: what it is.
        ready: compute ops that must have run before its data exist.
        required: first compute position that waits for it; the number of compute ops when none does.
        started: compute ops that had ended when it started in the recording.
        blocks: compute waited for it there, although it could have gone on.
    """

    row: int
    kind: CollectiveKind
    ready: int
    required: int
    started: int
    blocks: bool


def find_spans(graph: StepGraph) -> tuple[Span, ...]:
    """Return the spans of a step in order; together they hold every op of the compute stream once.

    Equal spans (same kernels and grids, same collectives) share a signature and the median stock
    position, so that jitter of one recording does not make them look different.
    """
    compute = _compute_ops(graph)
    reaches = _reaches(graph, compute)
    cuts = _cuts(graph, compute, reaches)
    spans = [
        _span(graph, compute, reaches, index, first, last)
        for index, (first, last) in enumerate(itertools.pairwise(cuts))
    ]
    return _harmonise(spans)


def _compute_ops(graph: StepGraph) -> I64:
    """Rows on the compute stream that are not collectives, in start order."""
    ops = graph.ops
    mask = (ops.stream == graph.compute_stream) & (ops.kind != OpKind.COLLECTIVE)
    return np.flatnonzero(mask).astype(np.int64)


def _reaches(graph: StepGraph, compute: I64) -> list[_Reach]:
    """Place every collective on the compute axis by following edges through the other streams."""
    position = np.full(len(graph.ops), -1, np.int64)
    position[compute] = np.arange(len(compute))
    live = graph.edge_provenance != Provenance.PRUNED
    successors: dict[int, list[int]] = defaultdict(list)
    predecessors: dict[int, list[int]] = defaultdict(list)
    for source, target in graph.edges[live & (graph.edge_kind != EdgeKind.LAUNCH)]:
        successors[int(source)].append(int(target))
        predecessors[int(target)].append(int(source))
    collective = graph.ops.kind == OpKind.COLLECTIVE
    ends = np.sort(graph.ops.end_ns[compute])
    blocking = blocking_collectives(graph)
    reaches = []
    for op in np.flatnonzero(collective):
        before = _first_on_compute(int(op), predecessors, position, collective)
        after = _first_on_compute(int(op), successors, position, collective)
        row = int(graph.ops.collective[op])
        reaches.append(
            _Reach(
                row=row,
                kind=graph.collectives[row].kind,
                ready=max(before, default=-1) + 1,
                required=min(after, default=len(compute)),
                started=int(np.searchsorted(ends, graph.ops.start_ns[op], side="right")),
                blocks=int(op) in blocking,
            )
        )
    return reaches


def _first_on_compute(
    start: int, neighbours: dict[int, list[int]], position: I64, collective: np.ndarray
) -> set[int]:
    """Compute positions met first when walking from an op through other streams, past no collective."""
    found: set[int] = set()
    seen, todo = {start}, [start]
    while todo:
        for other in neighbours[todo.pop()]:
            if position[other] >= 0:
                found.add(int(position[other]))
            elif other not in seen and not collective[other]:
                seen.add(other)
                todo.append(other)
    return found


def _cuts(graph: StepGraph, compute: I64, reaches: Iterable[_Reach]) -> list[int]:
    """Compute positions where a span starts, with 0 and the number of ops at the ends."""
    count = len(compute)
    cuts = {0, count}
    cuts |= {reach.required for reach in reaches if reach.kind not in _REDUCES and reach.required < count}
    for change in _phase_changes(graph.ops.phase[compute]):
        # Compute waits for nothing there: a gather for later may run across.
        across = (r for r in reaches if r.kind not in _REDUCES and r.started < change < r.required < count)
        if not any(across):
            cuts.add(change)
    return sorted(cuts)


def _phase_changes(phases: np.ndarray) -> list[int]:
    """Positions at which forward turns to backward, or backward to the optimizer."""
    major = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    return [
        change
        for change in (np.flatnonzero(np.diff(phases)) + 1).tolist()
        if phases[change - 1] in major and phases[change] in major and phases[change] > phases[change - 1]
    ]


def _span(graph: StepGraph, compute: I64, reaches: list[_Reach], index: int, first: int, last: int) -> Span:
    rows = compute[first:last]
    change = _phase_changes(graph.ops.phase[rows])
    phase, unit = _home(
        graph, rows[: change[0]] if change else rows
    )  # a span is named by what it begins with
    points = _points(graph, rows)
    members = []
    for reach in reaches:
        if _belongs(reach, first, last, len(compute)):
            stock = int(np.clip(reach.started - first, 0, last - first))
            ready = int(np.clip(reach.ready - first, 0, last - first))
            members.append(
                SpanCollective(
                    row=reach.row,
                    ready=ready,
                    stock=max(stock, ready),
                    required_at=min(reach.required, last) - first,
                    blocks=reach.blocks,
                    may_run_on=last < reach.required < len(compute),
                    **_choices(reach, points, ready, max(stock, ready), last - first),
                )
            )
    return Span(
        index=index,
        name=f"{_PHASES[phase]} {unit or 'root'}" if phase != Phase.OPTIMIZER else "optimizer",
        phase=phase,
        unit=unit,
        compute=rows,
        collectives=tuple(members),
        signature=_signature(graph, rows, phase, members),
    )


def _belongs(reach: _Reach, first: int, last: int, count: int) -> bool:
    """True for the one span a collective is decided in: where it started, but before what needs it.

    A gather that nothing overlapped ends at the cut before its consumer; a reduce whose data are the last
    thing a span computes starts with the next one.
    """
    if reach.required < count or reach.kind not in _REDUCES:
        latest = min(reach.required, count) - 1
        start = min(max(reach.started, reach.ready), latest) if latest >= 0 else 0
    else:
        start = min(max(reach.started, reach.ready), count - 1)
    return first <= start < last or (start < 0 and first == 0) or (first == last == start)


def _home(graph: StepGraph, rows: I64) -> tuple[Phase, str]:
    """The phase and unit most of a span's time belongs to."""
    if len(rows) == 0:
        return Phase.OTHER, ""
    weights = graph.ops.duration_ns[rows].astype(float)
    phase = Phase(int(np.bincount(graph.ops.phase[rows], weights).argmax()))
    units = graph.ops.unit[rows]
    known = units >= 0
    if not known.any():
        return phase, ""
    return phase, graph.units[int(np.bincount(units[known], weights[known]).argmax())]


def _points(graph: StepGraph, rows: I64) -> dict[int, str]:
    """Launch points of a span: position -> "side|module|phase", from annotations or the unit alone."""
    found: dict[int, str] = {}
    starts = [0, *_phase_changes(graph.ops.phase[rows]), len(rows)]
    for first, last in itertools.pairwise(starts):
        phase, unit = _home(graph, rows[first:last])
        if phase in (Phase.FORWARD, Phase.BACKWARD):
            found |= {
                first + at: text for at, text in _points_of(graph, rows[first:last], phase, unit).items()
            }
    return found


def _points_of(graph: StepGraph, rows: I64, phase: Phase, unit: str) -> dict[int, str]:
    """Launch points of the part of a span that lies in one phase.

    A module's hook before it fires once, ahead of the first op of the module or of any module inside it. What
    a module computes between or behind its children therefore starts "after" the child that has just ended.
    """
    name = _PHASES[phase]
    points = {0: f"before|{unit}|{name}"} if unit else {}
    used = set(points.values())
    modules = graph.ops.module[rows]
    first, last = _extents([graph.modules[int(m)] if m >= 0 else "" for m in modules])
    for position in (np.flatnonzero(np.diff(modules)) + 1).tolist():
        now, before = int(modules[position]), int(modules[position - 1])
        text = ""
        if now >= 0 and first[graph.modules[now]] == position:
            text = f"before|{graph.modules[now]}|{name}"
        elif phase == Phase.FORWARD and before >= 0 and last[graph.modules[before]] == position - 1:
            text = f"after|{graph.modules[before]}|{name}"
        if text and text not in used:
            used.add(text)
            points.setdefault(position, text)
    return points


def _extents(names: list[str]) -> tuple[dict[str, int], dict[str, int]]:
    """First and last position of each module, modules inside it included."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, name in enumerate(names):
        while name:
            first.setdefault(name, position)
            last[name] = position
            name = name.rpartition(".")[0]
    return first, last


def _choices(reach: _Reach, points: dict[int, str], ready: int, stock: int, length: int) -> dict[str, tuple]:  # type: ignore[type-arg]
    """Positions a collective may start at: stock's, and for gathers every launch point after its data.

    A reduce cannot be held back on the GPU: the ops behind it on its stream would wait with it
    (facts: FSDP2 copies the reduced shard out on the same stream).
    """
    chosen = {stock: ""}
    if reach.kind not in _REDUCES:
        for position, text in points.items():
            if ready <= position < length:
                chosen.setdefault(position, text)
    ordered = sorted(chosen.items())
    return {"positions": tuple(p for p, _ in ordered), "points": tuple(t for _, t in ordered)}


def _signature(graph: StepGraph, rows: I64, phase: Phase, members: list[SpanCollective]) -> str:
    ops = graph.ops
    text = [
        _PHASES[phase],
        *(f"{graph.names[n]}/{g}" for n, g in zip(ops.name[rows], ops.grid[rows], strict=True)),
    ]
    for member in members:
        collective = graph.collectives[member.row]
        text.append(f"{collective.kind.name}/{collective.num_bytes}/{member.ready}/{member.required_at}")
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]


def _harmonise(spans: list[Span]) -> tuple[Span, ...]:
    """Give equal spans the same stock positions: the median over the step."""
    groups: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        groups[span.signature].append(span)
    stock = {
        signature: [
            int(np.median([span.collectives[slot].stock for span in group]))
            for slot in range(len(group[0].collectives))
        ]
        for signature, group in groups.items()
    }
    return tuple(
        replace(
            span,
            collectives=tuple(
                _with_stock(member, stock[span.signature][slot])
                for slot, member in enumerate(span.collectives)
            ),
        )
        for span in spans
    )


def _with_stock(member: SpanCollective, stock: int) -> SpanCollective:
    if stock == member.stock:
        return member
    named = {p: t for p, t in zip(member.positions, member.points, strict=True) if t}
    named = {**named, stock: ""}
    ordered = sorted(named.items())
    return replace(
        member, stock=stock, positions=tuple(p for p, _ in ordered), points=tuple(t for _, t in ordered)
    )
