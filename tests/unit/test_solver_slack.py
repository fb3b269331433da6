import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.slack import SlackProblem, make_table, slack_frontier
from solver.slack_round import Graph

pytest.importorskip("ortools")


def all_plans(problem, graph):
    """Every plan of a tiny problem as (makespan, energy)."""
    sizes = [range(len(problem.tables[k].time_us)) for k in problem.table_of]
    for choice in itertools.product(*sizes):
        duration = np.array(
            [[problem.tables[k].time_us[c]] for k, c in zip(problem.table_of, choice, strict=True)], float
        )
        energy = sum(problem.tables[k].energy_mj[c] for k, c in zip(problem.table_of, choice, strict=True))
        yield graph.makespan(duration)[0], energy


option = st.tuples(st.integers(1, 40), st.integers(1, 60))
table = st.lists(option, min_size=1, max_size=3)


@st.composite
def problems(draw):
    tables = tuple(make_table(*zip(*draw(table), strict=True)) for _ in range(draw(st.integers(1, 3))))
    size = draw(st.integers(1, 6))
    table_of = np.array([draw(st.integers(0, len(tables) - 1)) for _ in range(size)])
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size)]
    edges = np.array(draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else [], np.int64).reshape(
        -1, 2
    )
    return SlackProblem(
        tables=tables, table_of=table_of, edges=edges, static_power_mw=draw(st.sampled_from([0, 1e6]))
    )


@settings(max_examples=80, deadline=None)
@given(problems())
def test_no_plan_beats_the_bound_and_every_plan_is_real(problem):
    graph = Graph.build(len(problem.table_of), problem.edges)
    frontier = slack_frontier(problem, points=30)
    every = list(all_plans(problem, graph))
    for makespan, energy in every:
        assert energy >= frontier.bound_mj(makespan)[0] - 1e-6 * abs(energy) - 1e-6
    found = {(round(t, 3), round(e, 3)) for t, e in every}
    for t, e, choice in zip(frontier.time_us, frontier.energy_mj, frontier.choices, strict=True):
        assert (round(t, 3), round(e, 3)) in found
        own = [[problem.tables[k].time_us[c]] for k, c in zip(problem.table_of, choice, strict=True)]
        assert graph.makespan(np.array(own, float))[0] == pytest.approx(t)
    assert frontier.time_us[0] == pytest.approx(min(t for t, _ in every))
    assert frontier.energy_mj[-1] == pytest.approx(min(e for _, e in every))
    assert (np.diff(frontier.time_us) > 0).all()
    assert (np.diff(frontier.energy_mj) < 0).all()


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_fastest_plans_energy_is_within_the_proven_gap_of_the_best(problem):
    graph = Graph.build(len(problem.table_of), problem.edges)
    frontier = slack_frontier(problem, points=30)
    gaps, total = frontier.gaps(), frontier.total_mj()
    for i, (t, e) in enumerate(zip(frontier.time_us, frontier.energy_mj, strict=True)):
        best = min(energy for makespan, energy in all_plans(problem, graph) if makespan <= t + 1e-6)
        assert e - best <= gaps[i] * abs(total[i]) + 1e-6


def test_chain_of_two_convex_tables_is_solved_exactly():
    # 100/110/120 us at 30/20/15 mJ: the hull is convex, so slowing goes by steepest step first.
    steps = make_table([100, 110, 120], [30, 20, 15])
    problem = SlackProblem(tables=(steps,), table_of=np.array([0, 0]), edges=np.array([[0, 1]]))
    frontier = slack_frontier(problem, points=50)
    assert list(zip(frontier.time_us, frontier.energy_mj, strict=True)) == [
        (200, 60), (210, 50), (220, 40), (230, 35), (240, 30),
    ]  # fmt: skip
    assert frontier.gaps()[0] > 0  # the plan for 200 us also answers 209 us, where the relaxation is cheaper
    assert frontier.bound_mj(220.0)[0] == pytest.approx(40)


def test_parallel_operation_is_slowed_for_free():
    problem = SlackProblem(
        tables=(make_table([100], [50]), make_table([40, 90, 130], [20, 10, 5])),
        table_of=np.array([0, 1]),
        edges=np.empty((0, 2), np.int64),
    )
    frontier = slack_frontier(problem, points=20)
    assert (frontier.time_us[0], frontier.energy_mj[0]) == (100, 60)
    assert frontier.index_at(99) == -1
    assert frontier.bound_mj(99)[0] == np.inf


def test_table_keeps_only_what_can_be_optimal_and_remembers_where_it_came_from():
    table = make_table([120.2, 100, 110, 130], [15, 30, 31, 16])
    assert table.time_us.tolist() == [100, 121]
    assert table.energy_mj.tolist() == [30, 15]
    assert table.origin.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("times", "energies"),
    [([], []), ([1], [1, 2]), ([float("nan")], [1]), ([-1], [1]), ([1], [float("inf")])],
)
def test_table_refuses_nonsense(times, energies):
    with pytest.raises(ValueError, match="expected"):
        make_table(times, energies)


def test_graph_refuses_cycles_and_foreign_edges():
    with pytest.raises(ValueError, match="waits for itself"):
        Graph.build(2, np.array([[0, 1], [1, 0]]))
    with pytest.raises(ValueError, match=r"between operations 0\.\.1"):
        Graph.build(2, np.array([[0, 2]]))
