"""The event loop of the simulator: tasks, rates and time, nothing of schedules, power or reports."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kareus.errors import InputError
from kareus.model import rates
from kareus.model.cost import CostModel
from kareus.model.layout import Layout, successors
from kareus.model.rates import Flow
from kareus.trace.types import F64, KernelClass, StepGraph

_END, _START = 0, 1  # at one instant, ends come before starts
Event = tuple[float, int, int, int, int]  # time, what, rank, op, version of its end


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """What the event loop found.

    Attributes:
        start_us, end_us: float[ops] for each rank. time_us: end of the last op of each rank, plus the tail
            of the step in which the recording shows nothing.
        flow_energy_j: dynamic energy of each rank's collectives. events: starts and ends handled.
    """

    start_us: list[F64]
    end_us: list[F64]
    time_us: F64
    flow_energy_j: list[float]
    events: int


def play(
    graphs: Sequence[StepGraph], layouts: Sequence[Layout], cost: CostModel, clocks: Sequence[F64]
) -> Played:
    """Play a step to its end.

    Args:
        graphs, layouts: one for each rank. cost: the model. clocks: SM clock of each op, MHz, for each rank.

    Raises:
        InputError: the tasks wait for each other in a circle.
    """
    ranks = [
        _Rank(graph, tasks, cost, clock) for graph, tasks, clock in zip(graphs, layouts, clocks, strict=True)
    ]
    meetings = _meetings(layouts)
    queue: list[Event] = []
    for index, rank in enumerate(ranks):
        for op in rank.ready_at_start():
            heapq.heappush(queue, (rank.lag[op], _START, index, op, 0))
    events = 0
    while queue:
        now, what, index, op, version = heapq.heappop(queue)
        rank = ranks[index]
        if what == _END and rank.version[op] != version:
            continue  # its rate has changed since
        events += 1
        meeting = meetings[index].get(op)
        members = [(index, op)] if meeting is None else meeting.members
        if what == _START:
            rank.start[op] = now
            if meeting is not None and not meeting.complete(_START):
                continue  # peers are still to come
            for other, task in members:
                ranks[other].run(task, now)
        else:
            if meeting is not None and not meeting.complete(_END):
                rank.hold(op, now)  # peers are still sending
                continue
            for other, task in members:
                for freed in ranks[other].finish(task, now):
                    heapq.heappush(queue, (now + ranks[other].lag[freed], _START, other, freed, 0))
        for other, _ in members:
            ranks[other].requeue(now, queue, other)
    for graph, rank in zip(graphs, ranks, strict=True):
        if rank.unfinished:
            raise InputError(
                f"rank {graph.rank} step {graph.index}: {rank.unfinished} op(s) wait for each other in a "
                "circle; the trace's edges or the schedule's launch points contradict each other"
            )
    return Played(
        start_us=[np.array(r.start) for r in ranks],
        end_us=[np.array(r.end) for r in ranks],
        time_us=np.array([max(r.end, default=0.0) + r.tail for r in ranks]),
        flow_energy_j=[r.flow_energy_j for r in ranks],
        events=events,
    )


@dataclass(slots=True)
class _Meeting:
    """A collective of several simulated ranks: it runs once all have arrived, and ends for all at once."""

    members: list[tuple[int, int]]
    waiting: int = 0
    ended: int = 0

    def complete(self, what: int) -> bool:
        """Count one more rank that starts or ends; True for the last."""
        if what == _START:
            self.waiting += 1
            return self.waiting == len(self.members)
        self.ended += 1
        return self.ended == len(self.members)


def _meetings(layouts: Sequence[Layout]) -> list[dict[int, _Meeting]]:
    """For each rank, op -> the meeting it takes part in; collectives without simulated peers have none."""
    found: dict[tuple[object, ...], _Meeting] = {}
    for index, tasks in enumerate(layouts):
        for op, key in enumerate(tasks.key):
            if key is not None:
                found.setdefault(key, _Meeting([])).members.append((index, op))
    result: list[dict[int, _Meeting]] = [{} for _ in layouts]
    for meeting in found.values():
        if len(meeting.members) > 1 and len({index for index, _ in meeting.members}) == len(meeting.members):
            for index, op in meeting.members:
                result[index][op] = meeting
    return result


@dataclass(slots=True)
class _Together:
    """Rates while one set of collectives runs: stretch of each op, bytes/us of each collective by class."""

    stretch: list[float]
    beside: list[list[float]]
    alone: list[float]


class _Rank:
    """Running tasks of one rank; plain lists and floats, because it is touched once an event."""

    def __init__(self, graph: StepGraph, tasks: Layout, cost: CostModel, clocks: F64) -> None:
        ops = graph.ops
        self.coef = cost.coefficients
        self.classes, self.grid = ops.kernel_class, ops.grid
        self.class_of = ops.kernel_class.tolist()
        share = self.coef.clock_share[ops.kernel_class]
        self.work = (tasks.work_us * (1 - share + share * self.coef.reference_clock_mhz / clocks)).tolist()
        self.clock = float(np.median(clocks)) if len(clocks) else self.coef.reference_clock_mhz
        self.lag = tasks.lag_us.tolist()
        self.flow = tasks.flow
        self.after = successors(tasks.waits)
        self.pending = [len(set(before)) for before in tasks.waits]
        self.main = set(tasks.compute.tolist())
        self.start, self.end = [0.0] * len(ops), [0.0] * len(ops)
        self.version = [0] * len(ops)
        self.wire = [0.0] * len(ops)
        for op, flow in enumerate(tasks.flow):
            if flow is not None:
                member = graph.collectives[int(ops.collective[op])]
                size = len(member.group) or graph.world_size
                self.wire[op] = rates.wire_bytes(flow.kind, member.num_bytes, size)
        last = int(ops.end_ns.max()) if len(ops) else graph.start_ns
        self.tail = max(graph.end_ns - last, 0) / 1e3
        self.unfinished = len(ops)
        self.flow_energy_j = 0.0
        self.now = 0.0
        self.left: dict[int, float] = {}
        self.rate: dict[int, float] = {}
        self.flows: list[int] = []
        self.together: dict[tuple[Flow, ...], _Together] = {}
        self.set_rates = self._together(())

    def ready_at_start(self) -> list[int]:
        """Ops that wait for nothing."""
        return [op for op, count in enumerate(self.pending) if count == 0]

    def run(self, op: int, now: float) -> None:
        """Let an op make progress from now on."""
        self._advance(now)
        flow = self.flow[op]
        self.rate[op] = -1.0
        if flow is None:
            self.left[op] = self.work[op]
            return
        rate = rates.alone_bytes_per_us(self.coef, flow, self.clock)
        self.left[op] = self.wire[op] + rates.latency_us(self.coef, flow) * rate
        self.flows.append(op)
        self._regroup()

    def hold(self, op: int, now: float) -> None:
        """This rank has sent everything; the collective stays resident until its peers have."""
        self._advance(now)
        self.left[op], self.rate[op] = 0.0, 0.0
        self.version[op] += 1

    def finish(self, op: int, now: float) -> list[int]:
        """End an op; returns the ops that now wait for nothing."""
        self._advance(now)
        del self.left[op], self.rate[op]
        self.version[op] += 1
        self.end[op] = now
        self.unfinished -= 1
        flow = self.flow[op]
        if flow is not None:
            self.flow_energy_j += rates.flow_energy_j(self.coef, flow, self.wire[op])
            self.flow_energy_j += rates.flow_power_w(self.coef, flow) * (now - self.start[op]) * 1e-6
            self.flows.remove(op)
            self._regroup()
        freed = []
        for other in self.after[op]:
            self.pending[other] -= 1
            if self.pending[other] == 0:
                freed.append(other)
        return freed

    def requeue(self, now: float, queue: list[Event], index: int) -> None:
        """Set the rates of what runs and queue the ends that have moved."""
        beside = -1
        if self.flows:
            for op in self.left:
                if self.flow[op] is None and (beside < 0 or op in self.main):
                    beside = self.class_of[op]
        table = self.set_rates
        for op, left in self.left.items():
            old = self.rate[op]
            if self.flow[op] is None:
                rate = 1 / table.stretch[op]
            elif old == 0.0:
                continue  # held
            else:
                slot = self.flows.index(op)
                rate = table.alone[slot] if beside < 0 else table.beside[slot][beside]
            if rate != old:
                self.rate[op] = rate
                self.version[op] += 1
                heapq.heappush(queue, (now + left / rate, _END, index, op, self.version[op]))

    def _advance(self, now: float) -> None:
        step = now - self.now
        if step > 0:
            for op, rate in self.rate.items():
                self.left[op] = max(self.left[op] - rate * step, 0.0)
        self.now = now

    def _regroup(self) -> None:
        self.set_rates = self._together(tuple(f for op in self.flows if (f := self.flow[op]) is not None))

    def _together(self, flows: tuple[Flow, ...]) -> _Together:
        if flows not in self.together:
            every = np.arange(len(KernelClass), dtype=np.int8)
            stretch, _ = rates.beside(self.coef, flows, self.classes, self.grid, self.clock)
            _, beside = rates.beside(self.coef, flows, every, np.zeros(len(every), np.int32), self.clock)
            self.together[flows] = _Together(
                stretch.tolist(), beside.tolist(), rates.shared_bytes_per_us(self.coef, flows, self.clock)
            )
        return self.together[flows]
