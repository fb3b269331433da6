"""Positions of the chain where the clock of a cheapest path may change.

At a fixed price of time the cost of a path is linear in the place of a change inside a stretch that repeats
one unit of spans. So changes may be shifted by whole units, together where they lie within a unit of each
other, until they come near an end of the stretch, or of a window that a search imposes: some cheapest path of m
changes has all of them within m units of such ends. Looking there alone makes the path search independent of
the number of layers.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from solver.tables import Ints

_LONGEST_UNIT = 8


def repeats(chain: Ints) -> list[tuple[int, int, int]]:
    """Cut the chain into (start, end, period) stretches; period 0 where nothing repeats three times."""
    spans = len(chain)
    found: list[tuple[int, int, int]] = []
    at = 0
    while at < spans:
        best_end, best_period = at + 1, 0
        for period in range(1, min(_LONGEST_UNIT, (spans - at) // 3) + 1):
            end = at + period
            while end < spans and chain[end] == chain[end - period]:
                end += 1
            if end - at >= 3 * period and end > best_end:
                best_end, best_period = end, period
        found.append((at, best_end, best_period))
        at = best_end
    return found


def cut_positions(
    spans: int, stretches: list[tuple[int, int, int]], changes: int, windows: Iterable[int] = ()
) -> Ints:
    """Return int64[cuts], ascending, from 1 to the number of spans, where a change of clock is worth trying.

    Args:
        spans: length of the chain. stretches: of the chain, from `repeats`.
        changes: of clock along the chain, at most.
        windows: ends of windows a cut is confined to.
    """
    places: set[int] = {spans}
    extra = [w for w in windows if 0 < w <= spans]
    for start, end, period in stretches:
        if not period:
            places.update(range(start, end + 1))
            continue
        for edge in (start, end, *(w for w in extra if start <= w <= end)):
            near = max(changes, 1) * period
            places.update(range(max(edge - near, start), min(edge + near, end) + 1))
    return np.array(sorted(p for p in places if 1 <= p <= spans), np.int64)
