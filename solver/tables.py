"""The problem as arrays, without the options that cannot be part of any best plan.

Every model and every bound works on these tables; plans go back to the caller's option indices through
`origin`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from solver.problem import Option, Problem

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class KindTable:
    """Options of one kind that survived, all arrays of shape [options].

    Attributes:
        count: spans of this kind in the chain.
        time_us: with carried communication, which is charged in full. energy_mj: dynamic.
        clock, memory_bytes, changes: as in Option. origin: index into the kind's options.
        rungs: ids (into Tables.rungs) each option needs.
    """

    count: int
    time_us: Ints
    energy_mj: Ints
    clock: Ints
    memory_bytes: Ints
    changes: Ints
    origin: Ints
    rungs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Tables:
    """A problem as arrays.

    Attributes:
        problem: what it was made from (worst-case figures already swapped in for a robust solve).
        kinds: one table for each kind that occurs in the chain. chain: int64[spans], index into `kinds`.
        rungs: (ladder key, budget) of each rung id. static_mj_per_us: static power as a float.
    """

    problem: Problem
    kinds: tuple[KindTable, ...]
    chain: Ints
    rungs: tuple[tuple[str, int], ...]

    @property
    def static_mj_per_us(self) -> float:
        """Static energy of one microsecond, in millijoules."""
        return self.problem.static_power_mw * 1e-6

    @property
    def num_clocks(self) -> int:
        """Number of clock levels."""
        return len(self.problem.clocks_mhz)

    @property
    def one_clock(self) -> bool:
        """Whether the whole step runs at one clock."""
        return self.problem.uniform_clock or self.problem.governed or self.num_clocks == 1

    @property
    def free_switches(self) -> bool:
        """Whether clocks may change anywhere at no cost, so that the order of spans does not matter."""
        p = self.problem
        return not (self.one_clock or p.switch_time_us or p.switch_energy_mj or p.min_dwell_us)

    @cached_property
    def rungs_of_key(self) -> dict[str, list[int]]:
        """Rung ids of each ladder key."""
        groups: dict[str, list[int]] = {}
        for i, (key, _) in enumerate(self.rungs):
            groups.setdefault(key, []).append(i)
        return groups

    @property
    def coupled(self) -> bool:
        """Whether choices are tied together by rungs or by memory beyond what single options need."""
        limit = self.problem.limits.memory_bytes
        tight = any(len(ids) > self.problem.max_rungs for ids in self.rungs_of_key.values())
        return tight or (limit is not None and self.problem.rung_memory_bytes > 0 and len(self.rungs) > 0)

    def choices(self, picked: Sequence[int]) -> tuple[int, ...]:
        """Option indices of the caller for table rows picked for each span."""
        return tuple(int(self.kinds[k].origin[m]) for k, m in zip(self.chain, picked, strict=True))


def worst_case(problem: Problem) -> Problem:
    """The problem with every option at its 90 % upper figures (nominal where none is given)."""

    def worst(o: Option) -> Option:
        return replace(
            o,
            time_us=max(o.time_us, o.worst_time_us),
            energy_mj=max(o.energy_mj, o.worst_energy_mj),
        )

    kinds = tuple(replace(k, options=tuple(worst(o) for o in k.options)) for k in problem.kinds)
    return replace(problem, kinds=kinds)


def build_tables(problem: Problem) -> Tables | None:
    """Return the tables, or None when a span has no option left within the memory limit.

    Options go when they alone exceed the memory limit or when another option at the same clock is at least
    as good in everything a limit or the tie-break could ask for. A governed clock and a dwell reward slower
    options, so there nothing is dropped for being slow.
    """
    problem = _without_idle_dwell(problem)
    rungs = tuple(sorted({r for kind in problem.kinds for o in kind.options for r in o.rungs}))
    rung_id = {r: i for i, r in enumerate(rungs)}
    used = sorted(set(problem.chain))
    kinds = []
    for k in used:
        rows = [
            m
            for m, o in enumerate(problem.kinds[k].options)
            if problem.limits.memory_bytes is None
            or o.memory_bytes + problem.rung_memory_bytes * len(set(o.rungs)) <= problem.limits.memory_bytes
        ]
        rows = _undominated(problem, k, rows)
        if not rows:
            return None
        options = [problem.kinds[k].options[m] for m in rows]
        kinds.append(
            KindTable(
                count=problem.chain.count(k),
                time_us=np.array([o.time_us + o.carry_us for o in options], np.int64),
                energy_mj=np.array([o.energy_mj for o in options], np.int64),
                clock=np.array([o.clock for o in options], np.int64),
                memory_bytes=np.array([o.memory_bytes for o in options], np.int64),
                changes=np.array([o.changes for o in options], np.int64),
                origin=np.array(rows, np.int64),
                rungs=tuple(tuple(sorted({rung_id[r] for r in o.rungs})) for o in options),
            )
        )
    place = {k: i for i, k in enumerate(used)}
    chain = np.array([place[k] for k in problem.chain], np.int64)
    return Tables(problem=problem, kinds=tuple(kinds), chain=chain, rungs=rungs)


def _without_idle_dwell(problem: Problem) -> Problem:
    """The same problem at one clock where a cyclic step is too short for two stays of the minimum dwell."""
    if not (problem.min_dwell_us and problem.cyclic):
        return problem
    longest = [max(o.time_us + o.carry_us for o in kind.options) for kind in problem.kinds]
    if sum(longest[k] for k in problem.chain) >= 2 * problem.min_dwell_us:
        return problem
    return replace(problem, uniform_clock=True, min_dwell_us=0)


def _undominated(problem: Problem, kind: int, rows: list[int]) -> list[int]:
    if problem.governed or problem.min_dwell_us:
        return rows
    options = problem.kinds[kind].options
    cap = problem.limits.average_power_mw
    limited = problem.limits.memory_bytes is not None
    figures = np.array([_figures(options[m], problem.static_power_mw, cap, limited) for m in rows], np.int64)
    kept: list[int] = []
    for i in np.lexsort(figures.T[::-1]) if rows else []:
        a = options[rows[i]]
        if not any(
            options[rows[j]].clock == a.clock
            and (figures[j] <= figures[i]).all()
            and set(options[rows[j]].rungs) <= set(a.rungs)
            for j in kept
        ):
            kept.append(int(i))
    return sorted(rows[i] for i in kept)


def _figures(option: Option, static_mw: int, cap_mw: int | None, memory_limited: bool) -> list[int]:
    """What an option is judged by, less is better; under a power limit time has a value of its own, and memory
    counts only where it is limited."""
    time_us = option.time_us + option.carry_us
    figures = [time_us, option.energy_mj, option.changes]
    if memory_limited:
        figures.append(option.memory_bytes)
    if cap_mw is not None:
        figures.append(option.energy_mj * 1_000_000 - (cap_mw - static_mw) * time_us)
    return figures


def restrict(tables: Tables, masks: Sequence[NDArray[np.bool_]]) -> Tables | None:
    """The tables with only the rows of each kind's mask, or None when a kind has none left."""
    if not all(mask.any() for mask in masks):
        return None
    kinds = []
    for table, mask in zip(tables.kinds, masks, strict=True):
        rows = np.flatnonzero(mask)
        kinds.append(
            KindTable(
                count=table.count,
                time_us=table.time_us[rows],
                energy_mj=table.energy_mj[rows],
                clock=table.clock[rows],
                memory_bytes=table.memory_bytes[rows],
                changes=table.changes[rows],
                origin=table.origin[rows],
                rungs=tuple(table.rungs[int(m)] for m in rows),
            )
        )
    return replace(tables, kinds=tuple(kinds))
