"""The time-energy trade-off of a DAG: which option every node runs so that a deadline is met cheaply.

Pipeline schedules are such DAGs: a node is one forward or backward of one micro-batch on one stage, an edge
is a dependency or the order on a stage. Different nodes run at the same time on different devices, so the
makespan is the longest path, and static power (of all devices together) is paid over it.

    minimise   sum_v energy[v, option(v)] + static_power * makespan
    subject to start[w] >= start[v] + time[v, option(v)]   for every edge (v, w)
               makespan <= deadline

Choosing options is NP-complete even for one clock per node; its linear relaxation is the schedule that may
change option in the middle of a node (Aupy, Benoit, Dufosse, Robert, arXiv 1204.0939), which is what
`DagSolution.bound_mj` comes from.
"""

from __future__ import annotations

from dataclasses import dataclass

from solver.solution import Status


@dataclass(frozen=True, kw_only=True, slots=True)
class DagOption:
    """One way to run a node: integer microseconds and integer millijoules (may be negative after a caller
    has subtracted idle power)."""

    time_us: int
    energy_mj: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DagNode:
    """A node and its options, at least one."""

    name: str
    options: tuple[DagOption, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DagProblem:
    """A DAG of nodes.

    Attributes:
        nodes: in any order. edges: (predecessor, successor) as node indices; no cycles.
        static_power_mw: of all devices together, paid over the makespan.
    """

    nodes: tuple[DagNode, ...]
    edges: tuple[tuple[int, int], ...]
    static_power_mw: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class DagSolution:
    """One option for every node.

    Attributes:
        choices: option index of each node; empty when infeasible.
        time_us: makespan. energy_mj: total with static power over the makespan, rounded up.
        bound_mj: proven lower bound of the energy at this deadline.
        gap: (energy_mj - bound_mj) / energy_mj.
        status: OPTIMAL (gap at most 1e-3), FEASIBLE, INFEASIBLE or HEURISTIC (no linear programme at hand).
        deadline_us: the limit this point was made for, 0 without one. solve_s: wall time.
    """

    choices: tuple[int, ...]
    time_us: int
    energy_mj: int
    bound_mj: float
    gap: float
    status: Status
    deadline_us: int = 0
    solve_s: float = 0.0
