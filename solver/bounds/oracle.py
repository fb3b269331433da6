"""Cheapest paths: the clock and the option of every span at a given price of time, for many cases at once.

A case asks for the path that minimises `a * time + b * dynamic energy` among paths with a given number of
clock changes. A cyclic step returns to its first clock in a last stay that may be empty, so its changes are
those along the chain. States are (first clock, stay, clock); arrays run over cases first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.rungs import NONE, usable_rows
from solver.tables import Floats, Ints, Tables

Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Shape:
    """Which paths a case ranges over.

    Attributes:
        stays: stays at one clock along the chain (a cyclic step's last one returns to the first clock).
        open_end: whether more changes than `stays - 1` are allowed too.
        allowed: bool[stays, levels]. windows: int64[stays - 1, 2], first and last place of each change.
        banned: rungs that may not be used. required: rungs taken as used, which others must fit beside.
    """

    stays: int
    open_end: bool
    allowed: Bools
    windows: Ints
    banned: frozenset[int] = NONE
    required: frozenset[int] = NONE


@dataclass(frozen=True, kw_only=True, eq=False)
class Path:
    """One cheapest path.

    Attributes:
        a, b, value: the prices asked for and `a * time + b * energy`, infinite where the case has no path.
        time_us, dynamic_mj: of the path, switches included.
        cuts: places of changes (equal neighbours: an empty stay). levels: clock of each stay.
        rows: int64[kinds, levels], table row each kind takes at each level.
    """

    a: float
    b: float
    value: float
    time_us: float
    dynamic_mj: float
    cuts: tuple[int, ...]
    levels: tuple[int, ...]
    rows: Ints


class Oracle:
    """Path search over the tables of one problem.

    Args:
        tables: the problem. With free switches all options share one level, since order is irrelevant.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.levels = 1 if tables.free_switches else tables.num_clocks
        self.cyclic = tables.problem.cyclic and not tables.one_clock and not tables.free_switches
        self.switch_us = 0 if tables.one_clock else tables.problem.switch_time_us
        self.switch_mj = 0 if tables.one_clock else tables.problem.switch_energy_mj
        spans = len(tables.chain)
        self._passed = np.zeros((spans + 1, len(tables.kinds)), np.int64)
        np.add.at(self._passed, (np.arange(spans) + 1, tables.chain), 1)
        self._passed = self._passed.cumsum(axis=0)
        self._options: dict[tuple[frozenset[int], frozenset[int]], tuple[Floats, Floats, Ints]] = {}

    def options(self, banned: frozenset[int], required: frozenset[int]) -> tuple[Floats, Floats, Ints]:
        """float64[kinds, levels, most] times and energies (infinite where absent) and their table rows."""
        key = banned, required
        if key not in self._options:
            kinds = self.tables.kinds
            masks = usable_rows(self.tables, banned, required)
            level = [np.zeros_like(t.clock) if self.tables.free_switches else t.clock for t in kinds]
            groups = [
                [np.flatnonzero(mask & (at == f)) for f in range(self.levels)]
                for mask, at in zip(masks, level, strict=True)
            ]
            most = max(max(len(g) for g in group) for group in groups) or 1
            times = np.full((len(kinds), self.levels, most), np.inf)
            energies = np.full_like(times, np.inf)
            rows = np.zeros(times.shape, np.int64)
            for k, group in enumerate(groups):
                for f, members in enumerate(group):
                    times[k, f, : len(members)] = kinds[k].time_us[members]
                    energies[k, f, : len(members)] = kinds[k].energy_mj[members]
                    rows[k, f, : len(members)] = members
            self._options[key] = times, energies, rows
        return self._options[key]

    def cheapest(self, cases: list[tuple[Shape, float, float]], positions: Ints) -> list[Path]:
        """Return the cheapest path of each (shape, a, b); all shapes share stays, open_end and rungs.

        Args:
            cases: what to minimise over which paths.
            positions: int64[cuts] from `cut_positions`, covering the windows of every shape.
        """
        shape = cases[0][0]
        times, energies, option_rows = self.options(shape.banned, shape.required)
        a = np.array([c[1] for c in cases])[:, None, None, None]
        b = np.array([c[2] for c in cases])[:, None, None, None]
        with np.errstate(invalid="ignore"):
            cost = np.where(np.isinf(times), np.inf, a * times + b * energies)
        at = cost.argmin(axis=3)
        best = np.take_along_axis(cost, at[..., None], axis=3)[..., 0]
        grids = np.ix_(range(times.shape[0]), range(self.levels))
        time_of = times[grids[0], grids[1], at]
        energy_of = energies[grids[0], grids[1], at]
        rows = option_rows[grids[0], grids[1], at]
        switch = np.array([c[1] * self.switch_us + c[2] * self.switch_mj for c in cases])
        if shape.stays == 1 and not shape.open_end:
            cuts, levels, values = self._single(cases, best)
        else:
            cuts, levels, values = self._walk(cases, best, switch, positions)
        return [
            self._path(cases[i], values[i], cuts[i], levels[i], time_of[i], energy_of[i], rows[i])
            for i in range(len(cases))
        ]

    def _single(
        self, cases: list[tuple[Shape, float, float]], best: Floats
    ) -> tuple[list[list[int]], list[list[int]], Floats]:
        counts = self._passed[-1].astype(np.float64)
        with np.errstate(invalid="ignore"):
            total = np.einsum("k,bkc->bc", counts, best)
        total = np.where(np.stack([c[0].allowed[0] for c in cases]), total, np.inf)
        levels = total.argmin(axis=1)
        cuts: list[list[int]] = [[] for _ in cases]
        return cuts, [[int(f)] for f in levels], total[np.arange(len(cases)), levels]

    def _walk(
        self, cases: list[tuple[Shape, float, float]], best: Floats, switch: Floats, positions: Ints
    ) -> tuple[list[list[int]], list[list[int]], Floats]:
        """Forward pass over the cut positions, then back along the decisions taken."""
        num, levels, stays = len(cases), self.levels, cases[0][0].stays
        open_end = cases[0][0].open_end
        firsts = levels if self.cyclic else 1
        allowed = np.where(np.stack([c[0].allowed for c in cases]), 0.0, np.inf)
        windows = np.stack([c[0].windows for c in cases])
        state = np.full((num, firsts, stays, levels), np.inf)
        if self.cyclic:
            diagonal = np.arange(levels)
            state[:, diagonal, 0, diagonal] = 0.0
        else:
            state[:, 0, 0, :] = 0.0
        finite = np.where(np.isinf(best), 1e300, best)  # infinity times no spans is not a number
        edges = np.concatenate([[0], positions])
        steps = np.diff(self._passed[edges], axis=0).astype(np.float64)
        stretch = np.einsum("pk,bkc->pbc", steps, finite)
        taken: list[list[tuple[int, Bools, Ints]]] = []
        for p, place in enumerate(positions.tolist()):
            state = state + stretch[p][:, None, None, :] + allowed[:, None]
            moves: list[tuple[int, Bools, Ints]] = []
            last = place == len(self.tables.chain)
            if not last or self.cyclic:
                for stay in range(1, stays):
                    window = (windows[:, stay - 1, 0] <= place) & (place <= windows[:, stay - 1, 1])
                    if window.any():
                        source = state[:, :, stay - 1, :]
                        _move(state, source, stay, switch + np.where(window, 0.0, np.inf), moves)
                if open_end:
                    _move(state, state[:, :, stays - 1, :], stays - 1, switch, moves)
            taken.append(moves)
        final = state[:, :, stays - 1, :]
        if self.cyclic:
            closing = final[:, np.arange(levels), np.arange(levels)]
            first = closing.argmin(axis=1)
            level = first.copy()
            values = closing[np.arange(num), first]
        else:
            level = final[:, 0, :].argmin(axis=1)
            first = np.zeros(num, np.int64)
            values = final[np.arange(num), 0, level]
        values = np.where(values >= 1e299, np.inf, values)
        cuts, walk = _trace(taken, positions, first, level, stays, open_end)
        return cuts, walk, values

    def _path(
        self,
        case: tuple[Shape, float, float],
        value: float,
        cuts: list[int],
        levels: list[int],
        time_of: Floats,
        energy_of: Floats,
        rows: Ints,
    ) -> Path:
        if not np.isfinite(value):
            return Path(
                a=case[1],
                b=case[2],
                value=np.inf,
                time_us=np.inf,
                dynamic_mj=np.inf,
                cuts=(),
                levels=(),
                rows=rows,
            )
        places = [0, *(int(c) for c in cuts), len(self.tables.chain)]
        switches = len(levels) - 1
        time_us = float(switches * self.switch_us)
        dynamic = float(switches * self.switch_mj)
        for level, low, high in zip(levels, places[:-1], places[1:], strict=True):
            counts = self._passed[high] - self._passed[low]
            there = counts > 0
            time_us += float(counts[there] @ time_of[there, level])
            dynamic += float(counts[there] @ energy_of[there, level])
        return Path(
            a=case[1],
            b=case[2],
            value=float(value),
            time_us=time_us,
            dynamic_mj=dynamic,
            cuts=tuple(places[1:-1]),
            levels=tuple(int(x) for x in levels),
            rows=rows,
        )

    def level_of(self, path: Path) -> Ints:
        """Level of every span on a path."""
        level = np.empty(len(self.tables.chain), np.int64)
        places = [0, *path.cuts, len(level)]
        for f, low, high in zip(path.levels, places[:-1], places[1:], strict=True):
            level[low:high] = f
        return level

    def picked(self, path: Path) -> Ints:
        """Table row of every span on a path."""
        rows: Ints = path.rows[self.tables.chain, self.level_of(path)]
        return rows

    def picked_within(self, path: Path, banned: frozenset[int], required: frozenset[int]) -> Ints | None:
        """The path with its options chosen anew among those a rung set leaves, None where one has none."""
        times, energies, option_rows = self.options(banned, required)
        with np.errstate(invalid="ignore"):
            cost = np.where(np.isinf(times), np.inf, path.a * times + path.b * energies)
        at = cost.argmin(axis=2)
        level = self.level_of(path)
        spans = self.tables.chain
        if np.isinf(np.take_along_axis(cost, at[..., None], axis=2)[spans, level, 0]).any():
            return None
        rows: Ints = np.take_along_axis(option_rows, at[..., None], axis=2)[spans, level, 0]
        return rows


def _move(
    state: Floats, source: Floats, stay: int, price: Floats, moves: list[tuple[int, Bools, Ints]]
) -> None:
    """Enter `stay` from `source` at another level wherever that is cheaper than being there already."""
    num, firsts, levels = source.shape
    if levels < 2:
        return
    flat = source.reshape(num * firsts, levels)
    every = np.arange(len(flat))
    best = flat.argmin(axis=1)
    low = flat[every, best]
    other = flat.copy()
    other[every, best] = np.inf
    second = other.argmin(axis=1)
    entry = np.repeat(low[:, None], levels, axis=1)
    entry[every, best] = other[every, second]
    origin = np.repeat(best[:, None], levels, axis=1)
    origin[every, best] = second
    entry = entry.reshape(source.shape) + price[:, None, None]
    better = entry < state[:, :, stay, :]
    moves.append((stay, better, origin.reshape(source.shape)))
    state[:, :, stay, :] = np.where(better, entry, state[:, :, stay, :])


def _trace(
    taken: list[list[tuple[int, Bools, Ints]]],
    positions: Ints,
    first: Ints,
    level: Ints,
    stays: int,
    open_end: bool,
) -> tuple[list[list[int]], list[list[int]]]:
    all_cuts: list[list[int]] = []
    all_levels: list[list[int]] = []
    for i, (f, c) in enumerate(zip(first.tolist(), level.tolist(), strict=True)):
        stay = stays - 1
        cuts: list[int] = []
        levels = [c]
        inner = open_end  # the move inside the last stay is the last entry of a place
        for p in range(len(positions) - 1, -1, -1):
            for index in range(len(taken[p]) - 1, -1, -1):
                target, better, origin = taken[p][index]
                within = inner and index == len(taken[p]) - 1
                if target == stay and better[i, f, c]:
                    c = int(origin[i, f, c])
                    cuts.append(int(positions[p]))
                    levels.append(c)
                    if not within:
                        stay -= 1
        all_cuts.append(cuts[::-1])
        all_levels.append(levels[::-1])
    return all_cuts, all_levels
