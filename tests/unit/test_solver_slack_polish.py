"""Local search and exact solves of slack frontiers: better plans, valid proofs, the same result every time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from solver.slack import SlackProblem, make_table, slack_frontier
from solver.slack_round import Graph
from solver.slack_search import SearchSpace, search_plans

pytest.importorskip("ortools")

WORK = 3e5


def pipeline(stages, micro_batches, seed):
    """A lattice of operations with uneven tables: one jump of energy, as a noisy clock sweep has."""
    draw = np.random.default_rng(seed)
    tables = []
    for _ in range(stages):
        time_us = np.cumsum(draw.integers(5, 60, size=6)) + 400
        energy_mj = (
            900 - np.cumsum(draw.integers(1, 40, size=6)) - 120.0 * (np.arange(6) >= draw.integers(1, 6))
        )
        tables.append(make_table(time_us, energy_mj))
    index = {(s, m): s * micro_batches + m for s in range(stages) for m in range(micro_batches)}
    edges = [(i, index[s + 1, m]) for (s, m), i in index.items() if s + 1 < stages]
    edges += [(i, index[s, m + 1]) for (s, m), i in index.items() if m + 1 < micro_batches]
    return SlackProblem(
        tables=tuple(tables),
        table_of=np.repeat(np.arange(stages), micro_batches),
        edges=np.array(edges, np.int64).reshape(-1, 2),
        static_power_mw=1e5,
    )


def space_of(problem):
    return SearchSpace(
        graph=Graph.build(len(problem.table_of), problem.edges),
        table_of=problem.table_of,
        times=[t.time_us.astype(float) for t in problem.tables],
        energies=[t.energy_mj for t in problem.tables],
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_polishing_is_never_worse_at_any_deadline_and_narrows_the_gap(seed):
    problem = pipeline(3, 4, seed)
    rough = slack_frontier(problem, points=100)
    fine = slack_frontier(problem, points=100, search_work=WORK)
    for deadline, energy in zip(rough.time_us, rough.energy_mj, strict=True):
        assert fine.energy_mj[fine.index_at(deadline)] <= energy
        assert fine.bound_mj(deadline)[0] >= rough.bound_mj(deadline)[0]
    assert fine.gaps().max() < rough.gaps().max()


def test_proofs_hold_against_every_plan():
    problem = pipeline(2, 2, 3)
    space = space_of(problem)
    frontier = slack_frontier(problem, points=50, search_work=WORK)
    sizes = [range(len(problem.tables[k].time_us)) for k in problem.table_of]
    every = np.array(list(itertools.product(*sizes)), np.int16).T
    makespan, energy = space.makespan(every), space.energy(every)
    assert len(frontier.proven_us) > 0
    assert (energy >= frontier.bound_mj(makespan) - 1e-6).all()
    for deadline, found in zip(frontier.time_us, frontier.energy_mj, strict=True):
        best = energy[makespan <= deadline].min()
        assert found >= best - 1e-9
        # All gaps are proven to 0.3 %, so no plan may be farther than that from the best of all.
        assert found - best <= 3e-3 * (found + 1e5 * deadline * 1e-6)


def test_plans_meet_their_deadlines_and_repeat():
    problem = pipeline(4, 5, 7)
    rough = slack_frontier(problem, points=60)
    space, deadline = space_of(problem), rough.answered_until_us()
    found = [search_plans(space, deadline, rough.choices.T, work=1e5, seed=1) for _ in range(2)]
    assert (found[0] == found[1]).all()
    assert (space.makespan(found[0]) <= deadline).all()
    assert (space.energy(found[0]) <= rough.energy_mj).all()
    assert space.energy(found[0]).sum() < rough.energy_mj.sum()


def test_without_work_nothing_changes():
    problem = pipeline(2, 3, 0)
    rough = slack_frontier(problem, points=40)
    same = search_plans(space_of(problem), rough.answered_until_us(), rough.choices.T, work=0)
    assert (same == rough.choices.T).all()
