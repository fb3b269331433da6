"""All plans of one clock level within reach of its bound, partial plan by partial plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.tables import Floats, Ints, Tables

MOST_LABELS = 60_000
_MOST_RUNGS = 62  # bits of a signed 64-bit number


@dataclass(frozen=True, kw_only=True, eq=False)
class Plans:
    """Complete plans, arrays of shape [plans].

    Attributes:
        time_us, dynamic_mj: their sums. governed: whether the governor would not run the next level up.
    """

    time_us: Ints
    dynamic_mj: Ints
    governed: NDArray[np.bool_]
    _chain: Ints
    _steps: tuple[_Layer, ...]

    def picked(self, plan: int) -> Ints:
        """Table row of each span, equal spans in the order of rows."""
        taken: dict[int, list[int]] = {}
        at = plan
        for layer in reversed(self._steps):
            taken.setdefault(layer.kind, []).append(int(layer.row[at]))
            at = int(layer.origin[at])
        picked = np.empty(len(self._chain), np.int64)
        for kind, rows in taken.items():
            picked[self._chain == kind] = sorted(rows)
        return picked


@dataclass(frozen=True, kw_only=True, eq=False)
class _Layer:
    """Partial plans after one more span of `kind`: sums are time (us), dynamic energy (mJ) and excess one
    level up (nJ); rungs are bits; above is the cost over the bound; origin and row say how each was made."""

    kind: int
    sums: Ints
    rungs: Ints
    memory: Ints
    above: Floats
    origin: Ints
    row: Ints


def plans_in_reach(
    tables: Tables, rows: Sequence[Ints], excess: Sequence[Ints], above: Floats, reach: float
) -> Plans | None:
    """Return every plan whose rows cost at most `reach` above the bound, None where they are too many.

    Plans that agree in all sums, rungs and memory are listed once. Ladders and memory limits hold.

    Args:
        tables: the tables. rows: table rows of each kind at this level.
        excess: energy above the power limit one level up of each of those rows, nJ.
        above: float64[kinds, rows], cost of each over its kind's cheapest. reach: in the same unit.
    """
    if tables.coupled and len(tables.rungs) > _MOST_RUNGS:
        return None
    zero = np.zeros(1, np.int64)
    now = _Layer(
        kind=-1,
        sums=np.zeros((1, 3), np.int64),
        rungs=zero,
        memory=zero,
        above=np.zeros(1),
        origin=zero,
        row=zero,
    )
    layers: list[_Layer] = []
    for kind, table in enumerate(tables.kinds):
        near = np.flatnonzero(above[kind, : len(rows[kind])] <= reach)
        offered = rows[kind][near]
        each = np.column_stack([table.time_us[offered], table.energy_mj[offered], excess[kind][near]])
        bits = np.array(
            [sum(1 << r for r in table.rungs[m]) if tables.coupled else 0 for m in offered], np.int64
        )
        for _ in range(table.count):
            if len(now.above) * len(offered) > 50 * MOST_LABELS:
                return None
            total = now.above[:, None] + above[kind, near][None, :]
            origin, pick = np.nonzero(total <= reach)
            grown = _Layer(
                kind=kind,
                sums=now.sums[origin] + each[pick],
                rungs=now.rungs[origin] | bits[pick],
                memory=np.maximum(now.memory[origin], table.memory_bytes[offered][pick]),
                above=total[origin, pick],
                origin=origin,
                row=offered[pick],
            )
            now = _kept(tables, grown)
            if len(now.above) > MOST_LABELS:
                return None
            layers.append(now)
    return Plans(
        time_us=now.sums[:, 0],
        dynamic_mj=now.sums[:, 1],
        governed=now.sums[:, 2] > -1_000_000,
        _chain=tables.chain,
        _steps=tuple(layers),
    )


def _kept(tables: Tables, layer: _Layer) -> _Layer:
    """One of each set of equal partial plans, and only those that ladders and memory have room for."""
    key = np.column_stack([layer.sums, layer.rungs, layer.memory])
    order = np.lexsort(key.T)
    new = np.ones(len(order), np.bool_)
    new[1:] = (key[order[1:]] != key[order[:-1]]).any(axis=1)
    keep = order[new]
    if tables.coupled:
        keep = keep[_fits(tables, layer.rungs[keep], layer.memory[keep])]
    return _Layer(
        kind=layer.kind,
        sums=layer.sums[keep],
        rungs=layer.rungs[keep],
        memory=layer.memory[keep],
        above=layer.above[keep],
        origin=layer.origin[keep],
        row=layer.row[keep],
    )


def _fits(tables: Tables, rungs: Ints, memory: Ints) -> NDArray[np.bool_]:
    problem = tables.problem
    used = np.zeros(len(rungs), np.int64)
    fits = np.ones(len(rungs), np.bool_)
    for ids in tables.rungs_of_key.values():
        here = sum(((rungs >> r) & 1 for r in ids), start=np.zeros(len(rungs), np.int64))
        fits &= here <= problem.max_rungs
        used += here
    if problem.limits.memory_bytes is not None:
        fits &= memory + problem.rung_memory_bytes * used <= problem.limits.memory_bytes
    return fits
