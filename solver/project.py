"""Multi-mode project scheduling: operations with modes, precedence, and shared resources in time.

The op-level model of a step: an operation is a kernel or a collective, a mode is an SM budget or a clock, a
renewable resource is what running operations share (SMs, a link, a stream), a non-renewable one is what they
use up (an energy budget). It does not scale to whole steps; it is exact on small graphs, where it measures
what the decomposition into spans loses, and it is checked against published optima.
"""

from __future__ import annotations

from dataclasses import dataclass

from solver.solution import Status


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """One way to run an operation.

    Attributes:
        duration: integer ticks. renewable: demand on each renewable resource while it runs.
        consumed: total demand on each non-renewable resource.
    """

    duration: int
    renewable: tuple[int, ...] = ()
    consumed: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """An operation with at least one mode, and the operations that wait for its end."""

    name: str
    modes: tuple[Mode, ...]
    successors: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """Operations and the capacities they share; the makespan is to be made small."""

    operations: tuple[Operation, ...]
    renewable: tuple[int, ...] = ()
    consumable: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectSolution:
    """A schedule: start and mode of each operation, its makespan and the proven bound, in ticks."""

    status: Status
    starts: tuple[int, ...] = ()
    modes: tuple[int, ...] = ()
    makespan: int = 0
    bound: int = 0


def project_violations(project: Project, starts: tuple[int, ...], modes: tuple[int, ...]) -> list[str]:
    """What a schedule breaks, by plain simulation over time; empty for a valid one."""
    broken = []
    chosen = [op.modes[m] for op, m in zip(project.operations, modes, strict=True)]
    for i, op in enumerate(project.operations):
        end = starts[i] + chosen[i].duration
        broken += [
            f"{project.operations[s].name} starts at {starts[s]}, before {op.name} ends at {end}"
            for s in op.successors
            if starts[s] < end
        ]
    for r, capacity in enumerate(project.renewable):
        for at in sorted(set(starts)):
            running = [
                mode.renewable[r]
                for start, mode in zip(starts, chosen, strict=True)
                if start <= at < start + mode.duration
            ]
            if sum(running) > capacity:
                broken.append(f"resource {r}: {sum(running)} of {capacity} in use at {at}")
    for c, capacity in enumerate(project.consumable):
        used = sum(mode.consumed[c] for mode in chosen)
        if used > capacity:
            broken.append(f"consumable {c}: {used} of {capacity} used")
    return broken


def solve_project(
    project: Project, *, time_limit_s: float = 10.0, seed: int = 0, num_workers: int = 8
) -> ProjectSolution:
    """Return the shortest schedule found with its bound, checked by `project_violations`.

    Args:
        project: the instance. time_limit_s: wall time of the search, and again of confirming its result. seed: random seed.
        num_workers: CP-SAT workers; its portfolio needs eight to be complete, even on fewer cores.

    Raises:
        ImportError: OR-Tools is not installed. ContradictionError: the schedule breaks a rule.
    """
    from solver.cpsat.project import run_project

    return run_project(project, time_limit_s=time_limit_s, seed=seed, num_workers=num_workers)
