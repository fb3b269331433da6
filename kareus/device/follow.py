"""When to change clocks: pure bookkeeping of regions entered, dwell, and how far to lead.

The governor tells it what the GPU entered and when; it tells the governor what to apply and when. It
knows nothing about NVML, threads or time sources.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MIN_OBSERVATIONS = 3  # intervals seen before a region is entered early
STEADY = 0.10  # the last two intervals may differ by this share for a prediction to be made


@dataclass(kw_only=True)
class RegionFollower:
    """Follows the GPU through regions.

    Attributes:
        min_dwell_s: shortest time between two changes. lead_s: the measured switching time: a region that
            begins at a predictable time is applied this much earlier.
        current: region the GPU is in, None before the first. applied: region whose settings are in force.
        deferred: wishes that had to wait for the dwell. overtaken: wishes the GPU had left before their
            turn came. predicted: changes made ahead of their region. mispredicted: those followed by
            another region.
    """

    min_dwell_s: float = 1.0
    lead_s: float = 0.0
    current: int | None = None
    applied: int | None = None
    deferred: int = 0
    overtaken: int = 0
    predicted: int = 0
    mispredicted: int = 0
    _entered_s: float = 0.0
    _applied_s: float = float("-inf")
    _expected: int | None = None
    _next: dict[int, int] = field(default_factory=dict)
    _intervals: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    _waiting: bool = False

    def entered(self, region: int, now_s: float) -> None:
        """Note that the GPU entered a region."""
        if self._expected is not None and self._expected != region:
            self.mispredicted += 1
        self._expected = None
        if self._waiting and region != self.current:
            self.overtaken += 1
            self._waiting = False
        if self.current is not None and region != self.current:
            self._next[self.current] = region
            seen = self._intervals.setdefault((self.current, region), [])
            seen.append(now_s - self._entered_s)
            del seen[:-MIN_OBSERVATIONS]
        if region != self.current:
            self._entered_s = now_s
        self.current = region

    def due(self, now_s: float) -> int | None:
        """Return the region to apply now, or None."""
        wish = self._wish(now_s)
        if wish is None or wish == self.applied:
            return None
        if now_s - self._applied_s < self.min_dwell_s:
            if not self._waiting:
                self._waiting = True
                self.deferred += 1
            return None
        return wish

    def has_applied(self, region: int, now_s: float, *, changed: bool = True) -> None:
        """Note that a region's settings are in force; `changed` False when they already were."""
        self.applied = region
        self._waiting = False
        if region != self.current:
            self.predicted += 1
            self._expected = region
        if changed:
            self._applied_s = now_s

    def next_due_s(self, now_s: float) -> float | None:
        """Return when `due` may next say something without another region entered; None: not before."""
        times = []
        if self.current is not None and self.current != self.applied and self._expected is None:
            times.append(self._applied_s + self.min_dwell_s)
        start = self._predicted_start()
        if start is not None and self._expected is None:
            times.append(max(start - self.lead_s, self._applied_s + self.min_dwell_s))
        later = [time for time in times if time > now_s]
        return min(later) if later else None

    def _wish(self, now_s: float) -> int | None:
        if self._expected is not None:
            return self._expected
        start = self._predicted_start()
        if (
            start is not None
            and self.current is not None
            and start - self.lead_s <= now_s <= start + self.lead_s
        ):
            return self._next[self.current]
        return self.current

    def _predicted_start(self) -> float | None:
        """When the GPU will enter the next region, if it has done so steadily."""
        if self.lead_s <= 0 or self.current is None or self.current not in self._next:
            return None
        seen = self._intervals[self.current, self._next[self.current]]
        if len(seen) < MIN_OBSERVATIONS or abs(seen[-1] - seen[-2]) > STEADY * seen[-1]:
            return None
        return self._entered_s + sum(seen) / len(seen)
