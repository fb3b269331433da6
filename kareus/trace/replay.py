"""Replays a recorded step from its graph, to show that the graph is true.

Every op starts when the CPU has launched it and all its predecessors have ended, plus a lag; it takes as
long as recorded. An op beside the compute stream may also be held: persistent GEMMs keep all SMs to
themselves, and what becomes ready while one runs starts as it drains. Lags, and what is held by what, are
learnt on one step and the replay is judged on another, so that nothing is proved by repeating it.

Across ranks a collective is a barrier: it moves data once the last rank has arrived, for as long as it
did in the recording.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kareus.trace.intervals import intersection_ns, length, union
from kareus.trace.ranks import match_keys
from kareus.trace.types import I64, EdgeKind, OpKind, Provenance, StepGraph

Place = tuple[int, ...]
HELD = 9  # cause: SMs kept by a kernel of the compute stream


@dataclass(frozen=True, kw_only=True, slots=True)
class Lags:
    """Time between "everything it waits for has ended" and "it starts", in nanoseconds.

    Attributes:
        by_place: per op of the step learnt on: (stream, name, grid, unit, phase, ordinal, cause), where the
            cause is what it waited for last: 0 the CPU, 1 its stream, 3 another stream, 9 SMs.
        by_kind: median per (stream, kernel class, cause); for ops that waited for something else then.
        held: shares of ops held, per (stream, kernel class, class of what ran on the compute stream).
    """

    by_place: dict[Place, int]
    by_kind: dict[Place, int]
    held: dict[Place, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """Times of one replayed step, absolute nanoseconds, in the graph's op order: int64[ops]."""

    start_ns: I64
    end_ns: I64


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayError:
    """A replay against the recording; shares, not percent.

    Attributes:
        step_time: |replayed - recorded| step time over the recorded.
        exposed_comm: the same for exposed communication, over the recorded (over the step where there is
            next to none).
        kernel_end: median over ops of |replayed - recorded| end, over the recorded step time.
        kernel_end_p95: its 95th percentile.
    """

    step_time: float
    exposed_comm: float
    kernel_end: float
    kernel_end_p95: float


def learn(graph: StepGraph) -> Lags:
    """Read the lags off one recorded step."""
    ops = graph.ops
    ready, cause = _recorded_ready(graph)
    running = _Running(graph)
    gaps: dict[Place, list[int]] = defaultdict(list)
    held: dict[Place, list[bool]] = defaultdict(list)
    by_place: dict[Place, int] = {}
    for op, place in enumerate(_places(graph)):
        gap, why = int(ops.start_ns[op] - ready[op]), int(cause[op])
        holder = running.at(op, int(ready[op]), ops.start_ns, ops.end_ns)
        if holder >= 0:
            after = int(ops.start_ns[op] - ops.end_ns[holder])
            is_held = abs(after) < gap
            held[_holding(graph, op, holder)].append(is_held)
            if is_held:
                gap, why = after, HELD
        by_place[*place, why] = gap
        gaps[_kind(graph, op, why)].append(gap)
    return Lags(
        by_place=by_place,
        by_kind={kind: int(np.median(values)) for kind, values in gaps.items()},
        held={key: sum(values) / len(values) for key, values in held.items()},
    )


def replay(graph: StepGraph, lags: Lags) -> Replayed:
    """Replay one rank's step by itself; a collective takes as long as recorded, waiting included."""
    return replay_ranks([graph], [lags], [0])[0]


def replay_ranks(
    graphs: Sequence[StepGraph], lags: Sequence[Lags], offsets_ns: Sequence[int]
) -> list[Replayed]:
    """Replay one step of several ranks, with collectives as barriers.

    Args:
        graphs: the same step of each rank. lags: of each rank, learnt on another step.
        offsets_ns: of each rank, added to its times to get a common clock (see TraceSet.alignment).

    Returns:
        Times of each rank on its own clock.
    """
    states = [_Rank(g, lag, offset) for g, lag, offset in zip(graphs, lags, offsets_ns, strict=True)]
    meetings = _meetings(states)
    order = sorted(
        (int(state.graph.ops.start_ns[op]) + state.offset, number, op)
        for number, state in enumerate(states)
        for op in range(len(state.graph.ops))
    )
    for _, number, op in order:
        states[number].place(op, meetings)
    return [state.result(meetings) for state in states]


def judge(graph: StepGraph, replayed: Replayed) -> ReplayError:
    """Compare a replay with the recording it replays."""
    ops = graph.ops
    recorded = graph.duration_ns
    last = int(replayed.end_ns.max()) if len(ops) else graph.start_ns
    first = min(graph.start_ns, int(replayed.start_ns.min())) if len(ops) else graph.start_ns
    exposed = _exposed_ns(graph, ops.start_ns, ops.end_ns)
    again = _exposed_ns(graph, replayed.start_ns, replayed.end_ns)
    difference = np.abs(replayed.end_ns - ops.end_ns)
    return ReplayError(
        step_time=abs((last - first) - recorded) / recorded,
        exposed_comm=abs(again - exposed) / max(exposed, recorded * 0.001),
        kernel_end=float(np.median(difference)) / recorded,
        kernel_end_p95=float(np.percentile(difference, 95)) / recorded,
    )


@dataclass
class _Meeting:
    """One collective on several ranks: who takes part, and when each started in the replay."""

    members: list[tuple[int, int]]
    recorded_last: int
    started: dict[int, int]


Meetings = dict[tuple[int, int], _Meeting]


class _Rank:
    """One rank's replay in progress; times on the common clock."""

    def __init__(self, graph: StepGraph, lags: Lags, offset: int) -> None:
        self.graph = graph
        self.offset = offset
        self.lags = lags
        self.number = -1
        self.start = np.zeros(len(graph.ops), np.int64)
        self.end = np.full(len(graph.ops), -1, np.int64)
        self.before = _predecessors(graph)
        self.places = _places(graph)
        self.running = _Running(graph)

    def place(self, op: int, meetings: Meetings) -> None:
        """Set an op's start; ends of collectives follow once every member has one."""
        graph = self.graph
        ready, cause = graph.start_ns + int(graph.host_delay_ns[op]) + self.offset, 0
        for source, overlapped in self.before[op]:
            bound = int(self.start[source]) if overlapped else self.ended(source, meetings)
            if bound > ready:
                ready, cause = bound, _cause(graph, source, op)
        holder = self.running.at(op, ready, self.start, self.end)
        if holder >= 0 and self._is_held(op, holder, cause):
            ready, cause = int(self.end[holder]), HELD
        lag = self.lags.by_place.get((*self.places[op], cause))
        if lag is None:
            lag = self.lags.by_kind.get(_kind(graph, op, cause), 0)
        self.start[op] = ready + lag
        meeting = meetings.get((self.number, op))
        if meeting is None:
            self.end[op] = self.start[op] + int(graph.ops.duration_ns[op])
        else:
            meeting.started[self.number] = int(self.start[op])

    def _is_held(self, op: int, holder: int, cause: int) -> bool:
        """What happened here when learnt; where that was another wait, what usually happens."""
        if (*self.places[op], HELD) in self.lags.by_place:
            return True
        if (*self.places[op], cause) in self.lags.by_place:
            return False
        return self.lags.held.get(_holding(self.graph, op, holder), 0.0) > 0.5

    def ended(self, op: int, meetings: Meetings) -> int:
        """An op's end; a collective's is the last arrival plus its recorded transfer time."""
        if self.end[op] < 0:
            meeting = meetings[self.number, op]
            transfer = int(self.graph.ops.end_ns[op]) + self.offset - meeting.recorded_last
            own = int(self.graph.ops.duration_ns[op])
            arrival = max(meeting.started.values())
            self.end[op] = arrival + min(max(transfer, 0), own)
        return int(self.end[op])

    def result(self, meetings: Meetings) -> Replayed:
        for op in np.flatnonzero(self.end < 0):
            self.ended(int(op), meetings)
        return Replayed(start_ns=self.start - self.offset, end_ns=self.end - self.offset)


def _meetings(states: Sequence[_Rank]) -> Meetings:
    """Members of every collective found on at least two of the ranks, by (rank number, op)."""
    found: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    for number, state in enumerate(states):
        state.number = number
        for key, op in match_keys(state.graph.ops, state.graph.collectives).items():
            found[key].append((number, op))
    result: Meetings = {}
    for members in found.values():
        if len(members) > 1:
            last = max(int(states[n].graph.ops.start_ns[op]) + states[n].offset for n, op in members)
            meeting = _Meeting(members=members, recorded_last=last, started={})
            result.update(dict.fromkeys(members, meeting))
    return result


def _predecessors(graph: StepGraph) -> list[list[tuple[int, bool]]]:
    """Sources of each op; True where both overlap on one stream, so only the starts are ordered."""
    before: list[list[tuple[int, bool]]] = [[] for _ in range(len(graph.ops))]
    for (source, target), kind, known in zip(
        graph.edges, graph.edge_kind, graph.edge_provenance, strict=True
    ):
        if known != Provenance.PRUNED:
            before[int(target)].append((int(source), False))
        elif kind == EdgeKind.STREAM:
            before[int(target)].append((int(source), True))
    return before


def _recorded_ready(graph: StepGraph) -> tuple[I64, I64]:
    """When each op could have started in the recording, and what it waited for last; see Lags."""
    ops = graph.ops
    ready = graph.start_ns + graph.host_delay_ns
    cause = np.zeros(len(ops), np.int64)
    for op, sources in enumerate(_predecessors(graph)):
        for source, overlapped in sources:
            bound = ops.start_ns[source] if overlapped else ops.end_ns[source]
            if bound > ready[op]:
                ready[op], cause[op] = bound, _cause(graph, source, op)
    return ready, cause


def _places(graph: StepGraph) -> list[Place]:
    ops = graph.ops
    counts: dict[Place, int] = defaultdict(int)
    places = []
    for row in zip(ops.stream, ops.name, ops.grid, ops.unit, ops.phase, strict=True):
        what = tuple(int(value) for value in row)
        counts[what] += 1
        places.append((*what, counts[what]))
    return places


def _kind(graph: StepGraph, op: int, cause: int) -> Place:
    return int(graph.ops.stream[op]), int(graph.ops.kernel_class[op]), cause


def _holding(graph: StepGraph, op: int, holder: int) -> Place:
    ops = graph.ops
    return int(ops.stream[op]), int(ops.kernel_class[op]), int(ops.kernel_class[holder])


class _Running:
    """Answers which op of the compute stream runs when another op becomes ready."""

    def __init__(self, graph: StepGraph) -> None:
        ops = graph.ops
        on_compute = (ops.stream == graph.compute_stream) & (ops.kind != OpKind.COLLECTIVE)
        self.aside = ops.stream != graph.compute_stream
        self.rows = np.flatnonzero(on_compute)
        self.recorded = ops.start_ns[self.rows]
        self.starts = ops.start_ns

    def at(self, op: int, ready: int, start: I64, end: I64) -> int:
        """Return that op, -1 where none runs or where the op is on the compute stream itself.

        Args:
            op: the op that becomes ready. ready: when. start, end: times of all ops; those that began
                before `op` in the recording must be there.
        """
        if not self.aside[op]:
            return -1
        at = int(np.searchsorted(self.recorded, self.starts[op], side="right")) - 1
        while at >= 0 and start[self.rows[at]] > ready:
            at -= 1
        if at < 0 or end[self.rows[at]] <= ready:
            return -1
        return int(self.rows[at])


def _cause(graph: StepGraph, source: int, target: int) -> int:
    same = graph.ops.stream[source] == graph.ops.stream[target]
    return 1 + int(EdgeKind.STREAM if same else EdgeKind.EVENT)


def _exposed_ns(graph: StepGraph, start: I64, end: I64) -> int:
    comm = graph.ops.kind == OpKind.COLLECTIVE
    communication, compute = union(start[comm], end[comm]), union(start[~comm], end[~comm])
    return length(communication) - intersection_ns(communication, compute)
