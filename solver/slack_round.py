"""From relaxed durations to real options: round, then spend the slack that is left.

Everything runs over all plans at once: arrays are [operation, plan], and the only Python loop is over the
operations in topological order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Choices = NDArray[np.int16]

# Share of the step to the slower option from which on it is taken: (least, width). A width spreads the
# thresholds of like operations evenly, so that the sum along a long path of equal shares is kept.
THRESHOLDS = (
    (0.45, 0.0),
    (0.75, 0.0),
    (1.1, 0.0),
    (0.0, 1.0),
    (0.1, 1.0),
    (0.2, 1.0),
    (0.35, 0.5),
    (0.6, 0.4),
)
HULL_THRESHOLDS = ((0.0, 1.0), (0.1, 0.9), (0.2, 0.8), (0.15, 1.0))
_GOLDEN = 0.6180339887498949
_EPS_US = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Graph:
    """A checked acyclic graph.

    Attributes:
        size: operations. edges: int64[m, 2]. order: topological. before, after: neighbours of each operation.
        has_before, has_after: bool[n].
    """

    size: int
    edges: Ints
    order: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    has_before: NDArray[np.bool_]
    has_after: NDArray[np.bool_]

    @classmethod
    def build(cls, size: int, edges: Ints) -> Graph:
        """Check edges and sort the graph.

        Raises:
            ValueError: an edge leaves 0..size-1, or the graph has a cycle.
        """
        edges = np.asarray(edges, np.int64).reshape(-1, 2)
        if len(edges) and (edges.min() < 0 or edges.max() >= size):
            raise ValueError(
                f"expected edges between operations 0..{size - 1}, found {edges.min()}..{edges.max()}"
            )
        before: list[list[int]] = [[] for _ in range(size)]
        after: list[list[int]] = [[] for _ in range(size)]
        for a, b in edges.tolist():
            after[a].append(b)
            before[b].append(a)
        waiting = [len(b) for b in before]
        order = [v for v in range(size) if not waiting[v]]
        for v in order:
            for w in after[v]:
                waiting[w] -= 1
                if not waiting[w]:
                    order.append(w)
        if len(order) < size:
            stuck = next(v for v in range(size) if waiting[v])
            raise ValueError(f"expected an acyclic graph, operation {stuck} waits for itself")
        return cls(
            size=size,
            edges=edges,
            order=tuple(order),
            before=tuple(map(tuple, before)),
            after=tuple(map(tuple, after)),
            has_before=np.array([bool(b) for b in before], bool),
            has_after=np.array([bool(a) for a in after], bool),
        )

    def starts(self, duration: Floats) -> Floats:
        """float64[n, p]: earliest starts for durations [n, p]."""
        start, finish = np.empty_like(duration), np.empty_like(duration)
        for v in self.order:
            start[v] = _latest(finish, self.before[v])
            finish[v] = start[v] + duration[v]
        return start

    def makespan(self, duration: Floats) -> Floats:
        """float64[p]: longest path for durations [n, p]."""
        finish = np.empty_like(duration)
        for v in self.order:
            finish[v] = _latest(finish, self.before[v]) + duration[v]
        return _latest(finish, tuple(np.flatnonzero(~self.has_after).tolist()))

    def reverse(self) -> Graph:
        """The same graph with every edge turned round."""
        return Graph(
            size=self.size,
            edges=self.edges[:, ::-1],
            order=self.order[::-1],
            before=self.after,
            after=self.before,
            has_before=self.has_after,
            has_after=self.has_before,
        )


def _latest(finish: Floats, rows: tuple[int, ...]) -> Floats:
    if not rows:
        return np.zeros(finish.shape[1])
    latest: Floats = finish[rows[0]]
    for row in rows[1:]:
        latest = np.maximum(latest, finish[row])
    return latest


def round_plans(
    graph: Graph, table_of: Ints, times: list[Floats], energies: list[Floats], duration: Floats
) -> tuple[Floats, Floats, Choices]:
    """Round relaxed plans at several thresholds and spend the slack of each.

    Args:
        graph: the graph. table_of: int64[n]. times, energies: per table, times ascending.
        duration: float64[n, p], relaxed durations in microseconds.

    Returns:
        makespan_us[q], energy_mj[q] and choices[q, n] of q = p x thresholds plans.
    """
    spread = _spread(table_of)[:, None]
    parts = []
    everything = [np.arange(len(t)) for t in times]
    hulls = [convex_hull(t, e) for t, e in zip(times, energies, strict=True)]
    for subset, thresholds in ((hulls, HULL_THRESHOLDS), (everything, THRESHOLDS)):
        down, above, share = _neighbours(table_of, times, subset, duration)
        for least, width in thresholds:
            choices = np.where(share > least + width * spread, above, down)
            parts.append(finish_plans(graph, table_of, times, energies, choices))
    deadline = graph.makespan(duration)
    for turned in (graph, graph.reverse()):
        choices = down
        for quantile in (0.9, 0.75, 0.5, 0.25):
            reach = [_reach(t, e, quantile) for t, e in zip(times, energies, strict=True)]
            limit = np.stack([reach[kind][choices[v]] for v, kind in enumerate(table_of)])
            choices = spend_slack(turned, table_of, times, choices, deadline, limit=limit)
        choices = spend_slack(turned, table_of, times, choices, deadline)
        makespan = graph.makespan(option_durations(table_of, times, choices))
        parts.append((makespan, plan_energy(table_of, energies, choices), choices.T))
    return (
        np.concatenate([p[0] for p in parts]),
        np.concatenate([p[1] for p in parts]),
        np.concatenate([p[2] for p in parts]),
    )


def finish_plans(
    graph: Graph, table_of: Ints, times: list[Floats], energies: list[Floats], choices: Choices
) -> tuple[Floats, Floats, Choices]:
    """Spend the slack of plans [n, p] within their makespans; returns makespan, energy, choices [p, n]."""
    makespan = graph.makespan(option_durations(table_of, times, choices))
    choices = spend_slack(graph, table_of, times, choices, makespan)
    return makespan, plan_energy(table_of, energies, choices), choices.T


def _neighbours(
    table_of: Ints, times: list[Floats], subset: list[Ints], duration: Floats
) -> tuple[Choices, Choices, Floats]:
    """The options of a subset on either side of each duration, and how far between them it lies."""
    down, above = np.empty(duration.shape, np.int16), np.empty(duration.shape, np.int16)
    share = np.zeros(duration.shape)
    for v, kind in enumerate(table_of):
        options = times[kind][subset[kind]]
        floor = np.clip(np.searchsorted(options, duration[v] + _EPS_US, side="right") - 1, 0, None)
        ceiling = np.minimum(floor + 1, len(options) - 1)
        width = options[ceiling] - options[floor]
        np.divide(duration[v] - options[floor], width, out=share[v], where=width > 0)
        down[v], above[v] = subset[kind][floor], subset[kind][ceiling]
    return down, above, share


def _reach(times: Floats, energies: Floats, quantile: float) -> Choices:
    """int16[k]: slowest option reached from each one through steps that save at least a quantile's power."""
    saving = -np.diff(energies) / np.diff(times)
    reach = np.arange(len(times), dtype=np.int16)
    if len(saving):
        least = np.quantile(saving, quantile)
        for k in range(len(saving) - 1, -1, -1):
            if saving[k] >= least:
                reach[k] = reach[k + 1]
    return reach


def _spread(table_of: Ints) -> Floats:
    """float64[n]: an evenly spread sequence in 0..1 over the operations of each table, in order."""
    seen: dict[int, int] = {}
    values = np.empty(len(table_of))
    for v, kind in enumerate(table_of.tolist()):
        rank = seen.get(kind, 0)
        seen[kind] = rank + 1
        values[v] = ((rank + 0.5) * _GOLDEN + kind * _GOLDEN / 2) % 1.0
    return values


def improve(
    graph: Graph,
    table_of: Ints,
    times: list[Floats],
    energies: list[Floats],
    makespan: Floats,
    choices: Choices,
) -> tuple[Floats, Floats, Choices]:
    """Offer each plan the room up to the next plan's makespan, one option slower at a time, from either end.

    Returns the given plans and the new ones together.
    """
    if len(makespan) < 2:
        return makespan, plan_energy(table_of, energies, choices.T), choices
    start = choices.T.copy()
    parts = [(makespan, plan_energy(table_of, energies, start), choices)]
    room = np.append(makespan[1:] - 1.0, makespan[-1])
    last = np.array([len(times[k]) - 1 for k in table_of], np.int16)[:, None]
    for turned in (graph, graph.reverse()):
        limit = np.minimum(start + 1, last)
        slower = spend_slack(turned, table_of, times, start, room, limit=limit)
        slower = spend_slack(turned, table_of, times, slower, room)
        parts.append(
            (
                graph.makespan(option_durations(table_of, times, slower)),
                plan_energy(table_of, energies, slower),
                slower.T,
            )
        )
    return (
        np.concatenate([p[0] for p in parts]),
        np.concatenate([p[1] for p in parts]),
        np.concatenate([p[2] for p in parts]),
    )


def spend_slack(
    graph: Graph,
    table_of: Ints,
    times: list[Floats],
    choices: Choices,
    deadline: Floats,
    *,
    limit: Choices | None = None,
) -> Choices:
    """Slow operations down, in graph order, as far as each plan's deadline allows.

    Args:
        graph: the graph (turned round, the slack goes to late operations first).
        table_of, times: as in `round_plans`. choices: int16[n, p], must meet the deadline.
        deadline: float64[p]. limit: int16[n, p], slowest option an operation may be given.

    Returns:
        int16[n, p], each entry at least the one given.
    """
    room = np.empty(choices.shape)  # latest finish that still leaves the rest its time
    for v in reversed(graph.order):
        latest = deadline
        for w in graph.after[v]:
            latest = np.minimum(latest, room[w] - times[table_of[w]][choices[w]])
        room[v] = latest
    result = choices.copy()
    finish = np.empty(choices.shape)
    for v in graph.order:
        options = times[table_of[v]]
        start = _latest(finish, graph.before[v])
        fits = np.searchsorted(options, room[v] - start + _EPS_US, side="right") - 1
        if limit is not None:
            fits = np.minimum(fits, limit[v])
        result[v] = np.maximum(fits, choices[v])
        finish[v] = start + options[result[v]]
    return result


def option_durations(table_of: Ints, times: list[Floats], choices: Choices) -> Floats:
    """float64[n, p]: durations of plans [n, p] in microseconds."""
    duration = np.empty(choices.shape)
    for v, kind in enumerate(table_of):
        duration[v] = times[kind][choices[v]]
    return duration


def plan_energy(table_of: Ints, energies: list[Floats], choices: Choices) -> Floats:
    """float64[p]: option energies of plans [n, p] in millijoules."""
    total = np.zeros(choices.shape[1])
    for v, kind in enumerate(table_of):
        total += energies[kind][choices[v]]
    return total


def convex_hull(times: Floats, energies: Floats) -> Ints:
    """Indices of the lower convex hull of options in ascending time and descending energy."""
    kept: list[int] = []
    for i in range(len(times)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (energies[b] - energies[a]) * (times[i] - times[b]) < (energies[i] - energies[b]) * (
                times[b] - times[a]
            ):
                break
            kept.pop()
        kept.append(i)
    return np.array(kept, np.int64)
