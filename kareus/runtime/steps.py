"""Steps that have ended for the CPU and not yet for the device, on their way to becoming StepRecords.

The CPU runs ahead of the device, and energy is known once its window is full. So what a step measured is
read later, at step boundaries, without ever waiting: a record is written when all of it is known, in step
order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from kareus.runtime.conductor import StepMeasure
from kareus.runtime.energy import Window
from kareus.runtime.pilot import StepFacts
from kareus.runtime.records import RecordWriter, StepRecord, Tally
from kareus.runtime.streams import Timeline

PATIENCE = 50  # steps; a collective that compute never waited for may end long after its step


@dataclass(kw_only=True)
class OpenStep:
    """A step whose record is not complete yet.

    Attributes:
        index: since attach. start, end: timing marks of its boundaries. measure: of its collectives.
        digest: hash of what was issued. facts: what the pilot gets; `time_us` is filled in here.
        window: for its energy, None where none is measured. fallback, sm_clock_mhz: see StepRecord.
    """

    index: int
    start: Any
    end: Any
    measure: StepMeasure
    digest: str
    facts: StepFacts
    window: Window | None
    fallback: str
    sm_clock_mhz: int | None
    timed: bool = False


class StepBook:
    """Completes steps in order.

    Args:
        timeline: reads marks. writer: takes the records. tally: counts what stayed unknown.
    """

    def __init__(self, timeline: Timeline, writer: RecordWriter, tally: Tally) -> None:
        self._timeline, self._writer, self._tally = timeline, writer, tally
        self._steps: deque[OpenStep] = deque()
        self._newest = 0

    def add(self, step: OpenStep) -> None:
        """Take in a step that has just ended for the CPU."""
        self._steps.append(step)
        self._newest = step.index

    def advance(self) -> None:
        """Read what the device has reached, and write the records that are complete; never waits."""
        for step in self._steps:
            if not step.timed and not self._time(step):
                break
        while self._steps and self._is_complete(self._steps[0]):
            self._write(self._steps.popleft())

    def settle(self, index: int) -> None:
        """Wait for the device to finish steps up to `index`, so that their times are known."""
        for step in self._steps:
            if step.index > index:
                break
            if not step.timed:
                self._timeline.finish(step.end)
                self._time(step)

    def finish(self) -> None:
        """Wait for the device to finish every step, and write all records with what is known."""
        self.settle(self._newest)
        while self._steps:
            self._write(self._steps.popleft())

    def _time(self, step: OpenStep) -> bool:
        if self._timeline.is_done(step.end):
            step.facts.time_us = self._timeline.elapsed_us(step.start, step.end)
            step.timed = True
        return step.timed

    def _is_complete(self, step: OpenStep) -> bool:
        if not step.timed or (step.window is not None and not step.window.closed):
            return False
        return self._newest - step.index >= PATIENCE or self._stalls_ended(step)

    def _stalls_ended(self, step: OpenStep) -> bool:
        return all(self._timeline.is_done(ended) for _, ended in step.measure.stalls)

    def _exposed_us(self, step: OpenStep) -> float | None:
        if not self._stalls_ended(step):
            self._tally.add("exposed_unknown", f"step {step.index}: a collective has not ended long after it")
            return None
        waits = (self._timeline.elapsed_us(arrived, ended) for arrived, ended in step.measure.stalls)
        return step.measure.host_us + sum(max(0.0, wait) for wait in waits)

    def _write(self, step: OpenStep) -> None:
        facts, measure, window = step.facts, step.measure, step.window
        self._writer.write(
            StepRecord(
                step=step.index,
                rank=self._tally.rank,
                arm=facts.arm,
                time_us=facts.time_us,
                energy_j=None if window is None else window.energy_j(facts.time_us),
                energy_window_s=None if window is None else window.seconds,
                energy_source="" if window is None else window.source,
                exposed_comm_us=self._exposed_us(step),
                num_collectives=measure.num_collectives,
                issue_hash=step.digest,
                sm_clock_mhz=step.sm_clock_mhz,
                fallback=step.fallback,
                unplanned=measure.unplanned,
                missed=measure.missed,
            )
        )
