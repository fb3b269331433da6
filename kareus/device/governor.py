"""Carries out a schedule's clocks and power limits, off the training thread.

Training says which region it has *issued* (`enter`, with an event recorded there on the GPU); the governor
follows the events, so it acts when the GPU gets there, however far the CPU runs ahead. It sets only what
changes, no more often than the dwell allows, reads back what came of it, and undoes everything at the end.
"""

from __future__ import annotations

import logging
import os
import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kareus.device.claim import Claim, ClaimRefused
from kareus.device.follow import RegionFollower
from kareus.device.gpu import Gpu, HasGpu, event_names
from kareus.device.nvml import ABSENT, NO_PERMISSION, Failure, rank_prefix
from kareus.device.permissions import preflight
from kareus.device.readback import ReadBack, Verdict
from kareus.device.restore import ExitHook
from kareus.device.settings import Settings, settings_of
from kareus.schedule import ClockRegion

logger = logging.getLogger("kareus.device")

Mode = Literal["off", "advise", "apply"]
MIN_DWELL_S = 1.0  # where the switching time was not measured
LEAST_DWELL_S = 0.25  # NCCL slows when clocks are set every 50 ms (NVIDIA/nccl issue 1551)
SWITCHES_PER_DWELL = 20  # a clock is kept for as long as 20 switches take: at most 5 % is spent switching
MAX_PENDING = 4096  # events of a GPU that has stopped; older ones are dropped
MAX_FAILURES = 3  # failed sets in a row after which the governor gives up


def dwell_for(switch_time_s: float) -> float:
    """Return the shortest time between changes, s: one second unless measured switching allows less.

    Args:
        switch_time_s: measured, 0 where it was not.
    """
    if switch_time_s <= 0:
        return MIN_DWELL_S
    return min(MIN_DWELL_S, max(LEAST_DWELL_S, SWITCHES_PER_DWELL * switch_time_s))


class Event(Protocol):
    """A mark in the GPU's work, such as a torch.cuda.Event that was recorded."""

    def query(self) -> bool:
        """True once the GPU has passed it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GovernorReport:
    """What a governor did.

    Attributes:
        mode: as asked. active: it sets (or would set) clocks; else `reason` says why not.
        entered: region changes on the GPU. sets: values set (or, in "advise", that would have been).
        unchanged: region changes that needed no set. deferred, overtaken: had to wait for the dwell; were
            over before their turn. predicted, mispredicted: set ahead of the region; wrongly.
        verdicts: read-back outcomes by name. failures: sets that failed. events_dropped: lost or broken.
        switch_times_s: measured from set to effect, under load.
        restored: True after everything was undone (or nothing had been set).
    """

    mode: Mode
    active: bool
    reason: str
    entered: int
    sets: int
    unchanged: int
    deferred: int
    overtaken: int
    predicted: int
    mispredicted: int
    verdicts: dict[str, int]
    failures: int
    events_dropped: int
    switch_times_s: tuple[float, ...]
    restored: bool


class Governor:
    """Applies clock regions to one GPU.

    Args:
        handle: the GPU, or its meter.
        regions: of the schedule. A region without a start is entered at once.
        mode: "off" does nothing, "advise" logs what it would set, "apply" sets.
        min_dwell_s: shortest time between changes; `dwell_for(switch_time_s)` by default.
        switch_time_s: measured switching time, used to lead regions; refined by read-backs.
        poll_s: how often events are looked at while any is pending.
        watchdog: keep a process that restores after SIGKILL (only tests turn it off).
    """

    def __init__(
        self, handle: HasGpu, regions: Sequence[ClockRegion], mode: Mode = "off", *,
        min_dwell_s: float | None = None, switch_time_s: float = 0.0, poll_s: float = 0.005, 
        watchdog: bool = True,
    ) -> None:  # fmt: skip
        self.mode = mode
        self.reason = ""
        self._gpu: Gpu = handle.gpu
        self._regions = tuple(regions)
        dwell_s = dwell_for(switch_time_s) if min_dwell_s is None else min_dwell_s
        self._follower = RegionFollower(min_dwell_s=dwell_s, lead_s=switch_time_s)
        self._poll_s = poll_s
        self._claim = Claim(self._gpu, self._regions, use_watchdog=watchdog)
        self._inbox: queue.SimpleQueue[tuple[int, Event | None] | None] = queue.SimpleQueue()
        self._pending: deque[tuple[int, Event | None]] = deque()
        self._in_force = Settings()
        self._readbacks: dict[str, ReadBack] = {}
        self._read = {"sm_clock_mhz": self._gpu.sm_clock_mhz, "memory_clock_mhz": self._gpu.memory_clock_mhz}
        self._thread: threading.Thread | None = None
        self._hook: ExitHook | None = None
        self._pid = os.getpid()
        self._stopped = False
        self._advised: set[int] = set()
        self._refused: set[str] = set()
        self._entered = self._sets = self._unchanged = self._failures = self._dropped = self._in_a_row = 0
        self._verdicts: dict[str, int] = {}
        self._switch_times: list[float] = []

    @property
    def active(self) -> bool:
        """True while it follows the GPU."""
        return self._thread is not None and not self._stopped

    def start(self) -> Governor:
        """Check permission and begin; a second start does nothing. Never raises."""
        if self._thread is not None or self._stopped or self.mode == "off" or not self._regions:
            return self
        if self.mode == "apply" and not self._may_apply():
            return self
        if self.mode == "apply":
            self._hook = ExitHook(self._end)
        for index, region in enumerate(self._regions):
            if region.start is None:
                self._inbox.put((index, None))
                break
        self._thread = threading.Thread(target=self._run, name="kareus-governor", daemon=True)
        self._thread.start()
        return self

    def enter(self, region_index: int, event: Event | None = None) -> None:
        """Say that training has issued the start of a region. Costs a queue put; safe in signal handlers.

        Args:
            region_index: into the regions given.
            event: passed by the GPU when it gets there; None: it is there now.
        """
        if self.active and 0 <= region_index < len(self._regions) and os.getpid() == self._pid:
            self._inbox.put((region_index, event))

    def stop(self, timeout_s: float = 10.0) -> GovernorReport:
        """Undo everything and end; safe to call twice. Returns within about `timeout_s` whatever happens."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and os.getpid() == self._pid:
            self._stopped = True
            self._inbox.put(None)
            thread.join(timeout_s)
            if thread.is_alive():  # the driver hangs; the watchdog stays and restores after this process
                logger.warning(
                    "%sthe clock governor does not answer; its watchdog restores later.", rank_prefix()
                )
        if self._hook is not None:
            self._hook.cancel()
            self._hook = None
        return self.report()

    def _end(self) -> None:
        self.stop()

    def report(self) -> GovernorReport:
        """Return what was done so far."""
        follower = self._follower
        return GovernorReport(
            mode=self.mode, active=self.active, reason=self.reason, entered=self._entered, sets=self._sets,
            unchanged=self._unchanged, deferred=follower.deferred, overtaken=follower.overtaken,
            predicted=follower.predicted, mispredicted=follower.mispredicted, verdicts=dict(self._verdicts),
            failures=self._failures, events_dropped=self._dropped, switch_times_s=tuple(self._switch_times),
            restored=not self._claim.held,
        )  # fmt: skip

    def _may_apply(self) -> bool:
        permission = preflight(self._gpu)
        if permission.allowed:
            logger.info(
                "%sclocks are set by %s. NVML cannot read a lock set earlier: at the end locks are removed, "
                "and the power limit returns to what it is now.", rank_prefix(), permission.via,
            )  # fmt: skip
            return True
        self._give_up(f"clocks are left alone: {permission.reason}. To change that: {permission.remedy}")
        return False

    def _give_up(self, reason: str, *, level: int = logging.WARNING) -> None:
        self.reason = reason
        logger.log(level, "%s%s.", rank_prefix(), reason.rstrip("."))

    def _run(self) -> None:
        try:
            # Before the first region is due: starting the watchdog takes as long as starting Python.
            if self.mode == "apply":
                self._claim.hold()
            while self._step():
                pass
        except ClaimRefused as refusal:
            self._give_up(str(refusal))
        except Exception as error:  # a governor that breaks must not take training with it
            self._give_up(f"the clock governor stopped: {type(error).__name__}: {error}")
        finally:
            self._stopped = True
            failures = self._claim.release()
            if failures:
                self._failures += len(failures)
                what = f"{failures[0]}; {len(failures)} settings of {self._gpu.name} may remain"
                logger.warning("%snot restored: %s. Run `kareus reset-clocks` as root.", rank_prefix(), what)

    def _step(self) -> bool:
        if not self._receive():
            return False
        self._follow()
        region = self._follower.due(time.monotonic())
        if region is not None and not self._apply(region):
            return False
        self._look_back()
        return True

    def _receive(self) -> bool:
        """Wait for news as long as nothing else is due; False to stop."""
        wait_s: float | None = None
        due_s = self._follower.next_due_s(time.monotonic())
        if due_s is not None:
            wait_s = max(0.0, due_s - time.monotonic())
        if self._pending or self._readbacks:
            wait_s = self._poll_s if wait_s is None else min(wait_s, self._poll_s)
        try:
            news = self._inbox.get(timeout=wait_s)
        except queue.Empty:
            return True
        while news is not None:
            self._pending.append(news)
            if len(self._pending) > MAX_PENDING:
                self._pending.popleft()
                self._dropped += 1
            try:
                news = self._inbox.get_nowait()
            except queue.Empty:
                return True
        return False

    def _follow(self) -> None:
        while self._pending:
            region, event = self._pending[0]
            try:
                passed = event is None or event.query()
            except Exception:  # the event's device failed: training sees that itself
                self._dropped += 1
                self._pending.popleft()
                continue
            if not passed:
                return
            self._pending.popleft()
            if region != self._follower.current:
                self._entered += 1
            self._follower.entered(region, time.monotonic())

    def _apply(self, region: int) -> bool:
        """Bring a region's settings into force; False to give up."""
        wanted = self._in_force.merged(settings_of(self._regions[region], self._gpu))
        changes = [name for name in wanted.changes_from(self._in_force) if name not in self._refused]
        now_s = time.monotonic()
        if not changes:
            self._unchanged += 1
            self._follower.has_applied(region, now_s, changed=False)
            return True
        if self.mode == "advise":
            if region not in self._advised:
                logger.info("%swould set %s.", rank_prefix(), wanted.describe(changes))
                self._advised.add(region)
            self._sets += len(changes)
            self._in_force = wanted
            self._follower.has_applied(region, now_s)
            return True
        self._claim.hold()
        return self._set(region, wanted, changes)

    def _set(self, region: int, wanted: Settings, changes: Sequence[str]) -> bool:
        before = {name: self._read[name]() for name in changes if name in self._read}
        done, failed = [], None
        for name in changes:
            failure = self._claim.set(name, getattr(wanted, name))
            if failure is None:
                self._in_force = self._in_force.with_value(name, getattr(wanted, name))
                done.append(name)
                continue
            self._failures += 1
            if failure.code in ABSENT:  # this card will never do it: carry out the rest without it
                self._refused.add(name)
            else:
                failed = failure
        self._sets += len(done)
        now_s = time.monotonic()
        self._follower.has_applied(region, now_s)
        for name in before.keys() & set(done):
            if name in self._readbacks:
                self._count(Verdict.UNJUDGED)
            target = getattr(wanted, name)
            self._readbacks[name] = ReadBack(target_mhz=target, before_mhz=before[name], set_s=now_s)
        for text in self._claim.differences(wanted, done):
            self._count(Verdict.NOT_TAKEN, text)
        self._in_a_row = 0 if failed is None else self._in_a_row + 1
        return failed is None or self._may_retry(failed)

    def _may_retry(self, failure: Failure) -> bool:
        if failure.code == NO_PERMISSION or self._in_a_row >= MAX_FAILURES or self._gpu.lost:
            self._give_up(f"clocks are left alone from here on: {failure}", level=logging.INFO)
            return False
        self._follower.applied = None  # tried again after the dwell, so a driver is not asked in a loop
        return True

    def _look_back(self) -> None:
        for name, readback in list(self._readbacks.items()):
            now_s = time.monotonic()
            clock_mhz, reasons = self._read[name](), self._gpu.event_reasons()
            verdict = readback.judge(now_s, clock_mhz, reasons)
            if verdict is None:
                continue
            del self._readbacks[name]
            switch_s = readback.switch_time_s(now_s)
            if verdict is Verdict.REACHED and name == "sm_clock_mhz" and switch_s is not None:
                self._switch_times.append(switch_s)
                self._follower.lead_s = statistics.median(self._switch_times[-9:])
            why = ", ".join(event_names(reasons or 0)) or "no reason given"
            what = name.removesuffix("_mhz").replace("_", " ")
            self._count(
                verdict, f"{what} locked at {readback.target_mhz} MHz runs at {clock_mhz} MHz ({why})"
            )

    def _count(self, verdict: Verdict, text: str = "") -> None:
        first = verdict not in self._verdicts
        self._verdicts[verdict] = self._verdicts.get(verdict, 0) + 1
        if first and verdict is Verdict.NOT_TAKEN:
            logger.warning("%sa setting did not take: %s. More of these are counted.", rank_prefix(), text)
