"""What a recorded step says about the moments at which its ops start.

An op may start once the CPU has launched it and its predecessors have ended; a small lag later it does. Or
it is held: kernels that fill the GPU keep its SMs to themselves, and what becomes ready on another stream
meanwhile starts as they let go (`kareus.trace.holds`). Both are read off one step here, for `kareus.trace.replay`
to use on another. Who lets go when is a fact of the kernels, so all ranks of the step tell it together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kareus.trace.holds import (
    PROMPT_NS,
    Crowd,
    FirstBlocks,
    Key,
    Late,
    Place,
    Release,
    Seen,
    holder_of,
    release_keys,
)
from kareus.trace.types import I64, EdgeKind, Provenance, StepGraph

CPU, STREAM, EVENT = 0, 1 + int(EdgeKind.STREAM), 1 + int(EdgeKind.EVENT)  # what an op waited for last


@dataclass(frozen=True, kw_only=True, slots=True)
class Lags:
    """When ops start relative to what they waited for, nanoseconds.

    Attributes:
        by_place: from "all it waits for has ended" to "it starts", per op of the step learnt on: (stream,
            name, grid, unit, phase, ordinal, cause); the cause is CPU, STREAM or EVENT.
        by_kind: its median per (stream, kernel class, cause), for ops that were held or waited for
            something else in the step learnt on.
        release: when a held op starts, per key of `release_keys`, finest known. Keys of pairs that usually run
            side by side are there with None.
        by_itself: duration of ops beside the compute stream that did not share SMs when they started, per
            place and median per (name, grid). A kernel that starts while another drains takes longer.
    """

    by_place: dict[Place, int]
    by_kind: dict[Place, int]
    release: dict[Key, Release | None]
    by_itself: dict[Place, int]

    def lag(self, place: Place, kind: Place) -> int:
        """Return the lag of an op that is not held."""
        found = self.by_place.get((*place, kind[-1]))
        return self.by_kind.get(kind, 0) if found is None else found

    def duration(self, place: Place, recorded: int) -> int:
        """Return how long an op lasts that shares its SMs with nobody when it starts."""
        return min(recorded, self.by_itself.get(place, self.by_itself.get(place[1:3], recorded)))

    def release_of(self, keys: tuple[Key, ...]) -> tuple[Release | None, bool]:
        """Return when a held op starts, and whether this very op was seen held.

        None where the pair shares the GPU.
        """
        for key in keys:
            if key in self.release:
                return self.release[key], key is keys[0]
        return None, False


def _by_itself(graph: StepGraph, place_of: list[Place], crowd: Crowd) -> dict[Place, int]:
    ops = graph.ops
    samples: dict[Place, list[int]] = defaultdict(list)
    for op in np.flatnonzero(crowd.fills & (ops.stream != graph.compute_stream)).tolist():
        start = int(ops.start_ns[op])
        if not crowd.between(op, start, start):
            samples[place_of[op]].append(int(ops.duration_ns[op]))
            samples[int(ops.name[op]), int(ops.grid[op])].append(int(ops.duration_ns[op]))
    return {key: int(np.median(values)) for key, values in samples.items()}


def learn(graph: StepGraph) -> Lags:
    """Read the lags off one recorded step of one rank."""
    return learn_ranks([graph])[0]


def learn_ranks(graphs: Sequence[StepGraph]) -> list[Lags]:
    """Read the lags off one recorded step of several ranks; releases of kinds of ops come from all of them."""
    first_blocks = FirstBlocks()
    steps = [_Step(graph) for graph in graphs]
    for step in steps:
        first_blocks.add(step.graph, step.crowd, step.late)
    first_blocks.settle()
    everywhere = Seen(first_blocks)
    own = [Seen(first_blocks) for _ in steps]
    times = [step.times(first_blocks, seen, everywhere) for step, seen in zip(steps, own, strict=True)]
    shared = everywhere.releases()
    return [
        Lags(
            by_place=by_place,
            by_kind=by_kind,
            release={**shared, **seen.releases()},
            by_itself=_by_itself(step.graph, step.places, step.crowd),
        )
        for step, seen, (by_place, by_kind) in zip(steps, own, times, strict=True)
    ]


class _Step:
    """One rank's recorded step while lags are read off it."""

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        self.crowd = Crowd(graph)
        self.ready, self.cause = _recorded_ready(graph)
        self.places = places(graph)
        self.late = [self.crowd.late(op, int(ready)) for op, ready in enumerate(self.ready)]

    def times(
        self, first_blocks: FirstBlocks, own: Seen, everywhere: Seen
    ) -> tuple[dict[Place, int], dict[Place, int]]:
        """Return lags by place and by kind; note who held whom, this rank's very ops in `own`, kinds `everywhere`."""
        graph, starts = self.graph, self.graph.ops.start_ns
        waited: list[tuple[int, int]] = []  # held ops and the least time they would have taken by themselves
        gaps: dict[Place, list[int]] = defaultdict(list)
        by_place: dict[Place, int] = {}
        for op, (place, late) in enumerate(zip(self.places, self.late, strict=True)):
            holder = min(late.others, key=lambda one: self._distance(one, late, first_blocks), default=-1)
            is_held = late.gap_ns > PROMPT_NS and holder >= 0
            is_held = is_held and self._distance(holder, late, first_blocks) < late.gap_ns
            least = int(starts[holder] - self.ready[op]) + 1 if is_held else 0
            if self._note(op, holder if is_held else -1, own, everywhere):
                least = 0
            if is_held:
                waited.append((op, least))
            else:
                by_place[*place, int(self.cause[op])] = late.gap_ns
                gaps[kind_of(graph, op, int(self.cause[op]))].append(late.gap_ns)
        by_kind = {kind: int(np.median(values)) for kind, values in gaps.items()}
        for op, least in waited:  # by itself it would have taken as long as others of its kind
            cause = int(self.cause[op])
            usual = min(by_kind.get(kind_of(graph, op, cause), 0), self.late[op].gap_ns)
            by_place[*self.places[op], cause] = max(least, usual)
        return by_place, by_kind

    def _distance(self, one: int, late: Late, first_blocks: FirstBlocks) -> int:
        """How far from the moment at which `one` lets go an op started."""
        ops = self.graph.ops
        from_end = abs(late.start_ns - int(ops.end_ns[one]))
        usual = first_blocks.after_ns.get(holder_of(self.graph, one, self.crowd.shares(one)))
        return (
            from_end if usual is None else min(from_end, abs(late.start_ns - int(ops.start_ns[one]) - usual))
        )

    def _note(self, op: int, holder: int, own: Seen, everywhere: Seen) -> bool:
        """Note everybody an op met; return whether it was held by more than one after the other."""
        starts, ends, several = self.graph.ops.start_ns, self.graph.ops.end_ns, False
        for one in self.late[op].others:
            very, *kinds = release_keys(self.graph, op, one, self.places[op], self.crowd.shares(one))
            after = int(starts[op] - ends[one]), int(starts[op] - starts[one])
            if one == holder:
                own.held([very], *after)
                everywhere.held(kinds, *after)
            elif holder >= 0 and after[0] < -PROMPT_NS and starts[one] < starts[holder]:
                takes_over = int(starts[holder]) + 1
                own.held([very], takes_over - int(ends[one]), takes_over - int(starts[one]))
                several = True
            elif -PROMPT_NS <= after[0] < 0:
                own.held([very], *after)  # in the tail: it may have waited for that
            elif after[0] < 0:
                own.beside([very], *after)
                everywhere.beside(kinds, *after)
        return several


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
