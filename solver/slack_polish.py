"""Narrow the gaps of a frontier where they are widest: local search, and exact solves of small graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from solver.slack_exchange import exchange_steps
from solver.slack_search import SearchSpace, search_plans

if TYPE_CHECKING:
    from solver.slack import SlackFrontier, SlackProblem

SEARCH_WORK = 1.2e7  # operations x plans x rounds of local search: some 3 s of CPU time
_SEARCH_PASSES = 6
_SEARCHED = 300  # deadlines searched in one pass, those of the largest gap
_EXCHANGE_ROUNDS = 4  # of exchanges after each pass, on graphs of up to so many operations:
_EXCHANGE_SIZE = 500
_SATISFIED = 5e-4  # gap below which a deadline is not searched
_EXACT_SIZE = 40  # operations up to which single deadlines are solved exactly
_EXACT_SOLVES = 40
_EXACT_GAP = 3e-3  # gap below which nothing is solved exactly
_EXACT_EFFORT = 0.2  # CP-SAT's deterministic seconds of one exact solve, and of all together:
_EXACT_TOTAL = 1.5


def polished(
    frontier: SlackFrontier, problem: SlackProblem, space: SearchSpace, search_work: float
) -> SlackFrontier:
    """Return the frontier with better plans and, on small graphs, further proofs.

    Args:
        frontier: from rounding. problem, space: what it is of.
        search_work: operations x plans x rounds of local search; 0 leaves search and exact solves out.
    """
    if search_work <= 0:
        return frontier
    for seed in range(_SEARCH_PASSES):
        frontier = _searched(frontier, space, search_work / _SEARCH_PASSES, seed)
    return _solved_exactly(frontier, problem, space) if space.graph.size <= _EXACT_SIZE else frontier


def _searched(frontier: SlackFrontier, space: SearchSpace, work: float, seed: int) -> SlackFrontier:
    """Search the deadlines of the largest gaps."""
    gaps = frontier.gaps()
    worst = np.sort(np.argsort(-gaps, kind="stable")[:_SEARCHED])
    worst = worst[gaps[worst] > _SATISFIED]
    if not len(worst):
        return frontier
    deadline = frontier.answered_until_us()[worst]
    found = search_plans(space, deadline, frontier.choices[worst].T, work=work, seed=seed)
    if space.graph.size <= _EXCHANGE_SIZE:
        found = exchange_steps(space, found, deadline, rounds=_EXCHANGE_ROUNDS)
    return frontier.with_plans((space.makespan(found), space.energy(found), found.T))


def _solved_exactly(frontier: SlackFrontier, problem: SlackProblem, space: SearchSpace) -> SlackFrontier:
    """Solve the loosest deadlines one after the other; each proof holds for all shorter deadlines too."""
    from solver.cpsat.slack_exact import best_within  # OR-Tools only when it is needed

    tried: list[float] = []
    left = _EXACT_TOTAL
    while left > 0 and len(tried) < _EXACT_SOLVES:
        until = frontier.answered_until_us()
        gaps = np.where(np.isin(until, tried), 0.0, frontier.gaps())
        worst = int(np.argmax(gaps))
        if gaps[worst] <= _EXACT_GAP:
            break
        tried.append(float(until[worst]))
        plan, bound, spent = best_within(
            problem.tables, problem.table_of, space.graph, round(until[worst]), frontier.choices[worst],
            effort=min(_EXACT_EFFORT, left),
        )  # fmt: skip
        left -= spent
        frontier = replace(
            frontier,
            proven_us=np.append(frontier.proven_us, until[worst]),
            proven_mj=np.append(frontier.proven_mj, bound),
        )
        found = plan[:, None]
        frontier = frontier.with_plans((space.makespan(found), space.energy(found), found.T))
    return frontier
