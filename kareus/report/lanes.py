"""Slices on lanes: nothing overlaps on one lane, and what waits is found by interval union."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from kareus.report.data import Breakdown, Slice, SliceClass, Timeline
from kareus.trace.intervals import union as intervals_of

Intervals = list[tuple[int, int]]


def union(intervals: Iterable[tuple[int, int]]) -> Intervals:
    """Return the union of (start, end) pairs as disjoint pairs, ascending; empty ones vanish."""
    pairs = np.array(list(intervals), dtype=np.int64).reshape(-1, 2)
    return [(start, end) for start, end in intervals_of(pairs[:, 0], pairs[:, 1]).tolist()]


def subtract(whole: Intervals, taken: Intervals) -> Intervals:
    """Return the parts of one union outside another; both as `union` returns them."""
    left: Intervals = []
    first = 0
    for start, end in whole:
        while first < len(taken) and taken[first][1] <= start:
            first += 1
        at = start
        index = first
        while index < len(taken) and taken[index][0] < end:
            if taken[index][0] > at:
                left.append((at, taken[index][0]))
            at = max(at, taken[index][1])
            index += 1
        if at < end:
            left.append((at, end))
    return left


def total(intervals: Intervals) -> int:
    """Return the summed length of a union."""
    return sum(end - start for start, end in intervals)


def pack(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Spread slices over as few lanes as possible, so that none overlap on one lane.

    First-fit by start time: each slice goes to the lowest lane that is free, so a stream that runs in
    order stays on lane 0. Trace viewers drop slices that overlap on one track without a word.
    """
    lanes: list[list[Slice]] = []
    free: list[int] = []  # lanes whose last slice has ended, lowest first
    busy: list[tuple[int, int]] = []  # (end, lane)
    for piece in sorted(slices, key=lambda s: (s.start_ns, s.end_ns)):
        while busy and busy[0][0] <= piece.start_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(piece)
        heapq.heappush(busy, (piece.end_ns, lane))
    return lanes


def waiting(timeline: Timeline) -> tuple[Intervals, Intervals]:
    """Return (exposed, idle): communication alone, and nothing at all, within the step."""
    compute, communication = _busy(timeline)
    step = union([(0, timeline.duration_ns)])
    exposed = subtract(communication, compute)
    return exposed, subtract(step, union([*compute, *communication]))


def breakdown(timeline: Timeline) -> Breakdown:
    """Return where a timeline's time goes; the parts add up to the step exactly."""
    compute, communication = _busy(timeline)
    exposed, idle = waiting(timeline)
    return Breakdown(
        compute_us=total(compute) / 1e3,
        comm_us=total(communication) / 1e3,
        exposed_us=total(exposed) / 1e3,
        idle_us=total(idle) / 1e3,
    )


def _busy(timeline: Timeline) -> tuple[Intervals, Intervals]:
    compute: Intervals = []
    communication: Intervals = []
    for track in timeline.tracks:
        for piece in track.slices:
            inside = (max(0, piece.start_ns), min(timeline.duration_ns, piece.end_ns))
            (communication if piece.kind.is_communication else compute).append(inside)
    return union(compute), union(communication)


def coalesce(slices: Sequence[Slice], grain_ns: int) -> dict[SliceClass, Intervals]:
    """Join neighbours of one class closer than `grain_ns`, for drawing only; classes in order.

    Slices of other classes lying between keep two runs apart, so a drawing never paints over them.
    """
    runs: dict[SliceClass, Intervals] = {}
    last: SliceClass | None = None
    for piece in sorted(slices, key=lambda s: s.start_ns):
        mine = runs.setdefault(piece.kind, [])
        if last is piece.kind and piece.start_ns - mine[-1][1] < grain_ns:
            mine[-1] = (mine[-1][0], max(mine[-1][1], piece.end_ns))
        else:
            mine.append((piece.start_ns, piece.end_ns))
        last = piece.kind
    return dict(sorted(runs.items()))
