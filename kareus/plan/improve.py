"""Local search on the whole simulated step: what planning span by span has left on the table.

The solver's tables price each span alone. Here one kind of span at a time gets a neighbouring setting
(budget one rung up or down, launch point one place earlier or later, serialised or not, stock), the step is
simulated kernel by kernel, and what improves on the goal is kept. The gain is a measure of what the
decomposition loses; among plans the simulator cannot tell apart, the one that changes least wins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from kareus.errors import InputError
from kareus.model.simulate import Simulation, simulate
from kareus.plan.lower import decisions_of
from kareus.plan.options import FULL_PRODUCT_COLLECTIVES, OptionTable
from kareus.plan.problem import StepProblem
from kareus.plan.repair import without_launch
from kareus.schedule import CollectiveKey, Schedule

WITHIN_NOISE = 1e-3  # relative: plans this close are not told apart, neither by model nor by measurement
MOST_EVALUATIONS = 120
_MOST_OPS = 60_000  # ops simulated in all: some two seconds

Score = tuple[float, float]  # (by how much a limit is passed, what is made small), both less is better


@dataclass(frozen=True, kw_only=True, slots=True)
class Improved:
    """What the local search found.

    Attributes:
        schedule, simulation: the chosen plan. finalists: other plans within noise of the best, best first.
        start, best: scores of the plan it began with and of the best one seen.
        evaluations: steps simulated. moves: steps taken.
    """

    schedule: Schedule
    simulation: Simulation
    finalists: tuple[Schedule, ...]
    start: Score
    best: Score
    evaluations: int
    moves: int

    @property
    def gain(self) -> float:
        """Relative improvement of the goal over the plan it began with; 0 where limits were not met."""
        if self.start[0] > 0 or not self.start[1]:
            return 0.0
        return max(1 - self.best[1] / self.start[1], 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    rows: tuple[int, ...]
    schedule: Schedule
    simulation: Simulation
    score: Score


def improve(
    step: StepProblem,
    choices: tuple[int, ...],
    schedule: Schedule,
    score: Callable[[Schedule, Simulation], Score],
    *,
    unlaunched: Collection[CollectiveKey] = (),
    allowed: Callable[[tuple[int, ...]], bool] | None = None,
    max_evaluations: int = MOST_EVALUATIONS,
    num_finalists: int = 3,
) -> Improved:
    """Improve a plan by simulating neighbours of it.

    Args:
        step: the problem. choices: option of each span; clocks stay as they are.
        schedule: the plan lowered. score: judges a schedule and its simulated step.
        allowed: whether a neighbour (its setting of each span) may be considered, None for all.
        unlaunched: collectives that start as recorded whatever their setting says, see `repair`.
        max_evaluations: steps simulated at most; fewer for steps of many ops.
        num_finalists: plans kept for measuring beside the chosen one.

    Raises:
        InputError: the plan itself cannot be played (a circle of waits).
    """
    chain = step.problem.chain
    rows = tuple(int(step.tables[k].row[c]) for k, c in zip(chain, choices, strict=True))
    seen: dict[tuple[int, ...], _Seen | None] = {}

    def look(at: tuple[int, ...]) -> _Seen | None:
        if at not in seen:
            decisions = [
                without_launch(d) if d.collective in unlaunched else d for d in decisions_of(step, at)
            ]
            changed = msgspec.structs.replace(
                schedule, decisions=tuple(d for d in decisions if not d.is_stock)
            )
            try:
                simulation = simulate([step.graph], changed, step.cost)
            except InputError:  # launch points that wait for each other in a circle
                seen[at] = None
            else:
                seen[at] = _Seen(
                    rows=at, schedule=changed, simulation=simulation, score=score(changed, simulation)
                )
        return seen[at]

    most = max(min(max_evaluations, _MOST_OPS // max(len(step.graph.ops), 1)), 1)
    start = look(rows)
    if start is None:
        raise InputError("expected a plan that can be played from start to end, found a circle of waits")
    best = start
    moves = 0
    moving = True
    while moving:
        moving = False
        for at in _neighbours(step, best.rows):
            if len(seen) >= most:
                break
            if allowed is not None and not allowed(at):
                continue
            found = look(at)
            if found is not None and found.score < best.score:
                best, moves, moving = found, moves + 1, True
                break
    near = [s for s in seen.values() if s is not None and _near(s.score, best.score)]
    near.sort(key=lambda s: (len(s.schedule.decisions), s.score))
    chosen = near[0]
    others = sorted((s for s in near if s is not chosen), key=lambda s: s.score)[:num_finalists]
    return Improved(
        schedule=chosen.schedule,
        simulation=chosen.simulation,
        finalists=tuple(s.schedule for s in others),
        start=start.score,
        best=best.score,
        evaluations=len(seen),
        moves=moves,
    )


def _near(score: Score, best: Score) -> bool:
    return score[0] <= best[0] and score[1] <= best[1] * (1 + WITHIN_NOISE)


def _neighbours(step: StepProblem, rows: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Plans in which all spans of one kind that share a setting take a neighbouring one."""
    chain = step.problem.chain
    for kind, table in enumerate(step.tables):
        for now in sorted({row for k, row in zip(chain, rows, strict=True) if k == kind}):
            for other in _next_settings(table, now):
                after = tuple(
                    other if k == kind and row == now else row for k, row in zip(chain, rows, strict=True)
                )
                if _ladders_fit(step, after):
                    yield after


def _next_settings(table: OptionTable, row: int) -> list[int]:
    """Stock first, then settings one rung or one launch point away, then serialised.

    Where all collectives of a kind share one budget, they move together.
    """
    settings = table.settings
    ranks = np.hstack([_ranks(settings.num_ctas), _ranks(settings.position)])
    away = np.abs(ranks - ranks[row])
    together = settings.num_ctas.shape[1] > FULL_PRODUCT_COLLECTIVES
    steps = away.max(axis=1, initial=0) if together else away.sum(axis=1)
    found = np.flatnonzero((steps == 1) & ~settings.serialise).tolist()
    order = [table.stock_row, *found, table.serial_row]
    return [other for i, other in enumerate(order) if other != row and other not in order[:i]]


def _ranks(values: np.ndarray) -> np.ndarray:
    """Place of each value among the distinct values of its column."""
    ranks = np.empty_like(values)
    for column in range(values.shape[1]):
        ranks[:, column] = np.unique(values[:, column], return_inverse=True)[1]
    return ranks


def _ladders_fit(step: StepProblem, rows: tuple[int, ...]) -> bool:
    rungs = {r for k, row in zip(step.problem.chain, rows, strict=True) for r in step.tables[k].rungs(row)}
    ladders = [key for key, _ in rungs]
    return all(ladders.count(key) <= step.problem.max_rungs for key in set(ladders))
