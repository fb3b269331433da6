"""What the decisions of a governed problem amount to at other clock levels."""

from __future__ import annotations

from solver.check import decision_of
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
