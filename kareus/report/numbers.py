"""Figures as people read them: one place decides digits, units and signs."""

from __future__ import annotations

MINUS = "\u2212"
NBSP = "\u00a0"
ARROW = "\u2192"


def plain(shown: str) -> str:
    """Return text in ASCII signs and spaces: for pipes, logs and terminals that know no others."""
    return shown.replace(MINUS, "-").replace(NBSP, " ").replace(ARROW, "->")


def _fixed(value: float, digits: int) -> str:
    shown = f"{abs(value):.{digits}f}"
    negative = value < 0 and float(shown) != 0.0
    return (MINUS if negative else "") + shown


def ms(time_us: float, digits: int = 2) -> str:
    """Return microseconds as "127.20 ms"."""
    return f"{_fixed(time_us / 1e3, digits)}{NBSP}ms"


def joules(energy_j: float, digits: int = 2) -> str:
    """Return joules as "89.04 J"."""
    return f"{_fixed(energy_j, digits)}{NBSP}J"


def percent(share: float, digits: int = 1) -> str:
    """Return a share as "3.3 %"."""
    return f"{_fixed(share * 100, digits)}{NBSP}%"


def signed_percent(share: float, digits: int = 1) -> str:
    """Return a change as "+3.3 %", with a true minus sign; zero has no sign."""
    shown = percent(share, digits)
    rounded_up = share > 0 and float(f"{share * 100:.{digits}f}") != 0.0
    return f"+{shown}" if rounded_up else shown


def change(before: float, after: float) -> float:
    """Return (after - before) / before, 0 where before is 0."""
    return (after - before) / before if before else 0.0


def megabytes(num_bytes: int) -> str:
    """Return bytes as "228.1 MB" (10^6 bytes)."""
    return f"{num_bytes / 1e6:.1f}{NBSP}MB"


def nice_step(span: float, max_steps: int) -> float:
    """Return the smallest 1-2-5 step that divides a span into at most `max_steps` parts.

    Raises:
        ValueError: the span is not positive.
    """
    if not span > 0:
        raise ValueError(f"an axis needs a positive span, found {span}")
    magnitude = 1.0
    while magnitude * max_steps < span:
        magnitude *= 10
    while magnitude * max_steps >= span * 10:
        magnitude /= 10
    return next(magnitude * m / 10 for m in (1, 2, 5, 10) if magnitude * m / 10 * max_steps >= span)
