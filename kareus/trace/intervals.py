"""Interval algebra on integer nanoseconds: unions, intersections, and what lies outside."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from kareus.trace.types import I64


def union(start: I64, end: I64) -> I64:
    """Return the union as disjoint rows (start, end), ascending, int64[m, 2]; empty ones are dropped."""
    keep = end > start
    start, end = start[keep], end[keep]
    if len(start) == 0:
        return np.zeros((0, 2), np.int64)
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    fresh = np.concatenate([[True], start[1:] > reach[:-1]])
    first = np.flatnonzero(fresh)
    last = np.concatenate([first[1:] - 1, [len(start) - 1]])
    return np.stack([start[first], reach[last]], axis=1)


def length(rows: I64) -> int:
    """Return the total length of disjoint rows."""
    return int((rows[:, 1] - rows[:, 0]).sum())


def _covered_before(rows: I64, at: ArrayLike) -> I64:
    """Covered length of disjoint rows left of each point."""
    points = np.asarray(at, np.int64)
    if len(rows) == 0:
        return np.zeros(points.shape, np.int64)
    ends = np.concatenate([[0], np.cumsum(rows[:, 1] - rows[:, 0])])
    index = np.searchsorted(rows[:, 0], points, side="right")
    inside = np.where(index > 0, points - rows[np.maximum(index - 1, 0), 0], 0)
    width = np.where(index > 0, (rows[:, 1] - rows[:, 0])[np.maximum(index - 1, 0)], 0)
    return ends[np.maximum(index - 1, 0)] * (index > 0) + np.minimum(inside, width)


def overlap_ns(start: I64, end: I64, other_start: I64, other_end: I64) -> I64:
    """Return how much of each interval is covered by the union of others, int64[n]."""
    rows = union(other_start, other_end)
    return _covered_before(rows, end) - _covered_before(rows, start)


def intersection_ns(first: I64, second: I64) -> int:
    """Return the length shared by two sets of disjoint rows."""
    if len(first) == 0:
        return 0
    return int((_covered_before(second, first[:, 1]) - _covered_before(second, first[:, 0])).sum())
