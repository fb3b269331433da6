"""Group ids and ordinals of table rows, without loops."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kareus.trace.types import I64


def group_ids(*columns: NDArray[np.integer]) -> I64:
    """Return an id for each row, equal where all columns are equal: 0, 1, ... in no special order."""
    ids = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        ids = ids * len(values) + inverse
        ids = np.unique(ids, return_inverse=True)[1]
    return ids.astype(np.int64)


def ordinals(ids: I64) -> I64:
    """Return how many rows with the same id come before each row."""
    order = np.argsort(ids, kind="stable")
    ranked = ids[order]
    fresh = np.concatenate([[True], ranked[1:] != ranked[:-1]]) if len(ids) else np.zeros(0, bool)
    first = np.maximum.accumulate(np.where(fresh, np.arange(len(ids)), 0)) if len(ids) else ids
    result = np.empty(len(ids), np.int64)
    result[order] = np.arange(len(ids)) - first
    return result


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct values, ascending; np.unique first imports numpy.ma, which takes longer than a small file."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered
