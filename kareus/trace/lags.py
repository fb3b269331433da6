"""What a recorded step says about the moments at which its ops start.

An op may start once the CPU has launched it and its predecessors have ended; a small lag later it does. Or
it is held: kernels that fill the GPU keep its SMs to themselves, and what becomes ready on another stream
meanwhile starts as they drain. Both are read off one step here, for `kareus.trace.replay` to use on another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kareus.trace.types import I64, EdgeKind, OpKind, Provenance, StepGraph

Place = tuple[int, ...]
PROMPT_NS = 8_000  # a start this soon after all predecessors waited for nothing else
CPU, STREAM, EVENT = 0, 1 + int(EdgeKind.STREAM), 1 + int(EdgeKind.EVENT)  # what an op waited for last


@dataclass(frozen=True, kw_only=True, slots=True)
class Lags:
    """When ops start relative to what they waited for, nanoseconds.

    Attributes:
        by_place: from "all it waits for has ended" to "it starts", per op of the step learnt on: (stream,
            name, grid, unit, phase, ordinal, cause); the cause is CPU, STREAM or EVENT.
        by_kind: its median per (stream, kernel class, cause), for ops that were held or waited for
            something else in the step learnt on.
        release: start of a held op minus the end of its holder, per key of `release_keys`, finest known.
            Keys of pairs that usually run side by side are there with None.
        by_itself: duration of ops beside the compute stream that did not share SMs when they started, per
            place and median per (name, grid). A kernel that starts while another drains takes longer.
    """

    by_place: dict[Place, int]
    by_kind: dict[Place, int]
    release: dict[Place, int | None]
    by_itself: dict[Place, int]

    def lag(self, place: Place, kind: Place) -> int:
        """Return the lag of an op that is not held."""
        found = self.by_place.get((*place, kind[-1]))
        return self.by_kind.get(kind, 0) if found is None else found

    def duration(self, place: Place, recorded: int) -> int:
        """Return how long an op lasts that shares its SMs with nobody when it starts."""
        return min(recorded, self.by_itself.get(place, self.by_itself.get(place[1:3], recorded)))

    def release_of(self, keys: tuple[Place, ...]) -> tuple[int | None, bool]:
        """Return when a held op starts relative to its holder's end, and whether this very op was seen held.

        None where the pair shares the GPU.
        """
        for key in keys:
            if key in self.release:
                return self.release[key], key is keys[0]
        return None, False


def _by_itself(graph: StepGraph, place_of: list[Place], crowd: _Crowd) -> dict[Place, int]:
    ops = graph.ops
    samples: dict[Place, list[int]] = defaultdict(list)
    for op in np.flatnonzero(crowd.fills & (ops.stream != graph.compute_stream)).tolist():
        start = int(ops.start_ns[op])
        if not crowd.between(op, start, start):
            samples[place_of[op]].append(int(ops.duration_ns[op]))
            samples[int(ops.name[op]), int(ops.grid[op])].append(int(ops.duration_ns[op]))
    return {key: int(np.median(values)) for key, values in samples.items()}


def learn(graph: StepGraph) -> Lags:
    """Read the lags off one recorded step."""
    ops = graph.ops
    ready, cause = _recorded_ready(graph)
    place_of = places(graph)
    crowd = _Crowd(graph, fills_sms(graph))
    seen = _Seen()
    waited: list[tuple[int, int]] = []  # held ops and the least time they would have taken by themselves
    gaps: dict[Place, list[int]] = defaultdict(list)
    by_place: dict[Place, int] = {}
    for op, place in enumerate(place_of):
        start, gap = int(ops.start_ns[op]), int(ops.start_ns[op] - ready[op])
        others = crowd.between(op, int(ready[op]), start)
        holder = min(others, key=lambda one: abs(start - int(ops.end_ns[one])), default=-1)
        is_held = gap > PROMPT_NS and holder >= 0 and abs(start - int(ops.end_ns[holder])) < gap
        least = int(ops.start_ns[holder] - ready[op]) + 1 if is_held else 0
        for one in others:
            keys = release_keys(graph, op, one, place, crowd.shares(one))
            after = start - int(ops.end_ns[one])
            if is_held and one == holder:
                seen.held(keys, after)
            elif is_held and after < -PROMPT_NS and ops.start_ns[one] < ops.start_ns[holder]:
                seen.held(keys[:1], int(ops.start_ns[holder] - ops.end_ns[one]) + 1)  # the holder took over
                least = 0
            elif -PROMPT_NS <= after < 0:
                seen.held(keys[:1], after)  # in the tail: it may have waited for that
            elif after < 0:
                seen.beside(keys, -after)
        if is_held:
            waited.append((op, least))
        else:
            by_place[*place, int(cause[op])] = gap
            gaps[kind_of(graph, op, int(cause[op]))].append(gap)
    by_kind = {kind: int(np.median(values)) for kind, values in gaps.items()}
    for op, least in waited:  # by itself it would have taken as long as others of its kind
        usual = min(by_kind.get(kind_of(graph, op, int(cause[op])), 0), int(ops.start_ns[op] - ready[op]))
        by_place[*place_of[op], int(cause[op])] = max(least, usual)
    return Lags(
        by_place=by_place,
        by_kind=by_kind,
        release=seen.releases(),
        by_itself=_by_itself(graph, place_of, crowd),
    )


class _Seen:
    """Samples of who waited for whom, by keys of `release_keys`."""

    def __init__(self) -> None:
        self._held: dict[Place, list[int]] = defaultdict(list)
        self._beside: dict[Place, list[int]] = defaultdict(list)

    def held(self, keys: Sequence[Place], after: int) -> None:
        for key in keys:
            self._held[key].append(after)

    def beside(self, keys: Sequence[Place], remaining: int) -> None:
        for key in keys:
            self._beside[key].append(remaining)

    def releases(self) -> dict[Place, int | None]:
        """Median release per key; None where more ops started well before their would-be holder drained."""
        release: dict[Place, int | None] = {}
        for key in self._held.keys() | self._beside.keys():
            held = self._held.get(key, [])
            middle = int(np.median(held)) if held else 0
            free = sum(1 for remaining in self._beside.get(key, ()) if remaining > PROMPT_NS - middle)
            if len(held) > free:
                release[key] = middle
            elif free:
                release[key] = None
        return release


def release_keys(
    graph: StepGraph, op: int, holder: int, place: Place, shares: bool
) -> tuple[Place, Place, Place]:
    """Keys of "op held by holder", finest first; `shares`: a collective ran when the holder started.

    A GEMM that starts beside a collective gets fewer SMs than thread blocks, so that its last wave, during
    which others find room, is long.
    """
    ops = graph.ops
    holding = int(ops.name[holder]), int(ops.grid[holder]), int(shares)
    return (
        (*place, *holding),
        (int(ops.name[op]), int(ops.grid[op]), *holding),
        (int(ops.kernel_class[op]), int(ops.kernel_class[holder]), int(shares)),
    )


def fills_sms(graph: StepGraph) -> np.ndarray:
    """Which ops can keep SMs from others: kernels; not copies, memsets and collectives: bool[ops]."""
    return np.asarray(graph.ops.kind == OpKind.COMPUTE)


def kind_of(graph: StepGraph, op: int, cause: int) -> Place:
    """Key of ops alike: (stream, kernel class, cause)."""
    return int(graph.ops.stream[op]), int(graph.ops.kernel_class[op]), cause


def cause_of(graph: StepGraph, source: int, target: int) -> int:
    """Return STREAM or EVENT, by whether both ops are on one stream."""
    return STREAM if graph.ops.stream[source] == graph.ops.stream[target] else EVENT


def places(graph: StepGraph) -> list[Place]:
    """An op's place in any step of the job: (stream, name, grid, unit, phase, ordinal among equals)."""
    ops = graph.ops
    counts: dict[Place, int] = defaultdict(int)
    found = []
    for row in zip(ops.stream, ops.name, ops.grid, ops.unit, ops.phase, strict=True):
        what = tuple(int(value) for value in row)
        counts[what] += 1
        found.append((*what, counts[what]))
    return found


def predecessors(graph: StepGraph) -> list[list[tuple[int, bool]]]:
    """Sources of each op; True where both overlap on one stream, so only the starts are ordered."""
    before: list[list[tuple[int, bool]]] = [[] for _ in range(len(graph.ops))]
    for (source, target), kind, known in zip(
        graph.edges.tolist(), graph.edge_kind, graph.edge_provenance, strict=True
    ):
        if known != Provenance.PRUNED:
            before[target].append((source, False))
        elif kind == EdgeKind.STREAM:
            before[target].append((source, True))
    return before


def _recorded_ready(graph: StepGraph) -> tuple[I64, I64]:
    """When each op could have started in the recording, and what it waited for last."""
    ops = graph.ops
    ready = graph.start_ns + graph.host_delay_ns
    cause = np.full(len(ops), CPU, np.int64)
    for op, sources in enumerate(predecessors(graph)):
        for source, overlapped in sources:
            bound = ops.start_ns[source] if overlapped else ops.end_ns[source]
            if bound > ready[op]:
                ready[op], cause[op] = bound, cause_of(graph, source, op)
    return ready, cause


class _Crowd:
    """Who else was on the GPU in the recording."""

    def __init__(self, graph: StepGraph, fills: np.ndarray) -> None:
        self.ops = graph.ops
        self.fills = fills
        self.rows = np.flatnonzero(fills)
        self.starts = self.ops.start_ns[self.rows]
        self.longest = int(self.ops.duration_ns[self.rows].max()) if len(self.rows) else 0
        talks = self.ops.kind == OpKind.COLLECTIVE
        self.talk_starts = self.ops.start_ns[talks]
        self.talk_ends = np.maximum.accumulate(self.ops.end_ns[talks])

    def between(self, op: int, ready: int, start: int) -> list[int]:
        """SM-filling ops of other streams that ran at some time from `ready` on and began before `start`."""
        first = int(np.searchsorted(self.starts, ready - self.longest, side="left"))
        last = int(np.searchsorted(self.starts, start, side="left"))
        rows = self.rows[first:last]
        keep = (self.ops.end_ns[rows] > ready) & (self.ops.stream[rows] != self.ops.stream[op])
        return [int(row) for row in rows[keep]]

    def shares(self, holder: int) -> bool:
        """Whether a collective was running when `holder` started."""
        start = self.ops.start_ns[holder]
        before = int(np.searchsorted(self.talk_starts, start, side="right"))
        return before > 0 and bool(self.talk_ends[before - 1] > start)
