"""Which setting a sweep measures next, and when it has seen enough. Pure, so that all ranks agree."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

STOCK_EVERY = 3  # a stock block at least before every third block
ENOUGH = 0.01  # share of the step that every interval must be within
# 97.5 % points of Student's t for 1, 2, ... degrees of freedom
T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def half_width(ratios: Sequence[float]) -> float:
    """Return half of the 95 % interval of the mean of some ratios; infinite below two."""
    if len(ratios) < 2:
        return math.inf
    freedom = len(ratios) - 1
    factor = T975[min(freedom, len(T975)) - 1]
    return factor * statistics.stdev(ratios) / math.sqrt(len(ratios))


def next_setting(ratios: Mapping[str, Sequence[float]], since_stock: int) -> str | None:
    """Return the label to measure next, "stock" where a stock block is due, None when all is known.

    Each setting is seen twice first; then the one with the widest interval goes on, until every interval
    is within `ENOUGH` of the step.

    Args:
        ratios: setting -> its step time over that of the stock block before it, one for each block, in
            the order of preference. since_stock: blocks since the last stock block.
    """
    fewest = min((len(values) for values in ratios.values()), default=2)
    if fewest < 2:
        wanted = next(label for label, values in ratios.items() if len(values) == fewest)
    else:
        wanted = max(ratios, key=lambda label: half_width(ratios[label]), default="")
        if not wanted or half_width(ratios[wanted]) <= ENOUGH:
            return None
    return "stock" if since_stock >= STOCK_EVERY - 1 else wanted


def is_settled(step_us: Sequence[float], tolerance: float = 0.05) -> bool:
    """Return whether the two halves of a block agree; a block that drifts is not a measurement."""
    half = len(step_us) // 2
    if half < 2:
        return True
    first, second = np.median(step_us[:half]), np.median(step_us[-half:])
    return bool(abs(first - second) <= tolerance * max(first, second))
