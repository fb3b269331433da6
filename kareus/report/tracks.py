"""From a step's op table to the timeline that is drawn: a track for every stream, compute first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kareus.report.data import Counter, Slice, SliceClass, Source, Timeline, Track
from kareus.report.numbers import megabytes
from kareus.report.words import CollectiveEffect
from kareus.schedule import Path, Schedule
from kareus.trace.identity import collective_key
from kareus.trace.intervals import overlap_ns
from kareus.trace.types import (
    I64,
    CollectiveKind,
    CollectiveOp,
    EdgeKind,
    PowerSamples,
    Provenance,
    StepGraph,
)

_KIND_CLASS = {
    CollectiveKind.ALL_GATHER: SliceClass.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER: SliceClass.REDUCE_SCATTER,
    CollectiveKind.ALL_REDUCE: SliceClass.ALL_REDUCE,
}
_STREAM_WORDS = {
    SliceClass.ALL_GATHER: "all-gather",
    SliceClass.REDUCE_SCATTER: "reduce-scatter",
    SliceClass.ALL_REDUCE: "all-reduce",
    SliceClass.COMMUNICATION: "communication",
}


def recorded(graph: StepGraph, power: PowerSamples | None = None) -> Timeline:
    """Return the step as it was recorded, with the power and clock that were sampled beside it.

    Args:
        graph: the step. power: samples with absolute times; those outside the step are left out.
    """
    starts = graph.ops.start_ns - graph.start_ns
    ends = graph.ops.end_ns - graph.start_ns
    details = [_detail(c, c.num_ctas, c.path) for c in graph.collectives]
    return Timeline(
        duration_ns=graph.duration_ns,
        tracks=_tracks(graph, starts, ends, details),
        source=Source.MEASURED,
        counters=_counters(graph, power) if power is not None else (),
        arrows=_arrows(graph),
    )


def simulated(
    graph: StepGraph, starts_ns: I64, ends_ns: I64, duration_ns: int, schedule: Schedule | None
) -> Timeline:
    """Return the step as the model predicts it.

    Args:
        graph: the step. starts_ns, ends_ns: of each op, relative to the step's start, int64[ops].
        duration_ns: of the predicted step. schedule: what it ran under, None stock.
    """
    details = []
    for collective in graph.collectives:
        key = collective_key(collective)
        ctas, path = collective.num_ctas, collective.path
        if schedule is not None and key is not None:
            decision = schedule.decision_for(key)
            ctas = decision.num_ctas or ctas
            path = str(decision.path) if decision.path is not Path.NCCL else path
        details.append(_detail(collective, ctas, path))
    return Timeline(
        duration_ns=duration_ns,
        tracks=_tracks(graph, starts_ns, ends_ns, details),
        source=Source.PREDICTED,
        arrows=_arrows(graph),
    )


def collective_effects(
    graph: StepGraph, before: tuple[I64, I64], after: tuple[I64, I64]
) -> list[CollectiveEffect]:
    """Return how each collective of the step fares: how long it lasts, and how much of that is exposed.

    Args:
        graph: the step. before, after: (starts_ns, ends_ns) of each op, int64[ops] each.
    """
    sides = [_durations(graph, *times) for times in (before, after)]
    return [
        CollectiveEffect(duration_us=(a[0], b[0]), exposed_us=(a[1], b[1]))
        for a, b in zip(*sides, strict=True)
    ]


def _durations(graph: StepGraph, starts: I64, ends: I64) -> list[tuple[float, float]]:
    """Duration and exposed part of each collective, microseconds; its copies, if several, are added up."""
    owner = graph.ops.collective
    compute, mine = np.flatnonzero(owner < 0), np.flatnonzero(owner >= 0)
    lasts = ends[mine] - starts[mine]
    exposed = lasts - overlap_ns(starts[mine], ends[mine], starts[compute], ends[compute])
    count = len(graph.collectives)
    sums = [np.bincount(owner[mine], weights=values, minlength=count) / 1e3 for values in (lasts, exposed)]
    return list(zip(sums[0].tolist(), sums[1].tolist(), strict=True))


def _tracks(graph: StepGraph, starts: I64, ends: I64, details: Sequence[str]) -> tuple[Track, ...]:
    classes = _classes(graph)
    labels = [str(collective_key(c) or c.kind.name.lower()) for c in graph.collectives]
    ops = graph.ops
    tracks = []
    for stream in sorted(set(ops.stream.tolist()), key=lambda s: (s != graph.compute_stream, s)):
        rows = np.flatnonzero(ops.stream == stream)
        pieces = []
        for row in rows[np.argsort(starts[rows], kind="stable")].tolist():
            collective = int(ops.collective[row])
            pieces.append(
                Slice(
                    start_ns=int(starts[row]),
                    end_ns=int(ends[row]),
                    kind=classes[row],
                    label=graph.names[ops.name[row]] if collective < 0 else labels[collective],
                    detail="" if collective < 0 else details[collective],
                    op=row,
                )
            )
        tracks.append(Track(name=_track_name(graph, stream, pieces), slices=tuple(pieces)))
    return tuple(tracks)


def _classes(graph: StepGraph) -> list[SliceClass]:
    found = []
    for kernel_class, collective in zip(
        graph.ops.kernel_class.tolist(), graph.ops.collective.tolist(), strict=True
    ):
        if collective >= 0:
            kind = graph.collectives[collective].kind
            found.append(_KIND_CLASS.get(kind, SliceClass.COMMUNICATION))
        else:
            found.append(SliceClass(kernel_class))
    return found


def _track_name(graph: StepGraph, stream: int, pieces: Sequence[Slice]) -> str:
    if stream == graph.compute_stream:
        return f"compute, stream {stream}"
    kinds = {piece.kind for piece in pieces if piece.kind.is_communication}
    words = [name for kind, name in _STREAM_WORDS.items() if kind in kinds]
    if not words:
        copies = {SliceClass.COPY, SliceClass.MEMSET}
        words = ["copies" if {piece.kind for piece in pieces} <= copies else "kernels"]
    return f"{' + '.join(words)}, stream {stream}"


def _detail(collective: CollectiveOp, num_ctas: int, path: str) -> str:
    parts = []
    if path == str(Path.COPY_ENGINE):
        parts.append("copy engine")
    elif num_ctas:
        parts.append(f"{num_ctas} CTA" + ("" if num_ctas == 1 else "s"))
    if collective.num_bytes:
        parts.append(megabytes(collective.num_bytes))
    return ", ".join(parts)


def _arrows(graph: StepGraph) -> tuple[tuple[int, int], ...]:
    """Edges between streams that the recording did not contradict."""
    if not len(graph.edges):
        return ()
    stream = graph.ops.stream
    across = stream[graph.edges[:, 0]] != stream[graph.edges[:, 1]]
    kept = across & (graph.edge_kind == EdgeKind.EVENT) & (graph.edge_provenance != Provenance.PRUNED)
    return tuple((int(a), int(b)) for a, b in graph.edges[kept].tolist())


def _counters(graph: StepGraph, power: PowerSamples) -> tuple[Counter, ...]:
    inside = (power.time_ns >= graph.start_ns) & (power.time_ns < graph.end_ns)
    times = (power.time_ns[inside] - graph.start_ns).tolist()
    columns: Mapping[str, list[float]] = {
        "power W": (power.power_mw[inside] / 1e3).tolist(),
        "SM clock MHz": power.sm_clock_mhz[inside].tolist(),
    }
    return tuple(
        Counter(name=name, samples=tuple(zip(times, values, strict=True)))
        for name, values in columns.items()
        if any(values)
    )
