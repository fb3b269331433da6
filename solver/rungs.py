"""Budgets of the collectives' ladders: what a plan uses, what may be kept, which options that leaves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from solver.tables import Ints, Tables

Bools = NDArray[np.bool_]
NONE: frozenset[int] = frozenset()


def rung_uses(tables: Tables, picked: Ints) -> Ints:
    """int64[rungs]: spans of a plan that need each rung."""
    uses = np.zeros(len(tables.rungs), np.int64)
    for k, table in enumerate(tables.kinds):
        rows, counts = np.unique(picked[tables.chain == k], return_counts=True)
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            for r in table.rungs[row]:
                uses[r] += count
    return uses


def heaviest_bytes(tables: Tables, picked: Ints) -> int:
    """Memory of the heaviest option of a plan."""
    return max(int(tables.kinds[k].memory_bytes[m]) for k, m in zip(tables.chain, picked, strict=True))


def rungs_fit(tables: Tables, uses: Ints, heaviest: int) -> bool:
    """Whether ladders and memory have room for the rungs used beside the heaviest option."""
    problem = tables.problem
    if any((uses[ids] > 0).sum() > problem.max_rungs for ids in tables.rungs_of_key.values()):
        return False
    limit = problem.limits.memory_bytes
    return limit is None or heaviest + problem.rung_memory_bytes * int((uses > 0).sum()) <= limit


def within_rungs(tables: Tables, picked: Ints) -> bool:
    """Whether a plan keeps to the ladders and to the memory limit."""
    return rungs_fit(tables, rung_uses(tables, picked), heaviest_bytes(tables, picked))


def kept_rungs(tables: Tables, uses: Ints, heaviest: int) -> frozenset[int]:
    """The most used rungs that ladders and memory have room for."""
    problem = tables.problem
    keep: list[int] = []
    for ids in tables.rungs_of_key.values():
        keep += sorted(ids, key=lambda r: (-int(uses[r]), r))[: problem.max_rungs]
    limit = problem.limits.memory_bytes
    if limit is not None and problem.rung_memory_bytes:
        room = max((limit - heaviest) // problem.rung_memory_bytes, 0)
        keep = sorted(keep, key=lambda r: (-int(uses[r]), r))[:room]
    return frozenset(keep)


def banned_rungs(tables: Tables, banned: frozenset[int], required: frozenset[int]) -> frozenset[int]:
    """`banned` and every rung that no longer fits beside the required ones."""
    problem = tables.problem
    out = set(banned)
    for ids in tables.rungs_of_key.values():
        if len(required.intersection(ids)) >= problem.max_rungs:
            out.update(set(ids) - required)
    limit = problem.limits.memory_bytes
    if limit is not None and problem.rung_memory_bytes * (len(required) + 1) > limit:
        out.update(set(range(len(tables.rungs))) - required)
    return frozenset(out)


def usable_rows(tables: Tables, banned: frozenset[int], required: frozenset[int] = NONE) -> list[Bools]:
    """bool[options] of each kind: rows without banned rungs that fit in memory beside the required ones."""
    limit = tables.problem.limits.memory_bytes
    each = tables.problem.rung_memory_bytes
    masks = []
    for table in tables.kinds:
        mask = np.array([not banned.intersection(r) for r in table.rungs], np.bool_)
        if limit is not None and required:
            rungs = np.array([len(required.union(r)) for r in table.rungs], np.int64)
            mask &= table.memory_bytes + each * rungs <= limit
        masks.append(mask)
    return masks
