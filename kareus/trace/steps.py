"""Where training steps begin and end on the GPU.

In order of trust: the profiler's own step marks; the optimizer's annotations; the repetition of the
collective (or kernel) sequence; else the whole window is one step. A step ends with the last kernel its
optimizer launched and the next begins there, so steps tile the recording and idle time belongs to one.
"""

from __future__ import annotations

import itertools
import re

import numpy as np

from kareus.trace.grouping import distinct
from kareus.trace.types import I32, I64, OpKind

_PROFILER_STEP = re.compile(r"^ProfilerStep#(\d+)")
COMPLETE_FIRST = 0.97  # the same for the step the window opens in
COMPLETE = 0.9  # a step with fewer ops than this share of the median step is cut off at the window's edge
MAX_REPEATS = 64
LEADING = 0.9  # share of ops without a launch among the first ones that makes those the step before


def find_steps(
    start_ns: I64,
    end_ns: I64,
    launch_ns: I64,
    kind: np.ndarray,
    name: I32,
    marks: list[tuple[int, int, int, str]],
    optimizer_marks: list[tuple[int, int]],
) -> tuple[tuple[tuple[int, int], ...], str]:
    """Return the steps as (start_ns, end_ns) and what they were found by.

    Args:
        start_ns, end_ns, launch_ns, kind, name: columns of the ops by start, length n.
        marks: all annotations. optimizer_marks: CPU intervals of optimizer steps.
    """
    if len(start_ns) == 0:
        return (), "window"
    first, last = int(start_ns[0]), int(end_ns.max())
    profiler = [(s, e) for s, e, _, text in marks if _PROFILER_STEP.match(text)]
    for intervals, source in ((profiler, "profiler"), (optimizer_marks, "optimizer")):
        ends = _ends(end_ns, launch_ns, intervals)
        if len(ends) >= 1:
            opened = intervals[0][0] if source == "profiler" else 0
            return _complete(start_ns, [_first_of_steps(start_ns, launch_ns, opened, ends[0]), *ends]), source
    cuts = _repetition(start_ns, end_ns, kind, name)
    if cuts:
        return _complete(start_ns, [first, *cuts]), "repetition"
    return ((first, last),), "window"


def _ends(end_ns: I64, launch_ns: I64, intervals: list[tuple[int, int]]) -> list[int]:
    """End of the last op launched in each CPU interval; intervals without any are left out."""
    ends = []
    for start, end in sorted(intervals):
        rows = (launch_ns >= start) & (launch_ns <= end)
        if rows.any():
            ends.append(int(end_ns[rows].max()))
    return ends


def _first_of_steps(start_ns: I64, launch_ns: I64, opened_ns: int, end_ns: int) -> int:
    """Start of the first op that belongs to the first step.

    When the window opens, the GPU still works on what was launched before: those ops have no launch in
    the file, or one before the first step mark, and belong to no step. A few ops with a launch may lie
    among them.
    """
    orphan = launch_ns < 0
    orphans = np.cumsum(orphan)
    leading = np.flatnonzero(orphan & (orphans >= LEADING * np.arange(1, len(orphans) + 1)))
    own = (launch_ns >= max(opened_ns, 0)) & (start_ns < end_ns)
    if len(leading) and orphans[-1] < len(orphans):
        own[: leading[-1] + 1] = False
    return int(start_ns[own].min()) if own.any() else int(start_ns[0])


def _complete(start_ns: I64, cuts: list[int]) -> tuple[tuple[int, int], ...]:
    """Steps between cuts, without one at the front that the window cut off."""
    steps = [(a, b) for a, b in itertools.pairwise(cuts) if b > a]
    counts = [int(((start_ns >= a) & (start_ns < b)).sum()) for a, b in steps]
    typical = float(np.median(counts)) if counts else 0.0
    return tuple(
        step
        for number, (step, count) in enumerate(zip(steps, counts, strict=True))
        if count >= (COMPLETE if number else COMPLETE_FIRST) * typical
    )


def _repetition(start_ns: I64, end_ns: I64, kind: np.ndarray, name: I32) -> list[int]:
    """Cuts where the sequence of work repeats; empty when it does not.

    The sequence of collectives is used where there are enough of them, the sequence of all kernels else.
    """
    rows = np.flatnonzero(kind == OpKind.COLLECTIVE)
    if len(rows) < 8:
        rows = np.arange(len(start_ns))
    sequence = name[rows]
    period = _period(sequence)
    if not period:
        return []
    ends = [int(end_ns[rows[i] : rows[i + period] if i + period < len(rows) else None].max())
            for i in range(0, len(rows) - period + 1, period)]  # fmt: skip
    starts = [int(start_ns[rows[i]]) for i in range(period, len(rows) - period + 1, period)]
    return [*starts, ends[-1]]


def _period(sequence: I32) -> int:
    """Smallest period (at least 2 repeats, more than one distinct name) of a sequence, 0 without one."""
    count = len(sequence)
    if count < 4 or len(distinct(sequence)) < 2:
        return 0
    for repeats in range(min(MAX_REPEATS, count // 2), 1, -1):
        period = count // repeats
        if np.array_equal(sequence[:-period], sequence[period:]):
            inner = sequence[:period]
            if len(distinct(inner)) > 1:
                return period
    return 0


def step_of(start_ns: I64, steps: tuple[tuple[int, int], ...]) -> I64:
    """Index of the step each op starts in, -1 outside."""
    index = np.full(len(start_ns), -1, np.int64)
    for number, (first, last) in enumerate(steps):
        index[(start_ns >= first) & (start_ns < last)] = number
    return index
