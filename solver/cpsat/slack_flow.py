"""The relaxed time-energy trade-off as a min-cost flow (OR-Tools), solved for one price of time at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from ortools.graph.python import min_cost_flow

from solver.slack_round import Graph, convex_hull

if TYPE_CHECKING:
    from solver.slack import Table

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_STEEPEST_UNITS = 2.0**20  # flow units for the largest slope; keeps cost x flow inside 64 bits
_MAX_SWEEPS = 1_000_000


class SlackFlow:
    """Flow network of one operation graph.

    Each operation is an arc from its start to its end, in parallel pieces: a flow below the first slope of
    the convex hull travels along the slowest option's time, the next piece along the next faster one, and
    beyond the last slope everything along the fastest. Precedences are free arcs of length 0.

    Attributes:
        steepest_mw: largest hull slope, in mW per unit of time saved.
        ceiling_mw: largest price the integer arithmetic carries.
        edge_flow_mw: float64[m], flow over each precedence in the last solution.
    """

    def __init__(self, tables: tuple[Table, ...], table_of: Ints, graph: Graph) -> None:
        hulls = []
        for table in tables:
            corner = convex_hull(table.time_us.astype(np.float64), table.energy_mj)
            hulls.append((table.time_us[corner].astype(np.float64), table.energy_mj[corner]))
        slopes = [-np.diff(e) / np.diff(t) * 1e6 for t, e in hulls]
        self.steepest_mw = float(max((s[0] for s in slopes if len(s)), default=1.0))
        self._unit_mw = self.steepest_mw / _STEEPEST_UNITS
        self.ceiling_mw = self.steepest_mw * 4.0**7
        unbounded = int(self.ceiling_mw / self._unit_mw) + 1
        tails, heads, capacity, length, owner = [], [], [], [], []
        for v, kind in enumerate(table_of):
            times = hulls[kind][0]
            used = 0
            for k in range(len(times) - 1, -1, -1):
                piece = unbounded if k == 0 else round(slopes[kind][k - 1] / self._unit_mw) - used
                if piece <= 0:
                    continue
                used += piece
                tails.append(2 * v)
                heads.append(2 * v + 1)
                capacity.append(piece)
                length.append(int(times[k]))
                owner.append(v)
        source, sink = 2 * graph.size, 2 * graph.size + 1
        first, last = np.flatnonzero(~graph.has_before), np.flatnonzero(~graph.has_after)
        free_tail = np.concatenate([2 * graph.edges[:, 0] + 1, np.full(len(first), source), 2 * last + 1])
        free_head = np.concatenate([2 * graph.edges[:, 1], 2 * first, np.full(len(last), sink)])
        self._tail = np.concatenate([np.array(tails, np.int64), free_tail])
        self._head = np.concatenate([np.array(heads, np.int64), free_head])
        self._length = np.concatenate([np.array(length, np.int64), np.zeros(len(free_tail), np.int64)])
        self._capacity = np.concatenate(
            [np.array(capacity, np.int64), np.full(len(free_tail), unbounded, np.int64)]
        )
        self._owner = np.array(owner, np.int64)
        self._graph, self._source, self._sink = graph, source, sink
        self._longest = np.array([hulls[k][0][-1] for k in table_of])
        self._shortest = np.array([hulls[k][0][0] for k in table_of])
        self._solver = min_cost_flow.SimpleMinCostFlow()
        self._arcs = self._solver.add_arcs_with_capacity_and_unit_cost(
            self._tail, self._head, self._capacity, -self._length
        )
        self.edge_flow_mw: Floats = np.zeros(len(graph.edges))

    def solve(self, price_mw: float) -> tuple[float, Floats, Floats, Floats]:
        """Solve for one price.

        Args:
            price_mw: price of the makespan, up to `ceiling_mw`.

        Returns:
            (the price after rounding to flow units, float64[n] flow of each operation in mW,
            float64[n] durations in us of an optimal relaxed plan, float64[n] its earliest starts).

        Raises:
            ArithmeticError: the flow solver failed.
        """
        value = round(price_mw / self._unit_mw)
        self._solver.set_node_supply(self._source, value)
        self._solver.set_node_supply(self._sink, -value)
        status = self._solver.solve()
        if status != self._solver.OPTIMAL:
            raise ArithmeticError(f"expected an optimal flow for {price_mw:.6g} mW, found status {status}")
        flow = np.asarray(self._solver.flows(self._arcs), np.int64)
        pieces = len(self._owner)
        summed = np.bincount(self._owner, weights=flow[:pieces], minlength=self._graph.size)
        watts = summed.astype(np.float64) * self._unit_mw
        over_edges = flow[pieces : pieces + len(self._graph.edges)]
        self.edge_flow_mw = over_edges.astype(np.float64) * self._unit_mw
        event = self._events(flow)
        duration = event[1:-2:2] - event[0:-2:2]
        duration = np.clip(duration, self._shortest, self._longest)
        return value * self._unit_mw, watts, duration, event[0:-2:2]

    def _events(self, flow: Ints) -> Floats:
        """Event times of an optimal relaxed plan: longest distances in the residual network."""
        forward, backward = flow < self._capacity, flow > 0
        tail = np.concatenate([self._tail[forward], self._head[backward]])
        head = np.concatenate([self._head[forward], self._tail[backward]])
        length = np.concatenate([self._length[forward], -self._length[backward]])
        order = np.argsort(head, kind="stable")
        tail, head, length = tail[order], head[order], length[order]
        start = np.flatnonzero(np.append(True, head[1:] != head[:-1]))
        reached = head[start]
        distance = np.full(2 * self._graph.size + 2, -(2**60), np.int64)
        distance[self._source] = 0
        for _ in range(_MAX_SWEEPS):
            better = np.maximum(distance[reached], np.maximum.reduceat(distance[tail] + length, start))
            if (better == distance[reached]).all():
                return distance.astype(np.float64)
            distance[reached] = better
        raise ArithmeticError(
            "expected event times to settle, found a cycle that grows; the flow is not optimal"
        )
