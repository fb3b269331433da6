"""How long each kernel would take with no collective beside it, estimated from the recording itself.

Kernels that ran beside a collective were slowed by it. The same kernel at the same place of another unit
or step often ran alone: the median of those is its duration alone. Where none did, kernels of the same
name and grid that ran alone are used (persistent GEMM kernels share a grid over many shapes, so durations
are clustered first), and else the class's own median slowdown.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from kareus.trace.intervals import overlap_ns
from kareus.trace.types import F64, I32, I64, KernelClass, OpKind, OpTable

ALONE_SHARE = 0.02  # overlapped for less than this share of its time counts as alone
CLUSTER_RATIO = 1.12  # durations of one name and grid further apart than this are different shapes


def alone_durations(ops: OpTable, place: I32) -> I64:
    """Return alone_ns for every op, int64[n].

    Args:
        ops: the work items (`alone_ns` ignored).
        place: an id for "the same kernel of another unit or step", -1 unknown, int32[n].
    """
    duration = ops.duration_ns
    comm = ops.kind == OpKind.COLLECTIVE
    share = np.zeros(len(ops))
    positive = (duration > 0) & ~comm
    beside = overlap_ns(ops.start_ns, ops.end_ns, ops.start_ns[comm], ops.end_ns[comm])
    share[positive] = beside[positive] / duration[positive]
    alone = duration.copy()
    slowed = positive & (share > ALONE_SHARE)
    if not slowed.any():
        return alone
    asked = np.isin(place, place[slowed]) & (place >= 0)
    by_place = _medians(place, duration, positive & ~slowed & asked)
    slowdown = _class_slowdown(ops, place, duration, slowed, by_place, share)
    rest = np.flatnonzero(slowed & ~np.isin(place, list(by_place)))
    alike = np.isin(ops.name, ops.name[rest])
    clusters = _clusters(ops, duration, positive & ~slowed & alike)
    for row in np.flatnonzero(slowed):
        known = by_place.get(int(place[row]))
        if known is None:
            guess = duration[row] / (1 + (slowdown[ops.kernel_class[row]] - 1) * share[row])
            known = _nearest(clusters.get((int(ops.name[row]), int(ops.grid[row]))), guess, duration[row])
        alone[row] = min(int(known), int(duration[row]))
    return alone


def _medians(key: I32, duration: I64, chosen: np.ndarray) -> dict[int, float]:
    groups: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(chosen):
        groups[int(key[row])].append(int(duration[row]))
    return {k: _middle(sorted(v)) for k, v in groups.items()}


def _class_slowdown(
    ops: OpTable, place: I32, duration: I64, slowed: np.ndarray, alone: dict[int, float], share: F64
) -> F64:
    """Median full-overlap slowdown of each kernel class, 1 where nothing is known."""
    ratios: dict[int, list[float]] = defaultdict(list)
    for row in np.flatnonzero(slowed & (share > 0.5)):
        base = alone.get(int(place[row]))
        if base:
            ratios[int(ops.kernel_class[row])].append(1 + (duration[row] / base - 1) / share[row])
    result = np.ones(max(KernelClass) + 1)
    for kernel_class, values in ratios.items():
        result[kernel_class] = max(1.0, _middle(sorted(values)))
    return result


def _clusters(ops: OpTable, duration: I64, chosen: np.ndarray) -> dict[tuple[int, int], list[float]]:
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in np.flatnonzero(chosen):
        groups[int(ops.name[row]), int(ops.grid[row])].append(int(duration[row]))
    centres = {}
    for key, values in groups.items():
        values.sort()
        cuts = [i for i in range(1, len(values)) if values[i] > CLUSTER_RATIO * max(values[i - 1], 1)]
        edges = [0, *cuts, len(values)]
        centres[key] = [_middle(values[a:b]) for a, b in itertools.pairwise(edges)]
    return centres


def _nearest(centres: list[float] | None, guess: float, recorded: int) -> float:
    """The cluster nearest to a guess, if one lies within 25 % of it; else the guess."""
    usable = [c for c in centres or () if c <= recorded * 1.02]
    if not usable:
        return guess
    best = min(usable, key=lambda c: abs(np.log(max(c, 1) / max(guess, 1))))
    return best if abs(best / max(guess, 1) - 1) < 0.25 else guess


def _middle(ordered: Sequence[float]) -> float:
    """Median of values in order; for a handful of them ten times faster than numpy's."""
    half = len(ordered) // 2
    return float(ordered[half]) if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
