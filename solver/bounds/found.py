"""What a search without OR-Tools comes back with."""

from __future__ import annotations

from dataclasses import dataclass

from solver.tables import Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What the search proved.

    Attributes:
        picked: best plan as table rows, None without one. value: its objective, infinite without one.
        bound: proven lower bound of the objective, infinite when proven infeasible.
        nodes: nodes looked at. interrupted: whether the user stopped it.
    """

    picked: Ints | None
    value: float
    bound: float
    nodes: int
    interrupted: bool
