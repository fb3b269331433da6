"""Exchanges between neighbours and sweeps between corners: better plans within the same deadlines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.slack import make_table
from solver.slack_exchange import exchange_steps
from solver.slack_round import Graph
from solver.slack_search import SearchSpace
from solver.slack_sweep import corner_plans, swept_plans


def space_of(tables, table_of, edges):
    made = [make_table(*zip(*table, strict=True)) for table in tables]
    return SearchSpace(
        graph=Graph.build(len(table_of), np.array(edges).reshape(-1, 2)),
        table_of=np.array(table_of),
        times=[t.time_us.astype(float) for t in made],
        energies=[t.energy_mj for t in made],
    )


def test_a_step_is_moved_to_where_it_saves_more():
    # Within 230 us the second operation's slower option saves 30 mJ, the first one's only 5; neither operation
    # alone can be slowed, because the first already took the 20 us there are.
    space = space_of([[(100, 50), (120, 45)], [(110, 90), (130, 60)]], [0, 1], [(0, 1)])
    taken = np.array([[1], [0]], np.int16)
    assert space.makespan(taken)[0] == 230
    swapped = exchange_steps(space, taken, np.array([230.0]), rounds=1)
    assert swapped[:, 0].tolist() == [0, 1]


def test_time_over_travels_along_a_chain():
    # Each of the first three leaves 10 us over, too little for anything; together they pay for the last one.
    chain = [(0, 1), (1, 2), (2, 3)]
    space = space_of([[(100, 10)], [(100, 50), (130, 20)]], [0, 0, 0, 1], chain)
    start = np.array([[0.0], [110.0], [220.0], [330.0]])
    plan = exchange_steps(
        space, np.zeros((4, 1), np.int16), np.array([430.0]), rounds=1, start_us=start
    )  # fmt: skip
    assert plan[:, 0].tolist() == [0, 0, 0, 1]


def test_hurrying_one_pays_where_both_that_wait_for_it_use_the_time():
    # 20 us of the first cost 30 mJ and are worth 20 mJ to each of the other two.
    space = space_of([[(100, 80), (120, 50)], [(100, 60), (120, 40)]], [0, 1, 1], [(0, 1), (0, 2)])
    plan, deadline = np.array([[1], [0], [0]], np.int16), np.array([220.0])
    assert (exchange_steps(space, plan, deadline, rounds=4, jointly=False) == plan).all()
    assert exchange_steps(space, plan, deadline, rounds=4)[:, 0].tolist() == [0, 1, 1]


option = st.tuples(st.integers(1, 40), st.integers(1, 60))
tables = st.lists(st.lists(option, min_size=1, max_size=4), min_size=1, max_size=3)


@st.composite
def plans_of_graphs(draw):
    """A graph with edges of every kind (also twice, or implied by a longer path), and some plans of it."""
    made = draw(tables)
    size = draw(st.integers(1, 7))
    table_of = [draw(st.integers(0, len(made) - 1)) for _ in range(size)]
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size)]
    space = space_of(made, table_of, draw(st.lists(st.sampled_from(pairs))) if pairs else [])
    lasts = [len(space.times[k]) - 1 for k in table_of]
    plans = [[draw(st.integers(0, last)) for last in lasts] for _ in range(draw(st.integers(1, 5)))]
    return space, np.array(plans, np.int16).T, draw(st.integers(0, 30))


@settings(max_examples=150, deadline=None)
@given(plans_of_graphs(), st.integers(1, 4))
def test_exchanged_plans_meet_their_deadlines_at_no_more_energy(drawn, rounds):
    space, choices, room = drawn
    deadline = space.makespan(choices) + room
    found = exchange_steps(space, choices, deadline, rounds=rounds)
    assert (space.makespan(found) <= deadline + 1e-6).all()
    assert (space.energy(found) <= space.energy(choices) + 1e-9).all()
    assert ((found >= 0) & (space.durations(found) <= deadline + 1e-6)).all()


@pytest.mark.parametrize("count", [5, 40])
def test_a_sweep_between_two_corners_errs_by_one_operations_step(count):
    # A chain of equal operations: real plans between all-fast and all-slow exist at every multiple of 20 us.
    space = space_of([[(100, 50), (120, 30)]], [0] * count, [(i, i + 1) for i in range(count - 1)])
    duration = np.array([[100.0] * count, [120.0] * count, [110.0] * count]).T
    corners = corner_plans(space, duration, space.graph.starts(duration))
    # The third is halfway: nothing can be rounded to, but neighbours share what is left of 10 us each.
    assert space.energy(corners)[2] == 50 * count - 20 * (count // 2)
    swept = swept_plans(space, corners[:, :2], points=400)
    found = dict(zip(space.makespan(swept), space.energy(swept), strict=True))
    assert found == {100.0 * count + 20 * n: 50 * count - 20 * n for n in range(count + 1)}
