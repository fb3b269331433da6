"""Background samples of power, clock and energy counter, and their integral over a window."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from kareus.device.gpu import HasGpu
from kareus.trace.types import PowerSamples

MAX_SAMPLES = 200_000  # 2.8 hours at 50 ms; 20 MB of Python objects
LOCK_TIMEOUT_S = 0.5  # a reading takes some 10 us; longer means that the driver hangs
READING_SHARE = 0.02  # of the sampling thread's time that readings may take
SLOWEST_PERIOD_S = 0.25
SETTLING_READINGS = 5  # before their time is judged
MISSING = -1  # a reading that NVML did not give, in integer columns


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One sample.

    Attributes:
        monotonic_ns: time.monotonic_ns. time_ns: time.time_ns (absolute).
        energy_mj, power_mw, sm_clock_mhz: readings, None where there was none.
        integral_mj: power integrated since the sampler started (trapezoids between good readings), mJ.
    """

    monotonic_ns: int
    time_ns: int
    energy_mj: int | None
    power_mw: int | None
    sm_clock_mhz: int | None
    integral_mj: float


class Sampler:
    """Samples one GPU on a thread of its own.

    Attributes:
        period_s: time between samples. NVML's power readings are unreliable when polled faster than 50 ms;
            longer where readings are slow, up to SLOWEST_PERIOD_S.
        counter_backsteps: how often the energy counter ran backwards.
        missed: samples without a power reading.
    """

    def __init__(self, handle: HasGpu, period_s: float = 0.05, *, max_samples: int = MAX_SAMPLES) -> None:
        self.period_s = self._asked_period_s = period_s
        self.counter_backsteps = 0
        self.missed = 0
        self._gpu = handle.gpu
        self._samples: deque[Sample] = deque(maxlen=max_samples)
        self._last_good: Sample | None = None
        self._lock = threading.Lock()
        self._stuck = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Sampler:
        """Begin sampling; a second start does nothing."""
        if self._thread is None:
            self._wake.clear()
            self._thread = threading.Thread(target=self._run, name="kareus-sampler", daemon=True)
            self._thread.start()
        return self

    def latest(self) -> Sample:
        """Return the newest sample there is, without asking the driver unless there is none."""
        return self._samples[-1] if self._samples else self.take()

    def stop(self) -> PowerSamples:
        """Stop and return all samples as columns (-1 where a reading was missing)."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._wake.set()
            thread.join(timeout=2.0)  # a driver that hangs must not hang its caller
        return self.columns()

    def columns(self) -> PowerSamples:
        """Return the samples so far as columns (-1 where a reading was missing)."""
        with self._lock:
            rows = list(self._samples)
        return PowerSamples(
            time_ns=np.array([row.time_ns for row in rows], np.int64),
            energy_mj=np.array([_or_missing(row.energy_mj) for row in rows], np.int64),
            power_mw=np.array([_or_missing(row.power_mw) for row in rows], np.int64),
            sm_clock_mhz=np.array([_or_missing(row.sm_clock_mhz) for row in rows], np.int64),
        )

    def take(self) -> Sample:
        """Take one sample now, on the calling thread.

        Where another thread's reading hangs in the driver this waits once, briefly, and from then on not at
        all: the sample is then empty.
        """
        if not self._lock.acquire(timeout=0.0 if self._stuck else LOCK_TIMEOUT_S):
            self._stuck = True
            return Sample(
                monotonic_ns=time.monotonic_ns(), time_ns=time.time_ns(), energy_mj=None, power_mw=None,
                sm_clock_mhz=None, integral_mj=0.0,
            )  # fmt: skip
        try:
            self._stuck = False
            return self._take()
        finally:
            self._lock.release()

    def _take(self) -> Sample:
        raw = self._gpu.sample()
        now_ns, good = time.monotonic_ns(), self._last_good
        last = self._samples[-1] if self._samples else None
        integral_mj = last.integral_mj if last else 0.0
        if raw.power_mw is None:
            self.missed += 1
        elif good is not None and good.power_mw is not None:
            # mW * ns = 1e-9 mJ; the trapezoid spans readings that were missed in between
            mean_mw = (good.power_mw + raw.power_mw) / 2
            integral_mj = good.integral_mj + mean_mw * (now_ns - good.monotonic_ns) * 1e-9
        if last and _went_back(last.energy_mj, raw.energy_mj):
            self.counter_backsteps += 1
        sample = Sample(
            monotonic_ns=now_ns, time_ns=time.time_ns(), energy_mj=raw.energy_mj, power_mw=raw.power_mw,
            sm_clock_mhz=raw.sm_clock_mhz, integral_mj=integral_mj,
        )  # fmt: skip
        self._samples.append(sample)
        if raw.power_mw is not None:
            self._last_good = sample
        return sample

    def energy_between_j(self, start: Sample, end: Sample) -> tuple[float | None, float]:
        """Return the integrated power between two samples, J, and the longest time without a reading, s.

        The energy is None where either end has no power reading or lies before the oldest sample kept.
        """
        if start.power_mw is None or end.power_mw is None:
            return None, 0.0
        longest_ns, later_ns = 0, end.monotonic_ns
        with self._lock:
            for sample in reversed(self._samples):
                if sample.monotonic_ns > end.monotonic_ns or sample.power_mw is None:
                    continue
                longest_ns = max(longest_ns, later_ns - sample.monotonic_ns)
                later_ns = sample.monotonic_ns
                if sample.monotonic_ns <= start.monotonic_ns:
                    return (end.integral_mj - start.integral_mj) / 1e3, longest_ns / 1e9
        return None, 0.0

    def _run(self) -> None:
        # Fixed rate from the start, so that sampling does not lock onto a step's period by drifting.
        due = time.monotonic()
        quickest_s, readings = float("inf"), 0
        while not self._wake.is_set() and not self._gpu.lost:
            start = time.monotonic()
            self.take()
            # A reading takes microseconds on most hosts and milliseconds in some virtual machines. The
            # quickest one counts: others may have waited for Python or for a busy CPU.
            quickest_s = min(quickest_s, time.monotonic() - start)
            readings += 1
            if readings >= SETTLING_READINGS:
                self.period_s = max(self._asked_period_s, min(quickest_s / READING_SHARE, SLOWEST_PERIOD_S))
            due = max(due + self.period_s, time.monotonic())
            self._wake.wait(due - time.monotonic())


def _went_back(before_mj: int | None, now_mj: int | None) -> bool:
    return before_mj is not None and now_mj is not None and now_mj < before_mj


def _or_missing(value: int | None) -> int:
    return MISSING if value is None else value
