"""Clocks of regions: tells the governor what training has issued.

Only used with `clocks="apply"`. The governor (kareus.device) does the rest off the training thread: it
follows the events recorded here, keeps its dwell, and undoes everything on every way out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kareus.runtime.energy import MeterSampler
from kareus.runtime.records import Tally
from kareus.schedule import ClockRegion, LaunchPoint, Schedule


class GovernorLike(Protocol):
    """What is needed of kareus.device.Governor."""

    def start(self) -> Any:
        """Check permission and begin."""

    def enter(self, region_index: int, event: Any = None) -> None:
        """Say that training has issued the start of a region."""

    def stop(self, timeout_s: float = 10.0) -> Any:
        """Undo everything and end."""


class ClockControl:
    """Feeds one governor from launch points and from the arm in force.

    Args:
        regions: of the schedule. make: creates a governor that has not started.

    A governor undoes what it set when the arm goes back to stock, and a new one begins when the schedule
    is in force again, so that stock is always measured at the clocks stock runs at.
    """

    def __init__(self, regions: Sequence[ClockRegion], make: Callable[[], GovernorLike]) -> None:
        self._regions = tuple(regions)
        self._make = make
        self._governor: GovernorLike | None = None
        self.reports: list[Any] = []

    def points(self) -> set[LaunchPoint]:
        """Return the points where regions start."""
        return {region.start for region in self._regions if region.start is not None}

    def on_met(self, point: LaunchPoint, mark: Any) -> None:
        """Pass on that a region's start was issued; `mark` is passed by the GPU when it gets there."""
        if self._governor is None:
            return
        for index, region in enumerate(self._regions):
            if region.start == point:
                self._governor.enter(index, mark if hasattr(mark, "query") else None)

    def on_arm(self, *, scheduled: bool) -> None:
        """Begin or end control with the arm."""
        if scheduled and self._governor is None:
            self._governor = self._make()
            self._governor.start()
        elif not scheduled and self._governor is not None:
            self.finish()

    def finish(self) -> None:
        """Undo everything; a second call does nothing."""
        if self._governor is not None:
            self.reports.append(self._governor.stop())
            self._governor = None


def open_clocks(
    schedule: Schedule | None, rank: int, sampler: MeterSampler | None, tally: Tally
) -> ClockControl | None:
    """Return the control of a rank's clock regions, None where there are none or no GPU to set."""
    regions = schedule.clocks_of(rank) if schedule is not None else ()
    if not regions:
        return None
    if sampler is None:
        tally.add(
            "clocks_unavailable", "the schedule sets clocks, but this rank has no GPU that NVML reaches"
        )
        return None
    from kareus.device import Governor

    return ClockControl(regions, lambda: Governor(sampler.meter, regions, "apply"))
