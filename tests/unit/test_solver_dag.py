"""The DAG trade-off against brute force on small graphs."""

from __future__ import annotations

import itertools
import random

import pytest

pytest.importorskip("ortools")

from solver import DagNode, DagOption, DagProblem, Status, dag_frontier, solve_dag
from solver.check import static_energy_mj
from solver.dag_solve import longest_path_us


def small_dag(seed: int) -> DagProblem:
    rng = random.Random(seed)
    nodes = []
    for v in range(5):
        times = sorted(rng.sample(range(100, 1000, 10), 3))
        energies = sorted(rng.sample(range(100, 900), 3), reverse=True)
        options = tuple(DagOption(time_us=t, energy_mj=e) for t, e in zip(times, energies, strict=True))
        nodes.append(DagNode(name=str(v), options=options))
    edges = tuple((a, b) for a in range(5) for b in range(a + 1, 5) if rng.random() < 0.4)
    return DagProblem(nodes=tuple(nodes), edges=edges, static_power_mw=rng.choice((0, 200_000)))


def truth(problem: DagProblem, deadline_us: int) -> int | None:
    best = None
    for plan in itertools.product(range(3), repeat=5):
        time_us = longest_path_us(problem, plan)
        if time_us <= deadline_us:
            energy = sum(n.options[m].energy_mj for n, m in zip(problem.nodes, plan, strict=True))
            energy += static_energy_mj(problem.static_power_mw, time_us)
            best = energy if best is None else min(best, energy)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_bound_and_plan_bracket_the_optimum(seed: int) -> None:
    problem = small_dag(seed)
    fastest = longest_path_us(problem, (0,) * 5)
    for factor in (1.0, 1.2, 1.5, 2.5):
        deadline = int(fastest * factor)
        solution = solve_dag(problem, deadline)
        best = truth(problem, deadline)
        assert best is not None
        assert solution.time_us <= deadline
        assert solution.bound_mj <= best + 1e-6
        assert best <= solution.energy_mj <= best * 1.25
    assert solve_dag(problem, fastest - 1).status is Status.INFEASIBLE


def test_frontier_falls_and_keeps_its_deadlines() -> None:
    points = dag_frontier(small_dag(1), 10)
    assert len(points) > 2
    assert all(a.energy_mj > b.energy_mj for a, b in itertools.pairwise(points))
    assert all(p.time_us <= p.deadline_us for p in points)
    assert all(p.bound_mj <= p.energy_mj for p in points)


def test_a_cycle_is_an_error() -> None:
    node = DagNode(name="a", options=(DagOption(time_us=1, energy_mj=1),))
    with pytest.raises(ValueError, match="acyclic"):
        solve_dag(DagProblem(nodes=(node, node), edges=((0, 1), (1, 0))), 10)
