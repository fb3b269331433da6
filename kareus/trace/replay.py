"""Replays a recorded step from its graph, to show that the graph is true.

Ops start in the order in which they become able to: after the CPU has launched them and all predecessors
have ended, plus a lag, and, where a kernel of another stream fills the GPU, as that one lets go. They take
as long as recorded, or as by themselves where they shared SMs then and do not now. The order of the
recording is not used. Lags, and what is held by what, are learnt on one step (`kareus.trace.lags`) and the
replay is judged on another, so that nothing is proved by repeating it.

Across ranks a collective is a barrier: it moves data once the last rank has arrived, for as long as it
did in the recording.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kareus.trace.holds import fills_sms, release_keys
from kareus.trace.intervals import intersection_ns, length, union
from kareus.trace.lags import (
    CPU,
    Lags,
    cause_of,
    kind_of,
    learn,
    learn_ranks,
    places,
    predecessors,
)
from kareus.trace.matching import match_keys
from kareus.trace.types import I64, OpKind, StepGraph

__all__ = ["Lags", "ReplayError", "Replayed", "judge", "learn", "learn_ranks", "replay", "replay_ranks"]


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
    _Clockwork(states, meetings).run()
    return [state.result() for state in states]


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


class _Rank:
    """One rank's replay in progress; times on the common clock, ends -1 until known."""

    def __init__(self, graph: StepGraph, lags: Lags, offset: int) -> None:
        self.graph = graph
        self.offset = offset
        self.lags = lags
        self.start = np.full(len(graph.ops), -1, np.int64)
        self.end = np.full(len(graph.ops), -1, np.int64)
        self.before = predecessors(graph)
        self.after: list[list[int]] = [[] for _ in self.before]
        for op, sources in enumerate(self.before):
            for source, _ in sources:
                self.after[source].append(op)
        self.waiting_for = [len(sources) for sources in self.before]
        self.places = places(graph)
        self.fills = fills_sms(graph)
        self.running: list[tuple[int, bool]] = []  # SM-filling ops; began beside a collective
        self.talking: list[int] = []
        self.last_release: dict[int, int] = {}  # holder -> start of the newest op it let go

    def due(self, op: int) -> int:
        """When an op starts unless held; what it waits for has ended."""
        ready, cause = self.graph.start_ns + int(self.graph.host_delay_ns[op]) + self.offset, CPU
        for source, overlapped in self.before[op]:
            bound = int(self.start[source] if overlapped else self.end[source])
            if bound > ready:
                ready, cause = bound, cause_of(self.graph, source, op)
        return ready + self.lags.lag(self.places[op], kind_of(self.graph, op, cause))

    def held_until(self, op: int, time: int, since: int) -> int:
        """When an op due at `time` finds SMs; `time` itself where nothing that began from `since` on holds it.

        Where it is not known better, held ops are let go in the order in which they came.
        """
        self.running = [entry for entry in self.running if self.end[entry[0]] > time]
        stream = self.graph.ops.stream
        for holder, shares in reversed(self.running):
            if stream[holder] == stream[op] or self.start[holder] < since:
                continue
            keys = release_keys(self.graph, op, holder, self.places[op], shares)
            release, seen = self.lags.release_of(keys)
            if release is None:
                continue
            until = int(self.start[holder] if release.from_start else self.end[holder]) + release.after_ns
            if not seen:
                until = max(until, self.last_release.get(holder, 0) + 1)
            if until > time:
                self.last_release[holder] = until
                return until
        return time

    def begin(self, op: int, time: int) -> int:
        """Set an op's start, note whom it keeps waiting, and return how long it takes."""
        self.start[op] = time
        duration, stream = int(self.graph.ops.duration_ns[op]), self.graph.ops.stream
        if self.fills[op] and stream[op] != self.graph.compute_stream:
            shares = any(self.end[one] > time and stream[one] != stream[op] for one, _ in self.running)
            duration = duration if shares else self.lags.duration(self.places[op], duration)
        if self.graph.ops.kind[op] == OpKind.COLLECTIVE:
            self.talking.append(op)
        elif self.fills[op]:
            self.talking = [one for one in self.talking if self.end[one] < 0 or self.end[one] > time]
            self.running.append((op, bool(self.talking)))
        return duration

    def result(self) -> Replayed:
        """Times on the rank's own clock."""
        return Replayed(start_ns=self.start - self.offset, end_ns=self.end - self.offset)


class _Clockwork:
    """Starts ops of all ranks in order of time."""

    def __init__(self, states: Sequence[_Rank], meetings: dict[tuple[int, int], _Meeting]) -> None:
        self.states = states
        self.meetings = meetings
        # (time, when due, rank number, op, earliest start of a holder not waited for yet)
        self.queue: list[tuple[int, int, int, int, int]] = []

    def run(self) -> None:
        for number, state in enumerate(self.states):
            for op, count in enumerate(state.waiting_for):
                if count == 0:
                    self._enqueue(number, op)
        while True:
            while self.queue:
                self._next()
            if not self._force():
                return

    def _enqueue(self, number: int, op: int) -> None:
        due = self.states[number].due(op)
        heapq.heappush(self.queue, (due, due, number, op, 0))

    def _next(self) -> None:
        time, due, number, op, since = heapq.heappop(self.queue)
        state = self.states[number]
        if state.start[op] >= 0:
            return
        until = state.held_until(op, time, since)
        if until > time:  # who begins from now on may hold it once more
            heapq.heappush(self.queue, (until, due, number, op, max(time, 1)))
        else:
            self._start(number, op, time)

    def _start(self, number: int, op: int, time: int) -> None:
        state = self.states[number]
        duration = state.begin(op, time)
        meeting = self.meetings.get((number, op))
        if meeting is None:
            self._end(number, op, time + duration)
            return
        meeting.started[number] = time
        if len(meeting.started) == len(meeting.members):
            arrival = max(meeting.started.values())
            for member, its_op in meeting.members:
                ops = self.states[member].graph.ops
                recorded = int(ops.end_ns[its_op]) + self.states[member].offset - meeting.recorded_last
                transfer = min(max(recorded, 0), int(ops.duration_ns[its_op]))
                self._end(member, its_op, arrival + transfer)

    def _end(self, number: int, op: int, time: int) -> None:
        state = self.states[number]
        state.end[op] = time
        for following in state.after[op]:
            state.waiting_for[following] -= 1
            if state.waiting_for[following] == 0:
                self._enqueue(number, following)

    def _force(self) -> bool:
        """Start the first op left over, where edges or meetings go round in a circle; False where none is."""
        left = [
            (int(state.graph.ops.start_ns[op]) + state.offset, number, int(op))
            for number, state in enumerate(self.states)
            for op in np.flatnonzero(state.start < 0)
        ]
        if not left:
            return False
        _, number, op = min(left)
        heapq.heappush(self.queue, (self.states[number].due(op), 0, number, op, 0))
        return True


def _meetings(states: Sequence[_Rank]) -> dict[tuple[int, int], _Meeting]:
    """Members of every collective found on at least two of the ranks, by (rank number, op)."""
    found: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    for number, state in enumerate(states):
        for key, op in match_keys(state.graph.ops, state.graph.collectives).items():
            found[key].append((number, op))
    result: dict[tuple[int, int], _Meeting] = {}
    for members in found.values():
        if len(members) > 1:
            last = max(int(states[n].graph.ops.start_ns[op]) + states[n].offset for n, op in members)
            meeting = _Meeting(members=members, recorded_last=last, started={})
            result.update(dict.fromkeys(members, meeting))
    return result


def _exposed_ns(graph: StepGraph, start: I64, end: I64) -> int:
    comm = graph.ops.kind == OpKind.COLLECTIVE
    communication, compute = union(start[comm], end[comm]), union(start[~comm], end[~comm])
    return length(communication) - intersection_ns(communication, compute)
