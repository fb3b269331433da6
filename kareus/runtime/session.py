"""A Session is Kareus attached to one model: step boundaries, records, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Protocol

from kareus.runtime.conductor import Conductor
from kareus.runtime.energy import EnergyWindows, Sampler
from kareus.runtime.exchange import Exchange
from kareus.runtime.fingerprint import Job
from kareus.runtime.pilot import Pilot, StepFacts
from kareus.runtime.records import RecordWriter, StepRecord, Tally
from kareus.runtime.steps import OpenStep, StepBook
from kareus.schedule import CollectiveKey, Fingerprint, Schedule

Mode = Literal["replay", "collect", "profile"]


class Driver(Protocol):
    """What a wrapper-specific driver offers the session."""

    def install(self) -> None:
        """Take hold of the model."""

    def uninstall(self) -> None:
        """Let go of it."""

    def order_hash(self) -> int:
        """Return 32 bits of what `prepare` fixes: equal on all ranks where it has nothing to agree on."""

    def prepare(self, exchange: Exchange | None) -> None:
        """Fix what depends on an observed step, after rank 0 or, without an exchange, as this rank saw it.

        All ranks call it at the same boundary.
        """

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


class Follower(Protocol):
    """Something that wants to know of step boundaries: a collector, a clock governor, SM partitions."""

    def on_step(self, step_index: int) -> None:
        """Called after step `step_index` ended."""

    def finish(self) -> None:
        """Called once, in detach."""


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
        self._sampler = sampler
        self._windows: EnergyWindows | None = None
        self._book: StepBook | None = None
        self._followers: list[Follower] = []
        self._switches: list[ArmSwitch] = []
        self._undo: list[Callable[[], None]] = []
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
        assert self._writer is not None
        self._book = StepBook(self.conductor.timeline, self._writer, self.tally)
        self.pilot.settle = self._book.settle
        self.conductor.arm = "observe" if self.schedule is not None else "stock"
        self._start = self.conductor.timeline.mark(timing=True)
        if self._sampler is not None:
            self._energy_j, _ = self._sampler.read()
            self._windows = EnergyWindows(self._sampler)

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
        conductor, pilot, book = self.conductor, self.pilot, self._book
        assert conductor is not None
        assert pilot is not None
        assert book is not None
        end = conductor.timeline.mark(timing=True)
        if self.driver is not None:
            self.driver.end_step()
        measure, issues = conductor.begin_step()
        arm, index = conductor.arm, self.step_count
        facts = StepFacts(arm=arm, issue_hash=issues.value, sequence=issues.sequence)
        if arm == "observe" and self.driver is not None:
            facts.order = self.driver.order_hash()
        clock_mhz = self._read_sampler(facts)
        if arm == "scheduled":
            self.issued = tuple(issues.keys)
        else:
            self.observed = tuple(issues.keys)
        book.add(
            OpenStep(
                index=index, start=self._start, end=end, measure=measure, digest=issues.digest, facts=facts,
                window=self._windows.current if self._windows is not None else None,
                fallback=pilot.reason if arm != "scheduled" else "", sm_clock_mhz=clock_mhz,
            )
        )  # fmt: skip
        self._start = end
        book.advance()
        self.step_count += 1
        conductor.arm = pilot.next_arm(facts)
        if conductor.arm != arm:
            self._switch_arm()
        if self._windows is not None:
            self._windows.turn(force=conductor.arm != arm)
        for follower in self._followers:
            follower.on_step(index)

    def _read_sampler(self, facts: StepFacts) -> int | None:
        """Note the energy since the last boundary; return the SM clock in MHz."""
        if self._sampler is None:
            return None
        now_j, clock_mhz = self._sampler.read()
        if now_j is not None and self._energy_j is not None:
            facts.energy_j = now_j - self._energy_j
        self._energy_j = now_j
        return clock_mhz

    def rest(self, resting: bool) -> None:
        """Stop reading the GPU in the background while another session is in force, or begin again."""
        if self._sampler is None or self._windows is None:
            return
        self._sampler.rest(resting)
        if not resting:
            self._energy_j, _ = self._sampler.read()
            self._windows.turn(force=True)

    def report(self) -> dict[str, Any]:
        """Return what happened so far, JSON-encodable, and finish what is still open."""
        if self._book is not None and not self._closed:
            try:
                if self._windows is not None:
                    self._windows.turn(force=True)
                self._book.finish()
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
