"""Prefix sums of a span's ops for each set of collectives that run beside them, searchable all at once."""

from __future__ import annotations

import numpy as np

from kareus.trace.types import F64, I64

_EPS = 1e-9


class PrefixSums:
    """Prefix sums over ops for each set of running collectives met so far, one row per (clock, set).

    `time` has rows of m + 1, `moved` a row for each (row, level), `alone` is float[rows, levels].
    """

    def __init__(self, levels: int) -> None:
        self.row_of: dict[int, int] = {}
        self.levels = levels
        self._time: list[F64] = []
        self._moved: list[F64] = []
        self._alone: list[F64] = []
        self.size = 0
        empty = Stacked(np.zeros((1, 1)))
        self.time, self.moved, self.alone = empty, empty, np.zeros((0, levels))

    def add(self, code: int, time: F64, moved: F64, alone: F64) -> None:
        """Add the row of a set of collectives."""
        self.row_of[code] = len(self._time)
        self._time.append(time)
        self._moved.append(moved)
        self._alone.append(alone)

    def freeze(self) -> None:
        """Make the rows searchable; a no-op while none were added."""
        if self.size != len(self._time):
            self.size = len(self._time)
            self.time = Stacked(np.stack(self._time))
            self.moved = Stacked(np.concatenate(self._moved) if self.levels else np.zeros((1, 1)))
            self.alone = np.stack(self._alone)


class Stacked:
    """Piecewise linear functions on 0..m given at the integers, searched together.

    Rows are laid end to end, each lifted above the one before, so that one sorted search serves all.
    """

    def __init__(self, values: F64) -> None:
        self.values = values
        self.width = values.shape[1]
        self.lift = np.concatenate([[0.0], np.cumsum(values[:, -1] + 1.0)[:-1]])
        self.flat = (values + self.lift[:, None]).ravel()

    def last(self, row: I64) -> F64:
        """Value at m."""
        return np.asarray(self.values[row, -1])

    def at(self, row: I64, position: F64) -> F64:
        """Value at a real position."""
        index = np.minimum(position.astype(np.int64), self.width - 1)
        base = row * self.width + index
        low = self.values.ravel()[base]
        high = self.values.ravel()[np.minimum(base + 1, row * self.width + self.width - 1)]
        return np.asarray(low + (high - low) * (position - index))

    def find(self, row: I64, value: F64) -> F64:
        """Real position at which a row first reaches a value; m where it never does."""
        wanted = np.minimum(value, self.values[row, -1]) + self.lift[row]
        index = np.searchsorted(self.flat, wanted, side="left") - row * self.width
        index = np.clip(index, 1, max(self.width - 1, 1))
        if self.width == 1:
            return np.zeros(len(row))
        base = row * self.width + index
        low, high = self.flat[base - 1], self.flat[base]
        share = np.clip((wanted - low) / np.maximum(high - low, _EPS), 0.0, 1.0)
        return np.asarray(index - 1 + share)
