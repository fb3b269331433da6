"""What the decisions of a governed problem amount to at other clock levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from solver.check import decision_of, judge
from solver.problem import Problem
from solver.tables import Tables


def governor_twins(tables: Tables, high: int) -> dict[tuple[int, int], tuple[int, int] | None]:
    """(time_us, energy_mj) of the decision of each (kind, row) at level `high`, None where it has none."""
    twins: dict[tuple[int, int], tuple[int, int] | None] = {}
    for k, (kind, table) in enumerate(zip(sorted(set(tables.problem.chain)), tables.kinds, strict=True)):
        options = tables.problem.kinds[kind].options
        there = {
            decision_of(o): (o.time_us + o.carry_us, o.energy_mj)
            for o in reversed(options)
            if o.clock == high
        }
        for m, origin in enumerate(table.origin.tolist()):
            twins[k, m] = there.get(decision_of(options[origin]))
    return twins


def settled(problem: Problem, choices: Sequence[int]) -> tuple[int, ...]:
    """Return the same decisions at the clock level the governor runs them at.

    That is the highest level that offers them all within the power limit, or the lowest that offers them
    where none is within it. A problem that is not governed keeps its choices.

    Args:
        problem: the instance. choices: option index of each span.
    """
    if not problem.governed:
        return tuple(choices)
    free = replace(problem, governed=False, limits=replace(problem.limits, time_us=None, energy_mj=None))
    names = [decision_of(problem.kinds[k].options[m]) for k, m in zip(problem.chain, choices, strict=True)]
    lowest = tuple(choices)
    for level in range(len(problem.clocks_mhz) - 1, -1, -1):
        there = [
            {decision_of(o): m for m, o in reversed(list(enumerate(kind.options))) if o.clock == level}
            for kind in problem.kinds
        ]
        if not all(name in there[k] for k, name in zip(problem.chain, names, strict=True)):
            continue
        lowest = tuple(there[k][name] for k, name in zip(problem.chain, names, strict=True))
        if not judge(free, lowest).violations:
            return lowest
    return lowest
