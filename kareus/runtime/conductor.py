"""What every collective asks before it is issued: which decision, which group, which path.

The answer depends only on facts that are the same on all ranks: the agreed schedule, the arm in force
(switched at agreed step boundaries), the collective's kind, unit, phase, ordinal and size. A local
surprise can never change it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from kareus.runtime import torch_api
from kareus.runtime.divergence import Flight, IssueLog, Watch, issue_text
from kareus.runtime.ladder import Ladder
from kareus.runtime.paths import CollectivePath
from kareus.runtime.records import Arm, Tally
from kareus.runtime.streams import Timeline
from kareus.schedule import CollectiveKey, Decision, LaunchPoint, Path, Schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """Leave to issue one collective.

    Attributes:
        key: its name in this step. decision: what was decided for it (stock's defaults outside a plan).
        group: the process group to use. path: how its bytes travel. planned: a decision names it.
    """

    key: CollectiveKey
    decision: Decision
    group: dist.ProcessGroup
    path: CollectivePath
    planned: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _Issue:
    """A ticket with what is noted each time it is handed out; made once, used every step."""

    ticket: Ticket
    name: bytes
    text: bytes
    unplanned: bool
    unavailable: bool
    copies: bool


@dataclass(kw_only=True)
class StepMeasure:
    """What was seen of the collectives of one step.

    Attributes:
        num_collectives: issued. unplanned: not in the schedule. missed: launch points not met in time.
        host_us: time the CPU spent inside blocking collectives (gloo). stalls: (waiter, ready) timing
            marks, the wait being the time from the first to the second where positive.
    """

    num_collectives: int = 0
    unplanned: int = 0
    missed: int = 0
    host_us: float = 0.0
    stalls: list[tuple[Any, Any]] = field(default_factory=list)


class Conductor:
    """Holds the agreed plan and hands out tickets.

    Args:
        schedule: the agreed schedule, None to observe only. ladder: groups by budget.
        paths: how bytes can travel; must hold `Path.NCCL`.
        tally: counts of the unusual. timeline: marks of the device. watch: collectives in flight.
    """

    def __init__(
        self,
        *,
        schedule: Schedule | None,
        ladder: Ladder,
        paths: dict[Path, CollectivePath],
        tally: Tally,
        timeline: Timeline,
        watch: Watch,
    ) -> None:
        self.schedule, self.ladder, self.paths = schedule, ladder, paths
        self.tally, self.timeline, self.watch = tally, timeline, watch
        self.arm: Arm = "observe"
        self.evaluating = False
        self.last_end: Any = None
        self.issues = IssueLog()
        self.measure = StepMeasure()
        self._on_cpu = timeline.device.type == "cpu"
        self._issues: dict[tuple[str, str, str, int, int, dist.ProcessGroup, bool], _Issue] = {}
        self._ordinals: dict[tuple[str, str, str], int] = {}
        self._next_step: tuple[StepMeasure, IssueLog, dict[tuple[str, str, str], int]]
        self._next_step = (StepMeasure(), IssueLog(), {})
        self._plan: dict[tuple[str, str, str], dict[int, Decision]] = {}
        for decision in schedule.decisions if schedule is not None else ():
            key = decision.collective
            self._plan.setdefault((key.kind, key.unit, key.phase), {})[key.ordinal] = decision

    @property
    def scheduling(self) -> bool:
        """True while the schedule's decisions are in force."""
        return self.arm == "scheduled" and not self.evaluating

    def decision(self, kind: str, unit: str, phase: str, ordinal: int = 0) -> Decision | None:
        """Return the decision for a collective, None where the schedule names none.

        Further micro-batches than the recorded step had follow its first one.
        """
        found = self._plan.get((kind, unit, phase))
        if found is None:
            return None
        return found.get(ordinal) or found.get(0)

    def launch_points(self) -> set[LaunchPoint]:
        """Return every launch point the schedule names."""
        return {d.launch for found in self._plan.values() for d in found.values() if d.launch is not None}

    def begin_step(self) -> tuple[StepMeasure, IssueLog]:
        """Start a new step; return what was seen of the one that ended."""
        ended = self.measure, self.issues
        self.measure, self.issues, self._ordinals = self._next_step
        self._next_step = (StepMeasure(), IssueLog(), {})
        return ended

    @contextmanager
    def for_next_step(self) -> Iterator[None]:
        """Count what is issued inside to the step that has not begun yet."""
        here = self.measure, self.issues, self._ordinals
        self.measure, self.issues, self._ordinals = self._next_step
        try:
            yield
        finally:
            self.measure, self.issues, self._ordinals = here

    def open(self, kind: str, unit: str, phase: str, num_bytes: int, group: dist.ProcessGroup) -> Ticket:
        """Return the ticket for the collective that is about to be issued, and log its issue."""
        evaluating = self.evaluating
        ordinal = 0
        if not evaluating:
            slot = (kind, unit, phase)
            ordinal = self._ordinals.get(slot, 0)
            self._ordinals[slot] = ordinal + 1
        known = (kind, unit, phase, ordinal, num_bytes, group, self.arm == "scheduled" and not evaluating)
        issue = self._issues.get(known)
        if issue is None or (issue.copies and torch_api.is_capturing(self.timeline.device)):
            issue = self._prepare(*known)
        measure = self.measure
        measure.num_collectives += 1
        if issue.unplanned:
            measure.unplanned += 1
        ticket = issue.ticket
        if issue.unavailable:
            self.tally.add(
                "path_unavailable",
                f"{ticket.key}: the {ticket.decision.path} path is not available here, NCCL is used",
            )
        self.issues.add(ticket.key, issue.name, issue.text, evaluating=evaluating)
        return ticket

    def _prepare(
        self,
        kind: str,
        unit: str,
        phase: str,
        ordinal: int,
        num_bytes: int,
        group: dist.ProcessGroup,
        scheduling: bool,
    ) -> _Issue:
        """Work out a ticket once; every later step with the same collective is given it again."""
        key = CollectiveKey(kind=kind, unit=unit, phase=phase, ordinal=ordinal)  # type: ignore[arg-type]
        planned = self.decision(kind, unit, phase, ordinal) if scheduling else None
        decision = planned or Decision(collective=key)
        path, chosen = self.paths[Path.NCCL], group
        wanted = self.paths.get(decision.path)
        if wanted is not None and wanted is not path and wanted.supports(kind, num_bytes, group):
            path = wanted
        elif scheduling:
            chosen = self.ladder.pick(group, kind, decision.num_ctas)
        issue = _Issue(
            ticket=Ticket(key=key, decision=decision, group=chosen, path=path, planned=planned is not None),
            name=str(key).encode(),
            text=issue_text(key, path.name, decision.num_ctas or 0, num_bytes),
            unplanned=scheduling and planned is None and bool(self._plan),
            copies=path is not self.paths[Path.NCCL],
            unavailable=decision.path is not Path.NCCL and path is self.paths[Path.NCCL],
        )
        if not torch_api.is_capturing(self.timeline.device):  # copies are not made inside a capture
            self._issues[kind, unit, phase, ordinal, num_bytes, group, scheduling] = issue
        return issue

    def enter(self, ticket: Ticket) -> Flight:
        """Watch a collective from before the call that issues it."""
        return self.watch.enter(ticket.key)

    def leave(self, flight: Flight) -> None:
        """Note that the call that issues a collective has returned, or raised."""
        if self._on_cpu:
            self.measure.host_us += (time.perf_counter() - flight.since_s) * 1e6
            self.watch.leave(flight, None)
        elif torch_api.is_capturing(self.timeline.device):
            self.last_end = None
            self.watch.leave(flight, None)  # an event of a capture must never be queried
        else:
            self.last_end = self.timeline.mark(timing=True)
            self.watch.leave(flight, self.last_end)

    def goes_on(self, flight: Flight, work: dist.Work) -> dist.Work:
        """Let a collective of the CPU run in the background of what follows; returns what FSDP waits for.

        Gloo's threads carry it out. Only the time that compute then waits for it counts as exposed.
        """
        self.measure.host_us += (time.perf_counter() - flight.since_s) * 1e6
        work.get_future().add_done_callback(lambda _: self.watch.leave(flight, None))

        def wait(timeout: timedelta) -> bool:
            start = time.perf_counter()
            done = bool(work.wait(timeout) if timeout else work.wait())
            self.measure.host_us += (time.perf_counter() - start) * 1e6
            return done

        return torch_api.callback_work(wait) or work
