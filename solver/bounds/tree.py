"""Branch and bound over clock patterns: how often the clock changes, between which levels, and where.

Inside one pattern the hull of reachable (time, energy) is nearly all of it (equal spans choose their options
almost continuously), so its Lagrangian bound is tight; what makes the frontier non-convex is the choice of
pattern. A node is a set of patterns; it is split where the two ends of its best mix differ: in the number of
changes, in a level, in the place of a change, or in a rung too many. The tree is kept between goals, since a
line that bounds a node for one time limit bounds it for all.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from solver.bounds.found import Found
from solver.bounds.hull import Hull, Linear
from solver.bounds.oracle import Oracle, Shape
from solver.bounds.positions import cut_positions, repeats
from solver.plan import Goal, dwell_met, fill, totals_of
from solver.rungs import (
    NONE,
    banned_rungs,
    heaviest_bytes,
    kept_rungs,
    rung_uses,
    rungs_fit,
    usable_rows,
    within_rungs,
)
from solver.tables import Ints, Tables

_MOST_QUERIES = 40  # per node and goal; a chord search needs 4 to 8


@dataclass(eq=False)
class Node:
    """A set of clock patterns with what is known about it; `parted` once its children cover all of it."""

    shape: Shape
    hull: Hull = field(default_factory=Hull)
    children: list[Node] = field(default_factory=list)
    parted: bool = False


class PatternTree:
    """Branch and bound over the clock patterns of one problem.

    Args:
        tables: the problem; its limits are replaced by those of the goal at each search.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.oracle = Oracle(tables)
        self._stretches = repeats(tables.chain)
        levels = self.oracle.levels
        fixed = tables.one_clock or tables.free_switches
        self.root = Node(
            Shape(
                stays=1,
                open_end=not fixed,
                allowed=np.ones((1, levels), np.bool_),
                windows=np.zeros((0, 2), np.int64),
            )
        )

    def search(
        self,
        goal: Goal,
        *,
        gap: float,
        deadline: float,
        accept: Callable[[Ints], bool],
        start: Ints | None = None,
        max_nodes: int = 100_000,
        progress: Callable[[float, float], None] | None = None,
    ) -> Found:
        """Search until the best plan is within `gap` of the bound.

        Args:
            goal: objective and limits. gap: relative. deadline: `time.monotonic()` to stop at.
            accept: judges a plan (rungs, memory, dwell). start: a plan to begin with.
            max_nodes: stop after so many, for the same answer on any machine.
            progress: called with (best value, bound).
        """
        linear = Linear.of(goal)
        best, value = start, np.inf if start is None else float(goal.value(totals_of(self.tables, start)))
        self._refine([self.root], linear)
        order = itertools.count()
        heap = [(self.root.hull.bound(linear), next(order), self.root)]
        least_leaf, nodes, interrupted = np.inf, 0, False
        while heap and heap[0][0] < value * (1 - gap):
            bound, _, node = heap[0]
            if progress is not None:
                progress(value, min(bound, least_leaf))
            if nodes >= max_nodes or time.monotonic() > deadline:
                break
            nodes += 1
            try:
                for picked in self._plans(node, linear, goal):
                    new = float(goal.value(totals_of(self.tables, picked)))
                    if new < value and accept(picked):
                        best, value = picked, new
                if not node.parted:  # what is a leaf for one goal may not be one for another
                    node.parted, node.children = self._split(node, linear)
                self._refine(node.children, linear)
            except KeyboardInterrupt:
                interrupted = True
                break
            heapq.heappop(heap)
            if not node.parted:
                least_leaf = min(least_leaf, bound)
            for child in node.children:
                heapq.heappush(heap, (max(child.hull.bound(linear), bound), next(order), child))
        return Found(
            picked=best,
            value=value,
            bound=min(least_leaf, heap[0][0] if heap else np.inf),
            nodes=nodes,
            interrupted=interrupted,
        )

    def bound_beyond(self, goal: Goal, stays: int) -> float:
        """Lower bound over plans with more than `stays` stays at one clock along the chain."""
        if self.oracle.levels < 2 or not self.root.shape.open_end or stays >= len(self.tables.chain):
            return np.inf
        spans = len(self.tables.chain)
        node = Node(
            Shape(
                stays=stays + 1,
                open_end=True,
                allowed=np.ones((stays + 1, self.oracle.levels), np.bool_),
                windows=np.tile(np.array([1, spans], np.int64), (stays, 1)),
            )
        )
        linear = Linear.of(goal)
        self._refine([node], linear)
        return node.hull.bound(linear)

    def _refine(self, nodes: list[Node], goal: Linear) -> None:
        """Ask for lines until each node's best mix is proven, all nodes of one form together."""
        live = [n for n in nodes if not n.hull.empty]
        for _ in range(_MOST_QUERIES):
            asks: list[tuple[Node, tuple[float, float]]] = []
            for node in live:
                direction, _, _ = node.hull.next_direction(goal)
                if direction is not None:
                    asks.append((node, direction))
            if not asks:
                return
            groups: dict[object, list[tuple[Node, tuple[float, float]]]] = {}
            for ask in asks:
                s = ask[0].shape
                groups.setdefault((s.stays, s.open_end, s.banned, s.required), []).append(ask)
            for group in groups.values():
                places = self._places(group)
                paths = self.oracle.cheapest([(n.shape, *d) for n, d in group], places)
                for (node, direction), path in zip(group, paths, strict=True):
                    node.hull.add(direction, path)
            live = [node for node, _ in asks if not node.hull.empty]

    def _places(self, group: list[tuple[Node, tuple[float, float]]]) -> Ints:
        """Where paths may change clock: anywhere if they may change it any number of times."""
        shape = group[0][0].shape
        if shape.open_end:
            return np.arange(1, len(self.tables.chain) + 1, dtype=np.int64)
        windows = {int(w) for n, _ in group for w in n.shape.windows.ravel()}
        return cut_positions(len(self.tables.chain), self._stretches, shape.stays - 1, windows)

    def _plans(self, node: Node, linear: Linear, goal: Goal) -> list[Ints]:
        """Plans near the node's best mix: its affordable end, filled up."""
        _, (i, j), _ = node.hull.next_direction(linear)
        plans: list[Ints] = []
        shape = node.shape
        for end in {i, j} - {-1}:
            path = node.hull.paths[end]
            picked, banned = self.oracle.picked(path), shape.banned
            if not within_rungs(self.tables, picked):
                uses = rung_uses(self.tables, picked)
                keep = kept_rungs(self.tables, uses, heaviest_bytes(self.tables, picked))
                banned = frozenset(range(len(self.tables.rungs))) - keep
                again = self.oracle.picked_within(path, banned, NONE)
                if again is None:
                    continue
                picked = again
            if goal.met(totals_of(self.tables, picked)):
                plans.append(fill(self.tables, goal, picked, allowed=usable_rows(self.tables, banned)))
        return plans

    def _split(self, node: Node, linear: Linear) -> tuple[bool, list[Node]]:
        """Whether a node can be parted, and its parts; rungs that one end breaks come first, a mix's last."""
        shape = node.shape
        _, (i, j), _ = node.hull.next_direction(linear)
        if i < 0:
            return (True, self._by_changes(shape)) if shape.open_end else (False, [])
        ends = [self.oracle.picked(node.hull.paths[e]) for e in (i, j)]
        if self.tables.coupled:
            for picked in ends:
                if not within_rungs(self.tables, picked):
                    parts = self._by_rung(shape, rung_uses(self.tables, picked))
                    return bool(parts), parts
        if shape.open_end:
            return True, self._by_changes(shape)
        left, right = node.hull.paths[i], node.hull.paths[j]
        for stay, (a, b) in enumerate(zip(left.levels, right.levels, strict=True)):
            if a != b:
                return True, self._by_level(shape, stay, (a + b) // 2)
        widths = [abs(a - b) for a, b in zip(left.cuts, right.cuts, strict=True)]
        if widths and max(widths) > 0:
            at = int(np.argmax(widths))
            return True, self._by_place(shape, at, (left.cuts[at] + right.cuts[at]) // 2)
        if not all(dwell_met(self.tables, end) for end in ends):
            widest = self._widest(shape)
            if widest is not None:
                return True, self._by_place(shape, widest, int(shape.windows[widest].sum()) // 2)
        if not self.tables.coupled:
            return False, []
        uses = rung_uses(self.tables, ends[0]) + rung_uses(self.tables, ends[1])
        heaviest = max(heaviest_bytes(self.tables, end) for end in ends)
        parts = [] if rungs_fit(self.tables, uses, heaviest) else self._by_rung(shape, uses)
        return bool(parts), parts

    def _by_changes(self, shape: Shape) -> list[Node]:
        """Exactly this many changes, or more; a cyclic step cannot change its clock just once."""
        more = shape.stays + (2 if self.oracle.cyclic and shape.stays == 1 else 1)
        nodes = [Node(replace(shape, open_end=False))]
        if more <= len(self.tables.chain) + int(self.oracle.cyclic) and self.oracle.levels > 1:
            spans = len(self.tables.chain)
            windows = np.tile(np.array([1, spans], np.int64), (more - 1, 1))
            allowed = np.ones((more, self.oracle.levels), np.bool_)
            nodes.append(Node(replace(shape, stays=more, allowed=allowed, windows=windows)))
        return nodes

    def _by_level(self, shape: Shape, stay: int, middle: int) -> list[Node]:
        nodes = []
        low = np.arange(self.oracle.levels) <= middle
        tied = (0, shape.stays - 1) if self.oracle.cyclic and stay in (0, shape.stays - 1) else (stay,)
        for part in (low, ~low):
            allowed = shape.allowed.copy()
            for s in tied:
                allowed[s] &= part
            nodes.append(Node(replace(shape, allowed=allowed)))
        return nodes

    def _by_place(self, shape: Shape, at: int, middle: int) -> list[Node]:
        nodes = []
        for low, high in ((shape.windows[at, 0], middle), (middle + 1, shape.windows[at, 1])):
            windows = shape.windows.copy()
            windows[at] = low, high
            part = replace(shape, windows=windows)
            if low <= high and self._long_enough(part):
                nodes.append(Node(part))
        return nodes

    def _by_rung(self, shape: Shape, uses: Ints) -> list[Node]:
        """Without the least used rung still undecided, or with it and all that follows from that."""
        open_rungs = [r for r in np.flatnonzero(uses).tolist() if r not in shape.required]
        if not open_rungs:
            return []
        rung = min(open_rungs, key=lambda r: (int(uses[r]), r))
        required = shape.required | {rung}
        return [
            Node(replace(shape, banned=shape.banned | {rung})),
            Node(replace(shape, required=required, banned=banned_rungs(self.tables, shape.banned, required))),
        ]

    def _widest(self, shape: Shape) -> int | None:
        """The change whose place is least decided, None when all are decided."""
        widths = shape.windows[:, 1] - shape.windows[:, 0]
        return int(np.argmax(widths)) if len(widths) and widths.max() > 0 else None

    def _long_enough(self, shape: Shape) -> bool:
        """Whether every stay between two changes can last, given its windows (always, as far as known)."""
        slowest = self._slowest()
        spans = len(self.tables.chain)
        low = [0, *shape.windows[:, 0].tolist()]
        high = [*shape.windows[:, 1].tolist(), spans]
        longest = [int(slowest[a:b].sum()) for a, b in zip(low, high, strict=True)]
        ends = [longest[0] + longest[-1]] if self.oracle.cyclic else []
        longest = [*ends, *longest[1:-1]]
        return all(length >= self.tables.problem.min_dwell_us for length in longest)

    def _slowest(self) -> Ints:
        most = np.array([int(t.time_us.max()) for t in self.tables.kinds], np.int64)
        return most[self.tables.chain]
