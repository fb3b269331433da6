"""Energy of windows shorter than the counter's period allows, by interpolating between its updates.

NVML's total-energy counter of an H200 moves every 100 ms. A thread notes when it moves; the energy at any
moment lies on the line between the two updates around it, which is right where power is steady there. So
a window is preceded and followed by steps of the same kind. Read only.
"""

from __future__ import annotations

import bisect
import threading
import time
from typing import Any

from kareus.device.nvml import Failure, session
from kareus.device.visible import open_gpu

POLL_S = 0.004  # one read costs 2 us


class EnergyCounter:
    """Energy, power and clock of one GPU by time.monotonic(); everything is None where there is no NVML."""

    def __init__(self, cuda_index: int | None, uuid: str = "") -> None:
        self.driver = ""
        self.updates: list[tuple[float, float]] = []
        self._gpu: Any = None
        self._stop = threading.Event()
        self._samples: list[tuple[float, float, float]] = []
        if cuda_index is None:
            return
        nvml = session()
        if not nvml.started:
            return
        self._gpu = open_gpu(nvml, cuda_index, uuid=uuid or None)
        version = nvml.call("nvmlSystemGetDriverVersion")
        self.driver = "" if isinstance(version, Failure) else str(version)
        if self._gpu is not None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    @property
    def available(self) -> bool:
        return self._gpu is not None

    def _run(self) -> None:
        last = None
        reads = 0
        while not self._stop.is_set():
            value = self._gpu.energy_mj()
            now = time.monotonic()
            if value is not None and value != last:
                self.updates.append((now, value / 1000))
                last = value
            if reads % 15 == 0:  # power fields are unreliable when read faster than every 50 ms
                power, clock = self._gpu.power_mw(), self._gpu.sm_clock_mhz()
                if power is not None:
                    self._samples.append((now, power / 1000, float(clock or 0)))
            reads += 1
            self._stop.wait(POLL_S)

    def at_j(self, when: float) -> float | None:
        """Joules at a moment; None outside of the updates seen."""
        if len(self.updates) < 2:
            return None
        index = bisect.bisect_right(self.updates, (when, float("inf")))
        if not 0 < index < len(self.updates):
            return None
        (t0, e0), (t1, e1) = self.updates[index - 1], self.updates[index]
        return e0 + (e1 - e0) * (when - t0) / (t1 - t0)

    def between_j(self, start: float, end: float) -> float | None:
        first, last = self.at_j(start), self.at_j(end)
        return None if first is None or last is None else last - first

    def means(self, start: float, end: float) -> tuple[float | None, float | None]:
        """Mean power (W) and SM clock (MHz) of the samples in a window."""
        rows = [row for row in self._samples if start <= row[0] <= end]
        if not rows:
            return None, None
        return sum(r[1] for r in rows) / len(rows), sum(r[2] for r in rows) / len(rows)

    def wait_for_update(self, when: float, timeout_s: float = 0.5) -> None:
        """Wait until the counter has moved after a moment, so that `at_j` knows it."""
        limit = time.monotonic() + timeout_s
        while self.available and time.monotonic() < limit:
            if self.updates and self.updates[-1][0] > when:
                return
            time.sleep(POLL_S)

    def close(self) -> None:
        self._stop.set()
        if self.available:
            self._thread.join(timeout=2)
