"""A Session is Kareus attached to one model: step boundaries, records, and the way back."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol

from kareus.runtime.agreement import Exchange
from kareus.runtime.conductor import Conductor, StepMeasure
from kareus.runtime.divergence import IssueLog
from kareus.runtime.fingerprint import Job
from kareus.runtime.pilot import Pilot, StepFacts
from kareus.runtime.records import Arm, RecordWriter, StepRecord, Tally
from kareus.schedule import CollectiveKey, Fingerprint, Schedule

Mode = Literal["replay", "collect", "profile"]


class Driver(Protocol):
    """What a wrapper-specific driver offers the session."""

    def install(self) -> None:
        """Take hold of the model."""

    def uninstall(self) -> None:
        """Let go of it."""

    def prepare(self, exchange: Exchange) -> None:
        """Agree on what depends on an observed step; all ranks call it at the same boundary."""

    def end_step(self) -> None:
        """Complete what is measured of the step that ends."""

    def on_arm(self) -> None:
        """React to a switch of the arm at a step boundary."""


class ArmSwitch(Protocol):
    """Something that is in force with the schedule and not with stock."""

    def on_arm(self, *, scheduled: bool) -> None:
        """Called at the step boundary where the arm changes."""

    def finish(self) -> None:
        """Called once, in detach."""


class Sampler(Protocol):
    """Reads energy and clock of this rank's GPU."""

    def energy_j(self) -> float | None:
        """Return joules since some fixed moment, None unknown."""

    def sm_clock_mhz(self) -> int | None:
        """Return the SM clock, None unknown."""


class Follower(Protocol):
    """Something that wants to know of step boundaries: a collector, a clock governor, SM partitions."""

    def on_step(self, step_index: int) -> None:
        """Called after step `step_index` ended."""

    def finish(self) -> None:
        """Called once, in detach."""


@dataclass(kw_only=True)
class _Open:
    """A step whose device time is not known yet."""

    index: int
    arm: Arm
    start: Any
    end: Any
    measure: StepMeasure
    issues: IssueLog
    facts: StepFacts
    sampled: bool


class Session:
    """Kareus attached to one model; `attach` makes it.

    Attributes:
        job: the wrapped model; None for a session that does nothing (KAREUS_DISABLE=1).
        mode: "replay", "collect", "profile" or None. schedule: the agreed one, None without.
        fingerprint: of the job. step_count: steps that ended. collect_dir: where a collector writes.
        observed, issued: names of the collectives of the last stock and of the last scheduled step, in
            issue order.
        tally: counts of everything unusual. pilot, conductor, driver: the parts at work.
    """

    def __init__(
        self,
        *,
        job: Job | None = None,
        mode: Mode | None = None,
        schedule: Schedule | None = None,
        fingerprint: Fingerprint | None = None,
        conductor: Conductor | None = None,
        driver: Driver | None = None,
        pilot: Pilot | None = None,
        tally: Tally | None = None,
        writer: RecordWriter | None = None,
        sampler: Sampler | None = None,
        sample_every: int = 1,
        optimizer: Any = None,
        collect_dir: str | None = None,
        why_inactive: str = "",
    ) -> None:
        self.job, self.mode, self.schedule, self.fingerprint = job, mode, schedule, fingerprint
        self.optimizer, self.collect_dir = optimizer, collect_dir
        self.tally = tally or Tally(job.rank if job is not None else 0)
        self.conductor, self.driver, self.pilot = conductor, driver, pilot
        self.step_count = 0
        self.observed: tuple[CollectiveKey, ...] = ()
        self.issued: tuple[CollectiveKey, ...] = ()
        self.notes: list[str] = []
        self._writer = writer
        self._sampler, self._sample_every = sampler, sample_every
        self._followers: list[Follower] = []
        self._switches: list[ArmSwitch] = []
        self._undo: list[Callable[[], None]] = []
        self._open_steps: deque[_Open] = deque()
        self._why_inactive = why_inactive
        self._closed = job is None
        self._start: Any = None
        self._energy_j: float | None = None

    @property
    def active(self) -> bool:
        """False after detach, and for a session that never did anything."""
        return not self._closed

    @property
    def records(self) -> list[StepRecord]:
        """The newest StepRecords of this rank, oldest first."""
        return [] if self._writer is None else self._writer.records

    @property
    def state(self) -> str:
        """ "observe", "guard", "replay", "stock", or "detached"."""
        if self._closed or self.pilot is None:
            return "detached"
        return self.pilot.state

    def begin(self) -> None:
        """Start the clock of the first step; called by attach when everything is in place."""
        assert self.conductor is not None
        assert self.pilot is not None
        self.pilot.settle = self._settle
        self.conductor.arm = "observe" if self.schedule is not None else "stock"
        self.conductor.sampling = True
        self._start = self.conductor.timeline.mark(timing=True)
        self._energy_j = self._sampler.energy_j() if self._sampler is not None else None

    def follow(self, follower: Follower) -> None:
        """Tell a follower of every step boundary from now on."""
        self._followers.append(follower)

    def switch(self, switch: ArmSwitch) -> None:
        """Put something in force together with the schedule."""
        self._switches.append(switch)

    def _switch_arm(self) -> None:
        assert self.conductor is not None
        if self.driver is not None:
            self.driver.on_arm()
        for switch in self._switches:
            switch.on_arm(scheduled=self.conductor.arm == "scheduled")

    def on_detach(self, undo: Callable[[], None]) -> None:
        """Run something in detach, last registered first."""
        self._undo.append(undo)

    def step(self) -> None:
        """Mark a step boundary; only needed where no optimizer was given to attach."""
        if self._closed:
            return
        try:
            self._boundary()
        except Exception as error:  # nothing of ours is raised into training
            self.tally.add("boundary_failed", f"step boundary failed: {error!r}")
            if self.pilot is not None:
                self.pilot.leave(f"step boundary failed: {error!r}")

    def _boundary(self) -> None:
        conductor, pilot = self.conductor, self.pilot
        assert conductor is not None
        assert pilot is not None
        end = conductor.timeline.mark(timing=True)
        if self.driver is not None:
            self.driver.end_step()
        measure, issues = conductor.begin_step()
        arm = conductor.arm
        names = "\n".join(str(key) for key in issues.keys)
        facts = StepFacts(
            arm=arm, issue_hash=issues.value, sequence=zlib.crc32(names.encode()) if names else 0
        )
        if self._sampler is not None:
            now = self._sampler.energy_j()
            if now is not None and self._energy_j is not None:
                facts.energy_j = now - self._energy_j
            self._energy_j = now
        if arm != "scheduled":
            self.observed = tuple(issues.keys)
        else:
            self.issued = tuple(issues.keys)
        self._open_steps.append(
            _Open(
                index=self.step_count, arm=arm, start=self._start, end=end, measure=measure, issues=issues,
                facts=facts, sampled=conductor.sampling,
            )
        )  # fmt: skip
        self._start = end
        self._close_done()
        index = self.step_count
        self.step_count += 1
        conductor.arm = pilot.next_arm(facts)
        conductor.sampling = self.step_count % self._sample_every == 0
        if conductor.arm != arm:
            self._switch_arm()
        for follower in self._followers:
            follower.on_step(index)

    def _close_done(self) -> None:
        assert self.conductor is not None
        while self._open_steps and self.conductor.timeline.is_done(self._open_steps[0].end):
            self._close(self._open_steps.popleft())

    def _settle(self, index: int) -> None:
        """Wait for the device to finish steps up to `index`, so that their times are known."""
        assert self.conductor is not None
        while self._open_steps and self._open_steps[0].index <= index:
            step = self._open_steps.popleft()
            self.conductor.timeline.finish(step.end)
            self._close(step)

    def _close(self, step: _Open) -> None:
        assert self.conductor is not None
        timeline = self.conductor.timeline
        step.facts.time_us = timeline.elapsed_us(step.start, step.end)
        exposed: float | None = None
        if step.sampled:
            stalls = [(a, b) for a, b in step.measure.stalls if timeline.is_done(b)]
            waited = sum(max(0.0, timeline.elapsed_us(a, b)) for a, b in stalls)
            exposed = step.measure.host_us + waited
        if self._writer is None:
            return
        energy = step.facts.energy_j
        reason = self.pilot.reason if self.pilot is not None else ""
        self._writer.write(
            StepRecord(
                step=step.index,
                rank=self.tally.rank,
                arm=step.arm,
                time_us=step.facts.time_us,
                energy_j=energy if energy == energy and energy > 0 else None,
                exposed_comm_us=exposed,
                num_collectives=step.measure.num_collectives,
                issue_hash=step.issues.digest,
                sm_clock_mhz=self._sampler.sm_clock_mhz() if self._sampler is not None else None,
                fallback=reason if step.arm != "scheduled" else "",
                unplanned=step.measure.unplanned,
                missed=step.measure.missed,
            )
        )

    def report(self) -> dict[str, Any]:
        """Return what happened so far, JSON-encodable, and finish what is still open."""
        if self.conductor is not None and self._open_steps:
            try:
                self._settle(self.step_count)
            except RuntimeError as error:
                self.tally.add("report_failed", f"the last steps could not be timed: {error}")
        from kareus.runtime.summary import summarise

        return summarise(self, self._why_inactive)

    def detach(self) -> None:
        """Give the model back as it was; a second call does nothing. Never raises."""
        if self._closed:
            return
        if self.conductor is not None:
            self.conductor.arm = "stock"
        self.report()
        steps: list[Callable[[], None]] = [f.finish for f in self._followers]
        steps += [s.finish for s in self._switches]
        if self.driver is not None:
            steps += [self.driver.on_arm, self.driver.uninstall]
        if self.pilot is not None:
            steps.append(self.pilot.settle_exchange)
        steps += list(reversed(self._undo))
        for undo in steps:
            try:
                undo()
            except Exception as error:  # the rest must still be undone
                self.tally.add("detach_failed", f"detach: {error!r}")
        if self._writer is not None:
            self._writer.close()
        self._closed = True

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()
