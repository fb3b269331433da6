"""Where a second clock may sit: runs of neighbouring spans, told apart only by how many of each kind they hold.

A plan of two clocks with as few changes as possible runs one of them in an arc (a suffix, where the step does
not repeat) and the other in the rest. Arcs that hold the same numbers of equal spans cost the same at any
choice of options, which is why a search that shifts an arc along the layers never ends and this list does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.tables import Ints, Tables

_MOST_SPANS = 400  # some 80,000 arcs


@dataclass(frozen=True, kw_only=True, eq=False)
class Arcs:
    """Distinct arcs.

    Attributes:
        counts: int64[arcs, kinds], spans of each kind inside. start, end: int64[arcs], one such place.
    """

    counts: Ints
    start: Ints
    end: Ints


def arcs_of(tables: Tables) -> Arcs | None:
    """Return every arc that leaves the first span outside, None where the chain is too long to list them."""
    spans = len(tables.chain)
    if spans > _MOST_SPANS:
        return None
    passed = np.zeros((spans + 1, len(tables.kinds)), np.int64)
    np.add.at(passed, (np.arange(spans) + 1, tables.chain), 1)
    passed = passed.cumsum(axis=0)
    if tables.problem.cyclic:
        start, end = (x.astype(np.int64) for x in np.triu_indices(spans + 1, k=1))
        start, end = start[start > 0], end[start > 0]
    else:
        start = np.arange(1, spans, dtype=np.int64)
        end = np.full_like(start, spans)
    counts, first = np.unique(passed[end] - passed[start], axis=0, return_index=True)
    return Arcs(counts=counts, start=start[first], end=end[first])
