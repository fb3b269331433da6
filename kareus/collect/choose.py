"""Which setting a sweep measures next, and when it has seen enough. Pure: rank 0 asks, all ranks follow.

The first settings of the grid span it and are measured twice each. From then on a response surface over
all measured blocks says how well the step time of every setting of the grid is known, measured or not, and
the one known worst comes next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.model.surrogate import fit_surface

STOCK_EVERY = 3  # a stock block at least before every third block
ENOUGH = 0.01  # share of the step that every interval must be within
FIRST = 6  # settings that are measured twice before the surface is asked
Z975 = 1.959964  # half a 95 % interval in standard deviations
NOISES = (0.03, 0.1, 0.3, 1.0)  # of a block, over the spread of all: settings may hardly differ


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What to measure next.

    Attributes:
        label: a setting, "stock", or None when enough is known.
        widest: half the widest 95 % interval over the grid, as a share of the step; infinite while the
            first settings are still to be measured.
    """

    label: str | None
    widest: float


def next_setting(
    grid: Mapping[str, Sequence[float]], ratios: Mapping[str, Sequence[float]], since_stock: int
) -> Choice:
    """Return what to measure next.

    Args:
        grid: setting -> its numbers (see `Setting.numbers`), equally many for each, in the order of
            preference.
        ratios: setting -> its step time over that of the stock block before it, one for each block so far.
        since_stock: blocks since the last stock block.
    """
    if not grid:
        return Choice(label=None, widest=0.0)
    first = list(grid)[:FIRST]
    fewest = min(len(ratios.get(label, ())) for label in first)
    if fewest < 2:
        wanted = next(label for label in first if len(ratios.get(label, ())) == fewest)
        widest = float("inf")
    else:
        half = half_widths(grid, ratios)
        wanted = max(half, key=lambda label: half[label])
        widest = half[wanted]
        if widest <= ENOUGH:
            return Choice(label=None, widest=widest)
    return Choice(label="stock" if since_stock >= STOCK_EVERY - 1 else wanted, widest=widest)


def half_widths(
    grid: Mapping[str, Sequence[float]], ratios: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Return half the 95 % interval of every setting's step time, as a share of it.

    Args:
        grid: every setting's numbers. ratios: blocks so far, at least two in all; stock is 1 by definition.
    """
    candidates = np.array([list(numbers) for numbers in grid.values()], float)
    blocks = [(grid[label], ratio) for label, values in ratios.items() if label in grid for ratio in values]
    settings = np.array([list(numbers) for numbers, _ in blocks], float)
    surface = fit_surface(
        settings,
        np.array([ratio for _, ratio in blocks]),
        bounds=(candidates.min(axis=0), candidates.max(axis=0)),
        noises=NOISES,
    )
    deviation = surface.predict(candidates)[1]
    return {label: float(Z975 * sd) for label, sd in zip(grid, deviation, strict=True)}


def is_settled(step_us: Sequence[float], tolerance: float = 0.05) -> bool:
    """Return whether the two halves of a block agree; a block that drifts is not a measurement."""
    half = len(step_us) // 2
    if half < 2:
        return True
    first, second = np.median(step_us[:half]), np.median(step_us[-half:])
    return bool(abs(first - second) <= tolerance * max(first, second))
