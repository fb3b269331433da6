"""Plans for a DAG at one deadline or many, judged by a plain longest path and bounded from below."""

from __future__ import annotations

import numpy as np

from solver.check import static_energy_mj
from solver.dag import DagOption, DagProblem, DagSolution
from solver.slack import SlackFrontier, SlackProblem, Table, make_table, slack_frontier
from solver.solution import Status


def solve_dag(problem: DagProblem, deadline_us: int | None = None, *, points: int = 400) -> DagSolution:
    """Return the cheapest plan found that meets a deadline, with a proven bound of its energy.

    Args:
        problem: the DAG. deadline_us: None for the least total energy at any makespan.
        points: how finely the frontier around the deadline is sampled; more gives smaller gaps.

    Raises:
        ImportError: OR-Tools is not installed. ValueError: the graph has a cycle or an option no sense.
    """
    relaxed = _relaxed(problem)
    return _at(problem, relaxed, slack_frontier(relaxed, points=points), deadline_us)


def dag_frontier(problem: DagProblem, points: int = 50) -> tuple[DagSolution, ...]:
    """Return plans for `points` deadlines from the least makespan to that of the least total energy.

    Args:
        problem: the DAG. points: deadlines; plans that coincide or are dominated are returned once.

    Raises:
        ImportError: OR-Tools is not installed. ValueError: the graph has a cycle or an option no sense.
    """
    relaxed = _relaxed(problem)
    curve = slack_frontier(relaxed, points=max(20 * points, 400))
    last = float(curve.time_us[int(curve.total_mj().argmin())])
    kept: list[DagSolution] = []
    for deadline in np.linspace(curve.least_time_us, last, points):
        solution = _at(problem, relaxed, curve, int(np.ceil(deadline)))
        if not kept or (solution.time_us > kept[-1].time_us and solution.energy_mj < kept[-1].energy_mj):
            kept.append(solution)
    return tuple(kept)


def _relaxed(problem: DagProblem) -> SlackProblem:
    """The same DAG with one table for all nodes of equal options."""
    index: dict[tuple[DagOption, ...], int] = {}
    tables: list[Table] = []
    for node in problem.nodes:
        if node.options not in index:
            index[node.options] = len(tables)
            tables.append(make_table([o.time_us for o in node.options], [o.energy_mj for o in node.options]))
    return SlackProblem(
        tables=tuple(tables),
        table_of=np.array([index[n.options] for n in problem.nodes], np.int64),
        edges=np.array(problem.edges, np.int64).reshape(-1, 2),
        static_power_mw=float(problem.static_power_mw),
    )


def _at(
    problem: DagProblem, relaxed: SlackProblem, curve: SlackFrontier, deadline_us: int | None
) -> DagSolution:
    """The cheapest plan of a frontier for a deadline, with the least the bound's lines allow up to it."""
    began = curve.solve_s
    limit = float("inf") if deadline_us is None else float(deadline_us)
    total = np.where(curve.time_us <= limit + 1e-6, curve.total_mj(), np.inf)
    if not np.isfinite(total).any():
        return DagSolution(
            choices=(),
            time_us=0,
            energy_mj=0,
            bound_mj=float("inf"),
            gap=1.0,
            status=Status.INFEASIBLE,
            deadline_us=deadline_us or 0,
            solve_s=began,
        )
    best = int(total.argmin())
    origins = [relaxed.tables[k].origin for k in relaxed.table_of.tolist()]
    choices = tuple(int(o[m]) for o, m in zip(origins, curve.choices[best].tolist(), strict=True))
    time_us = longest_path_us(problem, choices)
    energy = sum(n.options[m].energy_mj for n, m in zip(problem.nodes, choices, strict=True))
    energy += static_energy_mj(problem.static_power_mw, time_us)
    bound = _bound(curve, limit)
    gap = max(energy - bound, 0.0) / abs(energy) if energy else 0.0
    return DagSolution(
        choices=choices,
        time_us=time_us,
        energy_mj=energy,
        bound_mj=bound,
        gap=gap,
        status=Status.OPTIMAL if gap <= 1e-3 else Status.FEASIBLE,
        deadline_us=deadline_us or 0,
        solve_s=began,
    )


def _bound(curve: SlackFrontier, limit_us: float) -> float:
    """Least of `lagrange - price * D + static * D` over makespans D up to the limit: a convex function of D,
    so its minimum lies at an end or where two lines meet."""
    static = curve.static_power_mw * 1e-6
    low = curve.least_time_us
    prices, values = curve.prices_mw * 1e-6, curve.lagrange_mj
    with np.errstate(divide="ignore", invalid="ignore"):
        meet = (values[:, None] - values[None, :]) / (prices[:, None] - prices[None, :])
    high = min(limit_us, float(curve.time_us[-1]))
    places = np.concatenate([[low, high], meet[np.isfinite(meet)]])
    places = np.clip(places, low, high)
    lines = values[:, None] + (static - prices[:, None]) * places[None, :]
    return float(lines.max(axis=0).min())


def longest_path_us(problem: DagProblem, choices: tuple[int, ...]) -> int:
    """Makespan of a plan, by plain longest path.

    Raises:
        ValueError: the graph has a cycle.
    """
    after: list[list[int]] = [[] for _ in problem.nodes]
    waiting = [0] * len(problem.nodes)
    for a, b in problem.edges:
        after[a].append(b)
        waiting[b] += 1
    end = [n.options[m].time_us for n, m in zip(problem.nodes, choices, strict=True)]
    start = [0] * len(end)
    ready = [v for v, n in enumerate(waiting) if not n]
    done = 0
    while ready:
        v = ready.pop()
        done += 1
        for w in after[v]:
            start[w] = max(start[w], start[v] + end[v])
            waiting[w] -= 1
            if not waiting[w]:
                ready.append(w)
    if done != len(end):
        raise ValueError("the graph has a cycle")
    return max((s + e for s, e in zip(start, end, strict=True)), default=0)
