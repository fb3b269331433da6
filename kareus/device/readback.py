"""Did a lock take? Judged by the actual clock, under load, because a set that reports success may not act."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kareus.device.gpu import EVENT_CAPPED, EVENT_GPU_IDLE

TOLERANCE_MHZ = 15  # one step of the supported SM clocks on Hopper
JUDGE_AFTER_S = 1.0  # longer than any switching time published for NVIDIA GPUs (150 ms, Turing)


class Verdict(StrEnum):
    """How a lock came out."""

    REACHED = "reached"
    CAPPED = "capped"  # power or thermal limits hold the clock below the lock: the lock is not at fault
    NOT_TAKEN = "not_taken"
    UNJUDGED = "unjudged"  # the GPU was idle, or did not tell


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadBack:
    """One change of the SM or memory clock under observation.

    Attributes:
        target_mhz: the lock. before_mhz: clock read just before it, None unknown.
        set_s: when the set returned.
    """

    target_mhz: int
    before_mhz: int | None
    set_s: float

    def judge(self, now_s: float, clock_mhz: int | None, reasons: int | None) -> Verdict | None:
        """Judge one reading.

        Args:
            now_s: when it was taken. clock_mhz: the actual clock. reasons: event reasons, None unknown.

        Returns:
            The verdict, or None: look again.
        """
        busy = reasons is None or not reasons & EVENT_GPU_IDLE
        if clock_mhz is not None and busy and abs(clock_mhz - self.target_mhz) <= TOLERANCE_MHZ:
            return Verdict.REACHED
        if now_s - self.set_s < JUDGE_AFTER_S:
            return None
        if clock_mhz is None:
            return Verdict.UNJUDGED
        if not busy:
            return None
        if clock_mhz < self.target_mhz and reasons is not None and reasons & EVENT_CAPPED:
            return Verdict.CAPPED
        return Verdict.NOT_TAKEN

    def switch_time_s(self, now_s: float) -> float | None:
        """Return how long the change took, if the clock had to move to show it."""
        if self.before_mhz is None or abs(self.before_mhz - self.target_mhz) <= TOLERANCE_MHZ:
            return None
        return now_s - self.set_s
