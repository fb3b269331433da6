"""The whole time-energy frontier, each point with its own proof."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from solver.check import judge
from solver.engine import Engine, ProgressFn, Settings
from solver.point import explain
from solver.problem import Limits, Problem
from solver.solution import Frontier, Objective, Solution, Status

_CLOSEST = 5e-4  # of the step time: points nearer than that are one point to any measurement


def frontier(
    problem: Problem,
    *,
    points: int = 20,
    time_limit_s: float = 40.0,
    deterministic_time: float | None = None,
    seed: int = 0,
    gap: float = 9e-4,
    tie: float = 1e-4,
    robust: bool = False,
    progress: ProgressFn | None = None,
) -> Frontier:
    """Return least energies for time limits from the fastest plan to the cheapest one.

    Args:
        problem: the instance; its limits hold for every point.
        points: time limits asked for, fewer where they would lie within 0.05 % of each other; points that
            coincide are returned once.
        time_limit_s: wall time for all of them together; points it leaves no time for are missing.
        deterministic_time, seed, gap, tie, robust, progress: as in `solve`, for each point.

    Raises:
        ProblemError: the problem makes no sense. ContradictionError: two methods disagree.
    """
    began = time.monotonic()
    settings = Settings(deterministic_time=deterministic_time, seed=seed, gap=gap, tie=tie, robust=robust)
    engine = Engine(problem, settings)
    limits = problem.limits

    def share(left: int) -> float:
        """Seconds for the next of `left` points: thrice an equal share, since most need far less."""
        return max((time_limit_s - (time.monotonic() - began)) / max(left / 3, 1.0), 0.05)

    def value(s: Solution) -> tuple[int, int]:
        return (s.worst_time_us, s.worst_energy_mj) if robust else (s.time_us, s.energy_mj)

    stock = stock_of(problem)
    cheapest = engine.solve(Objective.ENERGY, limits, time_limit_s=share(points + 1), progress=progress)
    if not cheapest.choices:
        reason = explain(problem, settings) if cheapest.status is Status.INFEASIBLE else cheapest.reason
        return Frontier(
            points=(),
            stock_time_us=stock[0],
            stock_energy_mj=stock[1],
            reason=reason,
            interrupted=cheapest.interrupted,
            solve_s=time.monotonic() - began,
        )
    fastest = engine.solve(Objective.TIME, limits, time_limit_s=share(points), progress=progress)
    ends = [s for s in (fastest, cheapest) if s.choices]
    first, last = value(ends[0])[0], value(cheapest)[0]
    found = [cheapest]
    interrupted = cheapest.interrupted or fastest.interrupted
    told_apart = math.ceil((last - first) / (_CLOSEST * first)) + 1 if first else points
    targets = np.linspace(first, last, max(min(points, told_apart), 2)).round().astype(np.int64)[:-1]
    slower = cheapest  # also the answer to every limit its own time meets
    for i, target in enumerate(targets.tolist()[::-1]):
        if interrupted or time.monotonic() - began > time_limit_s:
            break
        if target >= value(slower)[0]:
            continue
        point = engine.solve(
            Objective.ENERGY,
            replace(limits, time_us=int(target)),
            time_limit_s=share(len(targets) - i),
            start=engine.last,
            progress=progress,
        )
        interrupted = point.interrupted
        if point.choices:
            found.append(point)
            slower = point
    return _marked(found, value, stock, interrupted, time.monotonic() - began)


def stock_of(problem: Problem) -> tuple[int, int]:
    """Return time (us) and energy (mJ) of the all-stock plan, whatever the limits."""
    free = replace(problem, limits=Limits(), governed=False)
    judged = judge(free, [problem.kinds[k].stock for k in problem.chain])
    return judged.time_us, judged.energy_mj


def _marked(
    found: list[Solution],
    value: Callable[[Solution], tuple[int, int]],
    stock: tuple[int, int],
    interrupted: bool,
    solve_s: float,
) -> Frontier:
    """Drop dominated points and mark the knee (farthest below the chord) and the least energy."""
    kept: list[Solution] = []
    for s in sorted(found, key=value):
        if not kept or value(s)[1] < value(kept[-1])[1]:
            kept.append(s)
    knee = -1
    if len(kept) >= 3:
        times = np.array([s.time_us for s in kept], np.float64)
        energies = np.array([s.energy_mj for s in kept], np.float64)
        t = (times - times[0]) / (times[-1] - times[0])
        e = (energies - energies[-1]) / (energies[0] - energies[-1])
        below = 1.0 - t - e
        knee = int(below.argmax()) if below.max() > 0 else -1
    return Frontier(
        points=tuple(kept),
        knee=knee,
        least_energy=len(kept) - 1,
        stock_time_us=stock[0],
        stock_energy_mj=stock[1],
        interrupted=interrupted,
        solve_s=solve_s,
    )
