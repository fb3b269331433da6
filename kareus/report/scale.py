"""From nanoseconds to drawing units: one scale for the page's timeline and for the picture."""

from __future__ import annotations

from collections.abc import Iterable

from kareus.report.numbers import nice_step


class Scale:
    """A horizontal time axis from 0 to `span_ns`.

    Attributes:
        span_ns: time at the right edge. width: drawing units there.
    """

    def __init__(self, span_ns: int, width: int) -> None:
        self.span_ns = max(span_ns, 1)
        self.width = width

    def units(self, time_ns: float) -> int:
        """Return the drawing unit nearest to a time."""
        return round(time_ns * self.width / self.span_ns)

    def percent(self, time_ns: float) -> str:
        """Return a time as a CSS percentage of the width."""
        return f"{time_ns * 100 / self.span_ns:.3f}%"

    @property
    def grain_ns(self) -> int:
        """Gaps below this are thinner than a drawing unit."""
        return self.span_ns // self.width + 1

    def bars(self, intervals: Iterable[tuple[int, int]], *, top: int = 0, height: int) -> str:
        """Return path data; a bar is never thinner than one unit, so short work stays visible.

        Choose a width well above the pixels drawn, or what is widened adds up to a false picture.
        """
        parts = []
        for start, end in intervals:
            left = self.units(start)
            width = max(1, self.units(end) - left)
            parts.append(f"M{left} {top}h{width}v{height}h-{width}z")
        return "".join(parts)

    def ticks(self, max_ticks: int) -> list[tuple[float, str]]:
        """Return (time_ns, label in ms) for round times, the first with its unit."""
        step_us = nice_step(self.span_ns / 1e3, max_ticks)
        count = int(self.span_ns / 1e3 / step_us) + 1
        return [
            (i * step_us * 1e3, f"{i * step_us / 1e3:g}" + (" ms" if i == 0 else "")) for i in range(count)
        ]
