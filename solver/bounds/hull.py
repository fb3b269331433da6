"""The lower-left hull of what a set of paths can reach in (time, dynamic energy), and bounds read off it.

Every query of the oracle gives a supporting line `a * T + b * D >= value`, which is a proof, and the point
that attains it. For a goal (an objective and at most two limits that bind, all linear in T and D) the lines
bound the objective from below by duality; the points say where another line would help most.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from solver.bounds.oracle import Path
from solver.plan import Goal
from solver.solution import Objective
from solver.tables import Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear:
    """A goal as rows: minimise `cost . (T, D)` under `rows . (T, D) <= limits`, T in us and D in mJ."""

    cost: Floats
    rows: Floats
    limits: Floats

    @classmethod
    def of(cls, goal: Goal) -> Linear:
        """Rows of a goal; the limit on the objective itself is left to the caller's comparison."""
        power = goal.static_mw * 1e-6
        energy = (power, 1.0)
        minimise_time = goal.objective is Objective.TIME
        rows: list[tuple[float, float]] = []
        limits: list[float] = []
        if goal.time_us is not None and not minimise_time:
            rows.append((1.0, 0.0))
            limits.append(float(goal.time_us))
        if goal.energy_mj is not None and minimise_time:
            rows.append(energy)
            limits.append(float(goal.energy_mj))
        if goal.power_mw is not None:
            rows.append((power - goal.power_mw * 1e-6, 1.0))
            limits.append(0.0)
        cost = (1.0, 0.0) if minimise_time else energy
        return cls(
            cost=np.array(cost),
            rows=np.array(rows, np.float64).reshape(-1, 2),
            limits=np.array(limits, np.float64),
        )


@dataclass(eq=False)
class Hull:
    """Lines and points known of one set of paths.

    Attributes:
        lines: (a, b, value) of each query. paths: what attains it, in the same order.
        empty: whether the set holds no path at all.
    """

    lines: list[tuple[float, float, float]] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    empty: bool = False

    def add(self, direction: tuple[float, float], path: Path) -> None:
        """Record an answer of the oracle."""
        if not np.isfinite(path.value):
            self.empty = True
            return
        self.lines.append((*direction, path.value))
        self.paths.append(path)

    def bound(self, goal: Linear) -> float:
        """Largest proven lower bound of the goal's cost, infinite when no path can meet the limits.

        A line proves `s * value - sum(u * limit)` whenever `cost + u . rows = s * (a, b)` with s, u >= 0.
        """
        if self.empty:
            return np.inf
        best = -np.inf
        for a, b, value in self.lines:
            line = np.array([a, b])
            value -= 1e-11 * abs(value)  # sums of floats, rounded down
            best = max(best, _dual(line, value, goal))
            if _refutes(line, value, goal):
                return np.inf
        return best

    def next_direction(self, goal: Linear) -> tuple[tuple[float, float] | None, tuple[int, int], float]:
        """Where to look next: (direction or None when settled, points of the best mix, its cost).

        The best mix of two known points that meets the limits is an upper estimate of the hull's own
        optimum; the normal of their chord is the line that would prove it.
        """
        if not self.lines:
            return tuple(goal.cost.tolist()), (-1, -1), np.inf
        points = np.array([[p.time_us, p.dynamic_mj] for p in self.paths])
        pair, value = _best_mix(points, goal)
        if pair is None:
            return self._toward_limits(points, goal), (-1, -1), np.inf
        i, j = pair
        if i == j:
            j = _steepest(points, i, goal)
        if i == j:
            direction = (float(goal.cost[0]), float(goal.cost[1]))
        else:
            dt, dd = points[j] - points[i]
            direction = (-dd, dt) if dt > 0 or (dt == 0 and dd < 0) else (dd, -dt)
        return (None if self._asked(direction) else direction), (i, j), value

    def _toward_limits(self, points: Floats, goal: Linear) -> tuple[float, float] | None:
        """No mix meets the limits yet: try each limit alone, then chords between what they give."""
        for row in goal.rows:
            if not self._asked((float(row[0]), float(row[1]))):
                return float(row[0]), float(row[1])
        if len(goal.rows) < 2:
            return None
        inner = Linear(cost=goal.rows[0], rows=goal.rows[1:], limits=goal.limits[1:])
        pair, _ = _best_mix(points, inner)
        if pair is None or pair[0] == pair[1]:
            return None
        dt, dd = points[pair[1]] - points[pair[0]]
        direction = (-dd, dt) if dt > 0 else (dd, -dt)
        return None if self._asked(direction) else direction

    def _asked(self, direction: tuple[float, float]) -> bool:
        a, b = direction
        size = np.hypot(a, b)
        if size == 0:
            return True
        return any(
            abs(a * y - b * x) <= 1e-12 * size * np.hypot(x, y) and a * x + b * y > 0
            for x, y, _ in self.lines
        )


def _parallel(x: Floats, y: Floats) -> bool:
    """Whether two vectors point the same way."""
    cross = float(x[0] * y[1] - x[1] * y[0])
    along = float(x[0] * y[0] + x[1] * y[1])
    return along > 0 and abs(cross) <= 1e-12 * along


def _dual(line: Floats, value: float, goal: Linear) -> float:
    """Bound one line gives, alone or with one limit's multiplier."""
    best = -np.inf
    c0, c1 = float(goal.cost[0]), float(goal.cost[1])
    a, b = float(line[0]), float(line[1])
    if _parallel(line, goal.cost):
        best = value * (a * c0 + b * c1) / (a * a + b * b)
    for (r0, r1), limit in zip(goal.rows.tolist(), goal.limits.tolist(), strict=True):
        det = r0 * b - a * r1  # cost + u * row = s * line, solved by Cramer's rule
        if abs(det) <= 1e-14 * float(np.hypot(a, b) * np.hypot(r0, r1)):
            continue
        s, u = (r0 * c1 - c0 * r1) / det, (a * c1 - b * c0) / det
        if s >= 0 and u >= 0:
            best = max(best, s * value - u * limit)
    return best


def _refutes(line: Floats, value: float, goal: Linear) -> bool:
    """Whether the line contradicts the limits: line = u . rows with u >= 0, but value > u . limits."""
    slack = 1e-9 * abs(value)
    for row, limit in zip(goal.rows, goal.limits, strict=True):
        if _parallel(line, row):
            u = float(line @ row) / float(row @ row)
            if value > u * limit + slack:
                return True
    if len(goal.rows) == 2:
        det = float(np.linalg.det(goal.rows))
        if det:
            weights = np.linalg.solve(goal.rows.T, line)
            return bool((weights >= 0).all() and value > float(weights @ goal.limits) + slack)
    return False


def _steepest(points: Floats, at: int, goal: Linear) -> int:
    """For a point on a limit, the point beyond it whose chord gains most; `at` itself where there is none."""
    best, slope = at, 0.0
    for row, limit in zip(goal.rows, goal.limits, strict=True):
        excess = points @ row - limit
        if excess[at] < -1e-9 * (1.0 + abs(limit)):
            continue
        beyond = np.flatnonzero(excess > 1e-9 * (1.0 + abs(limit)))
        for j in beyond.tolist():
            gain = float((points[j] - points[at]) @ goal.cost) / float(excess[j])
            if gain < slope:
                best, slope = j, gain
    return best


def _best_mix(points: Floats, goal: Linear) -> tuple[tuple[int, int] | None, float]:
    """Cheapest convex mix of at most two points within the limits: their indices and its cost."""
    excess = points @ goal.rows.T - goal.limits if len(goal.limits) else np.zeros((len(points), 0))
    slack = 1e-9 * (1.0 + np.abs(goal.limits))
    costs = points @ goal.cost
    inside = (excess <= slack).all(axis=1)
    best: tuple[int, int] | None = None
    value = np.inf
    if inside.any():
        i = int(np.where(inside, costs, np.inf).argmin())
        best, value = (i, i), float(costs[i])
    for r in range(len(goal.limits)):
        low, high = np.flatnonzero(excess[:, r] <= 0), np.flatnonzero(excess[:, r] > 0)
        if not len(low) or not len(high):
            continue
        down = excess[low, r][:, None]
        up = excess[high, r][None, :]
        share = -down / (up - down)
        mixed = costs[low][:, None] * (1 - share) + costs[high][None, :] * share
        for other in range(len(goal.limits)):
            if other != r:
                e = excess[low, other][:, None] * (1 - share) + excess[high, other][None, :] * share
                mixed = np.where(e <= slack[other], mixed, np.inf)
        at = np.unravel_index(int(mixed.argmin()), mixed.shape)
        if mixed[at] < value - 1e-12 * abs(value if np.isfinite(value) else 0.0):
            best, value = (int(low[at[0]]), int(high[at[1]])), float(mixed[at])
    return best, value
