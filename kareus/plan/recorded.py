"""How much equal spans of one recording differ: the interval of a setting that was seen rather than modelled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kareus.trace.types import Span, StepGraph

_FEWEST = 3  # equal spans whose spread says something


def recorded_spreads_us(
    graph: StepGraph, spans: Sequence[Span], members: Sequence[Sequence[int]], step_spread: float | None
) -> list[float | None]:
    """Return the standard error of each kind's mean recorded duration, us a span.

    A plan's time is the sum over all spans of a kind, so what matters is how well their mean is known: spans that
    take turns being longer and shorter leave the sum as it is.

    A kind seen fewer than three times gets the relative spread of the kinds that were seen more often, that of
    whole steps where there are none, and None where that is not known either: one sample has no spread.

    Args:
        graph: the step. spans: all of its spans, in order. members: the spans of each kind.
        step_spread: see `step_spread`.
    """
    lengths = _lengths_us(graph, spans)
    groups = [lengths[list(group)] for group in members]
    often = [group for group in groups if len(group) >= _FEWEST and group.mean() > 0]
    if often:
        squares = sum(float(((group / group.mean() - 1) ** 2).sum()) for group in often)
        step_spread = float(np.sqrt(squares / sum(len(group) - 1 for group in often)))
    if step_spread is None:
        return [None] * len(groups)
    relative = step_spread
    return [
        (float(group.std(ddof=1)) if len(group) >= _FEWEST else relative * float(group.mean()))
        / math.sqrt(len(group))
        for group in groups
    ]


def step_spread(graphs: Sequence[StepGraph]) -> float | None:
    """Return the relative standard deviation of recorded steps' durations, None for fewer than three steps."""
    lengths = np.array([graph.duration_ns for graph in graphs], np.float64)
    return (
        float(lengths.std(ddof=1) / lengths.mean())
        if len(lengths) >= _FEWEST and lengths.mean() > 0
        else None
    )


def _lengths_us(graph: StepGraph, spans: Sequence[Span]) -> np.ndarray:
    """From the start of a span's first op to the start of the next span's, float[spans]."""
    firsts = [int(graph.ops.start_ns[span.compute[0]]) if len(span.compute) else -1 for span in spans]
    lengths, until = [], graph.end_ns
    for first in reversed(firsts):
        start = until if first < 0 else first
        lengths.append((until - start) / 1e3)
        until = start
    return np.array(lengths[::-1])
