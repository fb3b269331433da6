"""Energy of steps that are shorter than the meter's period allows.

The energy counter of an H200 moves every 100 ms, so one step's own difference is mostly chance. Steps of
one arm share a window instead: its energy divided by its length is a mean power, and a step's energy is
that power times the step's time. What is lost is how steps of one window differ in power; the window's
length and source stand in every record.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from kareus.runtime.fingerprint import Job
from kareus.runtime.records import Tally

WINDOW_S = 3.0  # the counter's 100 ms at both ends of it are 3 % at worst
WINDOW_NAME = "kareus steps"


class EnergyReading(Protocol):
    """What is needed of kareus.device.energy.EnergyReading."""

    @property
    def energy_j(self) -> float | None:
        """Joules of the window, None unknown."""

    @property
    def seconds(self) -> float:
        """Length of the window."""

    @property
    def source(self) -> str:
        """Where the figure comes from: "counter", "power" or "none"."""


class Sampler(Protocol):
    """Reads energy and clock of this rank's GPU; nothing here raises."""

    def read(self) -> tuple[float | None, int | None]:
        """Return joules since some fixed moment and the SM clock in MHz, each None where unknown."""

    def begin(self) -> None:
        """Open the window."""

    def end(self) -> EnergyReading:
        """Close the window."""

    def rest(self, resting: bool) -> None:
        """Stop reading in the background, or begin again."""

    def close(self) -> None:
        """Give the meter back."""


class MeterSampler:
    """A `Sampler` on the meter of kareus.device.

    Attributes:
        meter: the EnergyMeter.
    """

    def __init__(self, meter: Any) -> None:
        self.meter = meter

    def read(self) -> tuple[float | None, int | None]:
        """Return the counter in joules (None also where another process counts this GPU) and the SM clock.

        As the sampling thread saw them last: the training thread does not wait for the driver.
        """
        now = self.meter.latest()
        counter_j = now.energy_mj / 1e3 if self.meter.owner and now.energy_mj is not None else None
        return counter_j, now.sm_clock_mhz

    def begin(self) -> None:
        """Open the window."""
        self.meter.begin(WINDOW_NAME)

    def end(self) -> EnergyReading:
        """Close the window."""
        reading: EnergyReading = self.meter.end(WINDOW_NAME)
        return reading

    def rest(self, resting: bool) -> None:
        """Stop reading in the background, or begin again."""
        if resting:
            self.meter.pause()
        else:
            self.meter.resume()

    def close(self) -> None:
        """Stop the meter's threads and let the next session count this GPU."""
        self.meter.close()


def open_sampler(job: Job, tally: Tally) -> MeterSampler | None:
    """Return a sampler for this rank's GPU, None on CPU or without NVML."""
    if job.device.type != "cuda":
        return None
    import torch

    from kareus.device import open_meter

    index = job.device.index if job.device.index is not None else torch.cuda.current_device()
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    try:
        meter = open_meter(index, uuid=None if uuid is None else f"GPU-{uuid}")
    except Exception as error:  # readings are a luxury
        tally.add("energy_unavailable", f"energy is not measured: {error}")
        return None
    return None if meter is None else MeterSampler(meter)


class Window:
    """A stretch of steps of one arm with one reading.

    Attributes:
        closed: the reading is there. power_w: mean power of the GPU over it, None unknown.
        seconds: its length. source: of the reading, "" until closed.
    """

    def __init__(self) -> None:
        self.closed = False
        self.power_w: float | None = None
        self.seconds = 0.0
        self.source = ""

    def energy_j(self, time_us: float) -> float | None:
        """Return what a step of this length took of the window's energy."""
        return None if self.power_w is None else self.power_w * time_us / 1e6


class EnergyWindows:
    """Opens and closes windows at step boundaries.

    Boundaries are the CPU's, which runs ahead of the device by up to a step or so; a window of many steps
    of one kind does not notice.

    Args:
        sampler: reads the GPU. least_s: a window closes at the first boundary after so many seconds.
        now_s: clock, seconds.
    """

    def __init__(
        self, sampler: Sampler, *, least_s: float = WINDOW_S, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._sampler, self._least_s, self._now_s = sampler, least_s, now_s
        self.current = self._open()

    def _open(self) -> Window:
        self._opened_s = self._now_s()
        self._sampler.begin()
        return Window()

    def turn(self, *, force: bool = False) -> None:
        """Start a new window if this one is long enough, or in any case."""
        if not force and self._now_s() - self._opened_s < self._least_s:
            return
        reading, window = self._sampler.end(), self.current
        window.closed, window.seconds, window.source = True, reading.seconds, reading.source
        if reading.energy_j is not None and reading.seconds > 0:
            window.power_w = reading.energy_j / reading.seconds
        self.current = self._open()
