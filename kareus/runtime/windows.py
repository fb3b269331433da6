"""Keeps the issue order of launched collectives the same on all ranks, whatever one rank does locally.

A launch point inside a unit may be skipped on one rank (a branch not taken there), but units themselves
are met by all ranks in one order, or stock would already hang. So each launched all-gather gets a window:
it is issued when its point is met, or at the latest at the next unit event after it; and a point also
issues what should have been issued before it in the same window. Only the wait on the device for a point
that was not met is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kareus.schedule import LaunchPoint

Target = tuple[str, str]  # unit name, phase


def point_token(point: LaunchPoint) -> str:
    """Return the text a met launch point leaves in an observed pass."""
    return f"point:{point.side}|{point.phase}|{point.module}"


def anchor_token(event: str, unit: str, occurrence: int) -> str:
    """Return the text a unit event leaves in an observed pass."""
    return f"{event}:{unit}:{occurrence}"


@dataclass(frozen=True, kw_only=True)
class Windows:
    """When launched collectives are issued.

    Attributes:
        at_point: targets to issue when a point is met, in order, those due before it included.
        before_anchor: targets still to issue before a unit event does anything, by its token.
        launched: targets that have a window. dropped: points that the observed pass did not meet.
    """

    at_point: dict[str, tuple[Target, ...]] = field(default_factory=dict)
    before_anchor: dict[str, tuple[Target, ...]] = field(default_factory=dict)
    launched: frozenset[Target] = frozenset()
    dropped: tuple[str, ...] = ()


def plan_windows(tokens: list[str], targets: dict[str, list[Target]]) -> Windows:
    """Build windows from one observed pass.

    Args:
        tokens: points and unit events in the order rank 0 met them.
        targets: by point token, the collectives to launch there, in schedule order.
    """
    at_point: dict[str, tuple[Target, ...]] = {}
    before_anchor: dict[str, tuple[Target, ...]] = {}
    window: list[Target] = []
    seen: set[str] = set()
    for token in tokens:
        if token.startswith("point:"):
            if token in targets and token not in seen:
                seen.add(token)
                window += targets[token]
                at_point[token] = tuple(window)
        elif window:
            before_anchor[token] = tuple(window)
            window = []
    launched = frozenset(t for token in seen for t in targets[token])
    return Windows(
        at_point=at_point,
        before_anchor=before_anchor,
        launched=launched,
        dropped=tuple(sorted(set(targets) - seen)),
    )
