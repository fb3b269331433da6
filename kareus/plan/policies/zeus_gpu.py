"""The Zeus search on a real GPU: windows by its energy meter, limits through the clock governor.

    limits = power_limits(200, 700)
    governor = limit_governor(meter, limits).start()
    search = PowerLimitSearch(limits, rule, MeterWindow(meter, torch.cuda.synchronize),
                              limit_setter(governor, meter, limits), reduce=over_ranks)
    for batch in data: search.on_step_begin(); ...
    governor.stop()     # the limit returns to what it was, also after a crash

The governor brings permission check, ownership, journal and watchdog; without permission the search ends at
once with `failure` set and training goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kareus.device import EnergyMeter, Governor
from kareus.schedule import ClockRegion, LaunchPoint

WAIT_S = 15.0  # the governor's first set starts a watchdog process, which takes a second or more
_POLL_S = 0.01
_WINDOW = "zeus power limit"
_ENTERED_BY_HAND = LaunchPoint(module="", phase="forward", side="before")


class MeterWindow:
    """Measures one window of this rank's GPU (`zeus.Meter`).

    Args:
        meter: of the GPU. synchronize: returns when the work issued so far has finished.
    """

    def __init__(self, meter: EnergyMeter, synchronize: Callable[[], None]) -> None:
        self._meter, self._synchronize = meter, synchronize

    def begin(self) -> None:
        """Start a window."""
        self._synchronize()
        self._meter.begin(_WINDOW)

    def end(self) -> tuple[float, float]:
        """Return (seconds, joules); 0 J where another rank counts this GPU.

        Raises:
            ValueError: the energy could not be read.
        """
        self._synchronize()
        reading = self._meter.end(_WINDOW)
        if reading.energy_j is not None:
            return reading.seconds, reading.energy_j
        if "not_owner" in reading.flags:
            return reading.seconds, 0.0
        raise ValueError(f"expected the energy of a window, found none ({', '.join(reading.flags)})")

    def cancel(self) -> None:
        """Drop the window."""
        self._meter.end(_WINDOW)


def limit_governor(
    meter: EnergyMeter, limits_w: Sequence[int], *, min_dwell_s: float | None = None
) -> Governor:
    """Return a governor, not yet started, that can set each of some power limits and undoes them at its end."""
    regions = [ClockRegion(start=_ENTERED_BY_HAND, power_limit_w=float(watts)) for watts in limits_w]
    return Governor(meter, regions, "apply", min_dwell_s=min_dwell_s)


def limit_setter(
    governor: Governor, meter: EnergyMeter, limits_w: Sequence[int], *, timeout_s: float = WAIT_S
) -> Callable[[int], None]:
    """Return what sets a limit through a governor of `limit_governor` and waits until it is in force.

    A window at another limit than it is counted for would spoil the search, so the setter raises RuntimeError
    (which ends the search, not the training) when the limit is not read back in time.
    """
    index = {watts: i for i, watts in enumerate(limits_w)}

    def set_limit(watts: int) -> None:
        governor.enter(index[watts])
        end = time.monotonic() + timeout_s
        while governor.active and time.monotonic() < end:
            if meter.gpu.power_limit_mw() == watts * 1000:
                return
            time.sleep(_POLL_S)
        reason = governor.report().reason or "another limit is read back; ask kareus doctor"
        raise RuntimeError(f"expected {watts} W within {timeout_s:g} s: {reason}")

    return set_limit
