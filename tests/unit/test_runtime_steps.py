"""What a step measured is read late, never waited for, and complete: on a device that lags behind."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from kareus.runtime.conductor import StepMeasure
from kareus.runtime.energy import EnergyWindows
from kareus.runtime.pilot import StepFacts
from kareus.runtime.records import Arm, RecordWriter, StepRecord, Tally
from kareus.runtime.steps import PATIENCE, OpenStep, StepBook


class LateDevice:
    """Marks are times on a device whose clock only moves when told; asking too early is an error."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", 0)
        self.now_us = 0.0
        self.finished: list[float] = []

    def mark(self, *, timing: bool = False) -> float:
        return self.now_us

    def wait(self, mark: float) -> None: ...

    def is_done(self, mark: float) -> bool:
        return mark <= self.now_us

    def finish(self, mark: float) -> None:
        self.finished.append(mark)
        self.now_us = max(self.now_us, mark)

    def elapsed_us(self, start: float, end: float) -> float:
        assert max(start, end) <= self.now_us, "elapsed time of a mark that has not passed"
        return end - start

    def current_stream(self) -> None: ...

    def wait_stream(self, waiter: Any, other: Any) -> None: ...


class Reading:
    def __init__(self, energy_j: float | None, seconds: float, source: str = "counter") -> None:
        self.energy_j, self.seconds, self.source = energy_j, seconds, source


class Gpu:
    """A GPU that draws 500 W and whose counter moves every 100 ms."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.opened_s = 0.0

    def read(self) -> tuple[float | None, int | None]:
        return self._counter(self.now_s), 1500

    def _counter(self, at_s: float) -> float:
        return 500.0 * int(at_s * 10) / 10

    def begin(self) -> None:
        self.opened_s = self.now_s

    def end(self) -> Reading:
        energy = self._counter(self.now_s) - self._counter(self.opened_s)
        return Reading(energy if energy else None, self.now_s - self.opened_s)

    def rest(self, resting: bool) -> None: ...

    def close(self) -> None: ...


def step(
    index: int, *, stalls: list[tuple[float, float]], window: Any = None, arm: Arm = "stock"
) -> OpenStep:
    """Return a step of 100 us."""
    start = 100.0 * index
    return OpenStep(
        index=index, start=start, end=start + 100, measure=StepMeasure(num_collectives=1, stalls=stalls),
        digest="0", facts=StepFacts(arm=arm, issue_hash=0, sequence=0), window=window, fallback="",
        sm_clock_mhz=None,
    )  # fmt: skip


def book() -> tuple[StepBook, LateDevice, list[StepRecord], Tally]:
    device, tally = LateDevice(), Tally(0)
    writer = RecordWriter(None, 0, tally)
    return StepBook(device, writer, tally), device, writer.records, tally


def test_records_wait_for_the_device_and_hold_exposed_time_of_every_step() -> None:
    pages, device, records, _ = book()
    for index in range(10):
        start = 100.0 * index
        # compute waits 7 us for one collective; another had ended 3 us before it was needed
        pages.add(step(index, stalls=[(start + 20, start + 27), (start + 60, start + 57)]))
        pages.advance()  # the device has done nothing yet
    assert records == []
    device.now_us = 550
    pages.advance()
    assert [r.step for r in records] == [0, 1, 2, 3, 4]
    device.now_us = 1000
    pages.advance()
    assert [r.exposed_comm_us for r in records] == [7.0] * 10
    assert [r.time_us for r in records] == [100.0] * 10
    assert device.finished == []


def test_a_collective_that_ends_after_its_step_is_waited_for_without_blocking() -> None:
    pages, device, records, tally = book()
    pages.add(step(0, stalls=[(90, 130)]))
    device.now_us = 110
    pages.advance()
    assert records == []
    device.now_us = 140
    pages.advance()
    assert [r.exposed_comm_us for r in records] == [40.0]
    assert not tally.counts


def test_a_collective_that_never_ends_costs_its_figure_not_the_records() -> None:
    pages, device, records, tally = book()
    pages.add(step(0, stalls=[(90, float("inf"))]))
    for index in range(1, PATIENCE + 1):
        pages.add(step(index, stalls=[]))
    device.now_us = 100.0 * (PATIENCE + 1)
    pages.advance()
    assert [r.exposed_comm_us for r in records] == [None] + [0.0] * PATIENCE
    assert tally.counts["exposed_unknown"] == 1


def test_settling_waits_for_times_only() -> None:
    pages, device, records, _ = book()
    steps = [step(index, stalls=[(0.0, 1e6)]) for index in range(3)]
    for each in steps:
        pages.add(each)
    pages.settle(1)
    assert device.finished == [100.0, 200.0]
    assert [s.facts.time_us for s in steps[:2]] == [100.0, 100.0]
    assert steps[2].facts.time_us != steps[2].facts.time_us
    assert records == []
    pages.finish()
    assert [r.exposed_comm_us for r in records] == [None] * 3


def test_every_step_gets_energy_from_a_window_longer_than_the_counters_period() -> None:
    pages, device, records, _ = book()
    gpu = Gpu()
    windows = EnergyWindows(gpu, now_s=lambda: gpu.now_s)
    device.now_us = 1e9
    for index in range(90):  # of 37 ms: most steps do not see the counter move by what they took
        gpu.now_s += 0.037
        each = step(index, stalls=[], window=windows.current)
        each.end = each.start + 37_000
        pages.add(each)
        windows.turn()
        pages.advance()
    assert len(records) == 82  # the first boundary after 3 s
    assert all(abs(r.energy_j - 18.5) < 0.04 * 18.5 for r in records if r.energy_j is not None)
    assert all(r.energy_j is not None and r.energy_source == "counter" for r in records)
    assert {round(r.energy_window_s or 0, 3) for r in records} == {3.034}
    windows.turn(force=True)
    pages.finish()
    assert len(records) == 90
    assert {round(r.energy_window_s or 0, 3) for r in records[82:]} == {0.296}


def test_energy_that_is_not_known_is_not_made_up() -> None:
    pages, device, records, _ = book()
    gpu = Gpu()
    windows = EnergyWindows(gpu, now_s=lambda: gpu.now_s)
    pages.add(step(0, stalls=[], window=windows.current))
    gpu.now_s = 0.05  # the counter has not moved
    windows.turn(force=True)
    device.now_us = 100
    pages.advance()
    assert records[0].energy_j is None
    assert records[0].energy_window_s == 0.05
