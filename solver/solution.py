"""What solving returns: one point with its proof, or the whole frontier."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How much is known about a point."""

    OPTIMAL = "optimal"  # the bound meets the value within the stated gap, confirmed by a second method
    FEASIBLE = "feasible"  # a plan with a bound, the limit came first
    INFEASIBLE = "infeasible"  # proven: nothing meets the limits
    UNKNOWN = "unknown"  # nothing found before the limit
    HEURISTIC = "heuristic"  # a plan without any proof


class Objective(StrEnum):
    """What is made small."""

    ENERGY = "energy"
    TIME = "time"


@dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """One chosen option for every span of the chain.

    Attributes:
        status: see Status. objective: what was minimised.
        choices: option index (into the span's kind) for each span; empty without a plan.
        time_us, energy_mj: of the plan, re-judged by `solver.check`.
        bound: proven lower bound of the objective, in its unit (us or mJ). certificate: how it was proven.
        gap: (value - bound) / value, 0 where both are 0.
        switches: changes of clock. solve_s: wall time.
        reason: for infeasible limits, the least possible and the limit that binds.
        worst_time_us, worst_energy_mj: the plan under the 90 % upper figures of its options. A robust solve
            optimises and bounds these instead of time_us and energy_mj.
        changes: knobs that differ from stock, summed over the chain.
        interrupted: the user stopped the search (Ctrl-C); what is here was the best so far.
    """

    status: Status
    objective: Objective
    choices: tuple[int, ...] = ()
    time_us: int = 0
    energy_mj: int = 0
    bound: float = 0.0
    certificate: str = ""
    gap: float = 0.0
    switches: int = 0
    solve_s: float = 0.0
    reason: str = ""
    worst_time_us: int = 0
    worst_energy_mj: int = 0
    changes: int = 0
    interrupted: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Frontier:
    """The time-energy Pareto set, fastest first.

    Attributes:
        points: solutions, time ascending and energy descending.
        knee, least_energy: indices of marked points, -1 where there is none.
        stock_time_us, stock_energy_mj: the all-stock plan, whether or not it is on the frontier.
        reason: why there are no points. interrupted: the user stopped it. solve_s: wall time.
    """

    points: tuple[Solution, ...]
    knee: int = -1
    least_energy: int = -1
    stock_time_us: int = 0
    stock_energy_mj: int = 0
    reason: str = ""
    interrupted: bool = False
    solve_s: float = 0.0
