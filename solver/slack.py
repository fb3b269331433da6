"""Time-energy trade-off on a precedence graph: the whole frontier with a proven bound.

Every operation of a directed acyclic graph picks one (time, energy) option; the makespan is the longest
path. This is the discrete time-cost trade-off problem of pipelines and of several lanes with joins.

Method. Relaxing every table to its lower convex hull gives a linear programme whose dual is a min-cost
flow: flow on an operation is the price of its time in watts, the flow value is the price of the makespan.
A few dozen prices, placed where the chord of the convex frontier is still loose, give its vertices. Plans
come from there in two ways: vertices are rounded, what is left over exchanged between neighbours, and plans
made that cross over from one to the next at some moment of the step (solver.slack_sweep, solver.slack_exchange);
and convex combinations of two vertices (start times and durations are linear) are rounded at several
thresholds and repaired with the slack left. The best are kept. A local search (solver.slack_search) then
works on the deadlines where the gap is largest.

Bound. Any conserved flow `f` of value `lam` proves, for every deadline D,
`E(D) >= sum_v min_o(e_vo + f_v t_vo) - lam D`, because the flow splits into paths and no path is longer
than D. It is evaluated from the original tables, so it does not depend on the hull, on rounding inside
the flow solver, or on the flow being optimal. On graphs of a few operations, where one whole option may be
worth more than the gap wanted, the loosest deadlines are solved exactly as well.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from solver.slack_polish import polished
from solver.slack_round import Graph, improve, round_plans
from solver.slack_search import SearchSpace
from solver.slack_sweep import corner_plans, swept_plans

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_PRICES = 96


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Table:
    """Options of one kind of operation, fastest first, no option dominated.

    Attributes:
        time_us: int64[k], strictly ascending. energy_mj: float64[k], strictly descending; may be negative
            where a cost already credits the static power of the time spent.
        origin: int64[k], index of each option in the caller's list.
    """

    time_us: Ints
    energy_mj: Floats
    origin: Ints


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SlackProblem:
    """An operation graph with shared option tables.

    Attributes:
        tables: one per kind of operation. table_of: int64[n], the table of each operation.
        edges: int64[m, 2], (before, after).
        static_power_mw: paid over the makespan, on top of the options' energies.
    """

    tables: tuple[Table, ...]
    table_of: Ints
    edges: Ints
    static_power_mw: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SlackFrontier:
    """Plans in ascending time and strictly descending option energy, and what is proven about them.

    Attributes:
        time_us: float64[p] makespans. energy_mj: float64[p], options only.
        choices: int16[p, n], option index in the operation's table.
        prices_mw: float64[q], lagrange_mj: float64[q]: the lines of the lower bound.
        proven_us, proven_mj: float64[r]: no plan that meets a deadline of at most `proven_us` needs less.
        least_time_us: the makespan of all-fastest, which no plan beats.
        static_power_mw: as in the problem. solve_s: wall time.
    """

    time_us: Floats
    energy_mj: Floats
    choices: NDArray[np.int16]
    prices_mw: Floats
    lagrange_mj: Floats
    least_time_us: float
    static_power_mw: float
    solve_s: float
    proven_us: Floats = field(default_factory=lambda: np.zeros(0))
    proven_mj: Floats = field(default_factory=lambda: np.zeros(0))

    def bound_mj(self, deadline_us: Floats | float) -> Floats:
        """Lower bound on the option energy of plans that meet each deadline (infinite below the least)."""
        # Makespans are whole microseconds, so a deadline between two of them is as good as the earlier one.
        deadline = np.floor(np.atleast_1d(np.asarray(deadline_us, np.float64)) + 1e-6)
        best = (self.lagrange_mj[:, None] - self.prices_mw[:, None] * 1e-6 * deadline[None, :]).max(axis=0)
        for until_us, energy_mj in zip(self.proven_us, self.proven_mj, strict=True):
            best = np.where(deadline <= until_us, np.maximum(best, energy_mj), best)
        bound: Floats = np.where(deadline < self.least_time_us, np.inf, best)
        return bound

    def index_at(self, deadline_us: float) -> int:
        """Index of the cheapest plan that meets a deadline, -1 where none does."""
        return int(np.searchsorted(self.time_us, deadline_us + 1e-6, side="right")) - 1

    def total_mj(self) -> Floats:
        """float64[p]: energies with the static power of the whole makespan."""
        total: Floats = self.energy_mj + self.static_power_mw * 1e-6 * self.time_us
        return total

    def gaps(self) -> Floats:
        """float64[p]: proven relative gap of total energy, worst over the deadlines each plan answers.

        The plan of index i answers every deadline before the next plan's makespan, so its gap is taken at
        that far end, where the bound is lowest.
        """
        bound = self.bound_mj(self.answered_until_us())
        gap: Floats = np.maximum(self.energy_mj - bound, 0.0) / np.abs(self.total_mj())
        return gap

    def answered_until_us(self) -> Floats:
        """float64[p]: the last whole microsecond before the next plan takes over."""
        return np.append(self.time_us[1:] - 1.0, self.time_us[-1])

    def with_plans(self, plans: tuple[Floats, Floats, NDArray[np.int16]]) -> SlackFrontier:
        """Return the frontier with further plans (makespans, energies, choices [p, n]), dominated ones left out."""
        makespan, energy, choices = _pareto(
            np.concatenate([self.time_us, plans[0]]),
            np.concatenate([self.energy_mj, plans[1]]),
            np.concatenate([self.choices, plans[2]]),
        )
        return replace(self, time_us=makespan, energy_mj=energy, choices=choices)


def make_table(time_us: Iterable[float], energy_mj: Iterable[float]) -> Table:
    """Return the non-dominated options of a list; times are rounded up to whole microseconds.

    Raises:
        ValueError: no options, a time that is not finite and at least 0, or an energy that is not finite.
    """
    times = np.ceil(np.asarray(list(time_us), np.float64) - 1e-9)
    energies = np.asarray(list(energy_mj), np.float64)
    if not len(times) or len(times) != len(energies):
        raise ValueError(
            f"expected as many times as energies and at least one, found {len(times)} and {len(energies)}"
        )
    if not (np.isfinite(times).all() and np.isfinite(energies).all() and (times >= 0).all()):
        raise ValueError("expected finite times of at least 0 us and finite energies")
    kept: list[int] = []
    for row in np.lexsort((energies, times)):
        if not kept or energies[row] < energies[kept[-1]]:
            kept.append(int(row))
    rows = np.array(kept, np.int64)
    return Table(time_us=times[rows].astype(np.int64), energy_mj=energies[rows], origin=rows)


def slack_frontier(
    problem: SlackProblem,
    *,
    points: int = 2000,
    tolerance: float | None = None,
    search_work: float = 0.0,
    progress: Callable[[int, float], None] | None = None,
) -> SlackFrontier:
    """Return the whole time-energy frontier with a proven bound for every deadline.

    Args:
        problem: the graph.
        points: deadlines planned for; the frontier holds at most five times as many.
        tolerance: prices are added until the relaxed frontier is known this closely (share of total energy);
            None is 2e-4, and 6e-4 above 1,000 operations, where a price costs most of a second.
        search_work: operations x plans x rounds of local search; 0 leaves it and exact solves out
            (solver.slack_polish.SEARCH_WORK takes some seconds).
        progress: called with (prices solved, looseness left).

    Raises:
        ImportError: OR-Tools is not installed.
        ValueError: the graph has a cycle or an edge outside it.
    """
    started = time.monotonic()
    graph = Graph.build(len(problem.table_of), problem.edges)
    times = [t.time_us.astype(np.float64) for t in problem.tables]
    energies = [t.energy_mj for t in problem.tables]
    if tolerance is None:
        tolerance = 2e-4 if graph.size <= 1000 else 6e-4
    space = SearchSpace(graph=graph, table_of=problem.table_of, times=times, energies=energies)
    plans, prices, lagrange = _vertices(problem, graph, tolerance, progress)
    duration = _between(plans, points)
    rounded = round_plans(graph, problem.table_of, times, energies, duration)
    swept = _swept(space, plans, points)
    makespan, energy, choices = _pareto(
        np.concatenate([rounded[0], space.makespan(swept)]),
        np.concatenate([rounded[1], space.energy(swept)]),
        np.concatenate([rounded[2], swept.T]),
    )
    makespan, energy, choices = _pareto(*improve(graph, problem.table_of, times, energies, makespan, choices))
    frontier = SlackFrontier(
        time_us=makespan,
        energy_mj=energy,
        choices=choices,
        prices_mw=prices,
        lagrange_mj=lagrange,
        least_time_us=float(makespan[0]),
        static_power_mw=problem.static_power_mw,
        solve_s=0.0,
    )
    frontier = polished(frontier, problem, space, search_work)
    return replace(frontier, solve_s=time.monotonic() - started)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Vertex:
    price_mw: float
    lagrange_mj: float
    makespan_us: float
    duration_us: Floats
    start_us: Floats

    @property
    def energy_mj(self) -> float:
        return self.lagrange_mj - self.price_mw * 1e-6 * self.makespan_us


def _vertices(
    problem: SlackProblem, graph: Graph, tolerance: float, progress: Callable[[int, float], None] | None
) -> tuple[list[_Vertex], Floats, Floats]:
    """Vertices of the relaxed frontier, fastest first, refined where the chord is loosest."""
    from solver.cpsat.slack_flow import SlackFlow  # OR-Tools only when it is needed

    flow = SlackFlow(problem.tables, problem.table_of, graph)

    def vertex(price_mw: float) -> _Vertex:
        exact_price, watts, duration, start = flow.solve(price_mw)
        makespan = graph.makespan(duration[:, None])[0]
        lagrange = _lagrange(problem, graph, watts, exact_price, flow.edge_flow_mw)
        return _Vertex(
            price_mw=exact_price,
            lagrange_mj=lagrange,
            makespan_us=makespan,
            duration_us=duration,
            start_us=start,
        )

    fastest = np.array([[problem.tables[k].time_us[0]] for k in problem.table_of], np.float64)
    least = graph.makespan(fastest)[0]
    lines = [vertex(0.0)]
    price = flow.steepest_mw
    while lines[-1].makespan_us > least + 0.5 and price <= flow.ceiling_mw:
        lines.append(vertex(price))
        price *= 4
    corners = lines[::-1]
    exact: set[tuple[float, float]] = set()  # pairs whose chord is an edge of the frontier
    while len(lines) < MAX_PRICES:
        loose = [
            0.0 if (a.price_mw, b.price_mw) in exact else _looseness(a, b, problem.static_power_mw)
            for a, b in itertools.pairwise(corners)
        ]
        worst = int(np.argmax(loose)) if loose else 0
        if progress is not None:
            progress(len(lines), max(loose, default=0.0))
        if not loose or loose[worst] < tolerance:
            break
        left, right = corners[worst], corners[worst + 1]
        chord = (left.energy_mj - right.energy_mj) / (right.makespan_us - left.makespan_us) * 1e6
        new = vertex(chord)
        lines.append(new)
        if left.makespan_us + 0.5 < new.makespan_us < right.makespan_us - 0.5:
            corners.insert(worst + 1, new)
        else:
            exact.add((left.price_mw, right.price_mw))
    return corners, np.array([v.price_mw for v in lines]), np.array([v.lagrange_mj for v in lines])


def _looseness(left: _Vertex, right: _Vertex, static_power_mw: float) -> float:
    """Largest distance from the chord of two vertices to their bounding lines, as a share of energy."""
    slope = (left.price_mw - right.price_mw) * 1e-6
    if right.makespan_us - left.makespan_us < 1.0 or slope <= 0:
        return 0.0
    meet = (left.lagrange_mj - right.lagrange_mj) / slope
    meet = min(max(meet, left.makespan_us), right.makespan_us)
    share = (meet - left.makespan_us) / (right.makespan_us - left.makespan_us)
    chord = left.energy_mj * (1 - share) + right.energy_mj * share
    line = max(
        left.lagrange_mj - left.price_mw * 1e-6 * meet, right.lagrange_mj - right.price_mw * 1e-6 * meet
    )
    return float((chord - line) / max(abs(chord + static_power_mw * 1e-6 * meet), 1e-9))


def _lagrange(
    problem: SlackProblem, graph: Graph, watts: Floats, price_mw: float, edge_flow_mw: Floats
) -> float:
    """`sum_v min_o(e + f_v t)` for a flow; the flow is checked first, since the proof rests on it."""
    into = np.bincount(graph.edges[:, 1], weights=edge_flow_mw, minlength=graph.size)
    out = np.bincount(graph.edges[:, 0], weights=edge_flow_mw, minlength=graph.size)
    inner_in, inner_out = graph.has_before, graph.has_after
    conserved = (
        np.allclose(into[inner_in], watts[inner_in], atol=1e-3)
        and np.allclose(out[inner_out], watts[inner_out], atol=1e-3)
        and abs(watts[~inner_in].sum() - price_mw) <= 1e-3 + 1e-9 * price_mw
        and (watts >= 0).all()
        and (edge_flow_mw >= 0).all()
    )
    if not conserved:
        raise ArithmeticError("the flow behind a bound is not conserved; the bound would prove nothing")
    total = 0.0
    for kind, table in enumerate(problem.tables):
        price = watts[problem.table_of == kind] * 1e-6
        total += float((table.energy_mj[None, :] + price[:, None] * table.time_us[None, :]).min(axis=1).sum())
    return total


def _between(vertices: list[_Vertex], points: int) -> Floats:
    """float64[n, p]: durations of relaxed plans spread evenly along the frontier, in time and in energy."""
    makespan = np.array([v.makespan_us for v in vertices])
    keep = np.append(np.diff(makespan) > 0.5, True)
    makespan = makespan[keep]
    energy = np.array([v.energy_mj for v in vertices])[keep]
    duration = np.stack([v.duration_us for v in vertices])[keep]
    if len(makespan) == 1:
        return np.array(duration.T, order="C")
    span_t, span_e = np.ptp(makespan) or 1.0, np.ptp(energy) or 1.0
    arc = np.append(0.0, np.cumsum(np.abs(np.diff(makespan)) / span_t + np.abs(np.diff(energy)) / span_e))
    at = np.linspace(0.0, arc[-1], points)
    left = np.clip(np.searchsorted(arc, at, side="right") - 1, 0, len(arc) - 2)
    share = ((at - arc[left]) / (arc[left + 1] - arc[left]))[:, None]
    plans: Floats = np.array((duration[left] * (1 - share) + duration[left + 1] * share).T, order="C")
    return plans


def _swept(space: SearchSpace, vertices: list[_Vertex], points: int) -> NDArray[np.int16]:
    """int16[n, q]: the vertices as real plans, all-fastest among them, and plans between them."""
    duration = np.stack([v.duration_us for v in vertices], axis=1)
    start = np.stack([v.start_us for v in vertices], axis=1)
    all_fastest = np.zeros((space.graph.size, 1), np.int16)
    corners = np.concatenate([all_fastest, corner_plans(space, duration, start)], axis=1)
    return swept_plans(space, corners, points)


def _pareto(
    makespan: Floats, energy: Floats, choices: NDArray[np.int16]
) -> tuple[Floats, Floats, NDArray[np.int16]]:
    order = np.lexsort((energy, makespan))
    makespan, energy = makespan[order], energy[order]
    best = np.append(np.inf, np.minimum.accumulate(energy)[:-1])
    kept = energy < best - 1e-9 * np.abs(energy)
    return makespan[kept], energy[kept], choices[order[kept]]
