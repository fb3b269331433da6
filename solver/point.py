"""`solve`: one point, and what is possible at best where the limits leave nothing."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from solver.check import LARGEST
from solver.engine import Engine, ProgressFn, Settings
from solver.problem import Limits, Problem
from solver.solution import Objective, Solution, Status

_POWER_S = 4.0  # to narrow down the least average power


def solve(
    problem: Problem,
    objective: Objective = Objective.ENERGY,
    *,
    time_limit_s: float = 10.0,
    deterministic_time: float | None = None,
    seed: int = 0,
    gap: float = 9e-4,
    tie: float = 1e-4,
    robust: bool = False,
    progress: ProgressFn | None = None,
) -> Solution:
    """Return the best plan under the problem's limits with its proven bound.

    Args:
        problem: the instance. objective: what is made small.
        time_limit_s: wall time, after which the best so far comes back with its bound.
        deterministic_time: OR-Tools' machine-independent clock, for the same answer on any machine.
        seed: random seed of the search. gap: relative gap at which CP-SAT may stop; 0 asks for the optimum.
        tie: share of the objective given up for fewer changes from stock; 0 for none.
        robust: optimise and bound the 90 % worst case instead of the nominal figures.
        progress: called whenever the best plan or the bound moves.

    Raises:
        ProblemError: the problem makes no sense. ContradictionError: two methods disagree.
    """
    settings = Settings(
        time_limit_s=time_limit_s,
        deterministic_time=deterministic_time,
        seed=seed,
        gap=gap,
        tie=tie,
        robust=robust,
    )
    engine = Engine(problem, settings)
    solution = engine.solve(objective, problem.limits, time_limit_s=time_limit_s, progress=progress)
    if solution.status is Status.INFEASIBLE:
        solution = replace(solution, reason=explain(problem, settings))
    return solution


def explain(problem: Problem, settings: Settings) -> str:
    """Which limit leaves nothing, and the least possible of it under the others.

    Args:
        problem: an infeasible instance. settings: as for the solve; each question gets a second.
    """
    limits = problem.limits
    found: list[str] = []

    def ask(objective: Objective, free: Limits) -> Solution:
        governed = problem.governed and free.average_power_mw is not None
        engine = Engine(replace(problem, limits=free, governed=governed), replace(settings, tie=0.0, gap=0.0))
        return engine.solve(objective, free, time_limit_s=1.0)

    def least_of(least: Solution, limit: int, unit: str) -> str | None:
        """What is proven of the least value of an axis, None where that does not contradict its limit."""
        by_time = least.objective is Objective.TIME
        value = least.time_us if by_time else least.energy_mj
        if settings.robust:
            value = least.worst_time_us if by_time else least.worst_energy_mj
        if not least.choices or value <= limit:
            return None
        proven = max(min(math.ceil(least.bound), value), limit + 1)  # that nothing meets the limit is proven
        enough = "" if proven == value else f", {value} {unit} is enough"
        return f"at least {proven} {unit} is needed{enough}, the limit is {limit} {unit}"

    if limits.time_us is not None:
        text = least_of(ask(Objective.TIME, replace(limits, time_us=None)), limits.time_us, "us")
        found += [f"time: {text}"] if text else []
    if limits.energy_mj is not None:
        text = least_of(ask(Objective.ENERGY, replace(limits, energy_mj=None)), limits.energy_mj, "mJ")
        found += [f"energy: {text}"] if text else []
    cap = limits.average_power_mw
    if cap is not None and not (problem.governed and found):  # the governor holds its limit by itself
        least = ask(Objective.TIME, replace(limits, average_power_mw=None))
        if least.choices and least.time_us:
            least_mw, proven = _least_power(problem, settings, least, cap)
            words = "about" if proven else "no more than"
            found.append(f"average power: {words} {least_mw} mW is needed, the limit is {cap} mW")
    if limits.memory_bytes is not None and ask(Objective.TIME, replace(limits, memory_bytes=None)).choices:
        least_bytes, proven = _least_memory(problem, settings, limits.memory_bytes)
        words = "at least" if proven else "no more than"
        found.append(
            f"memory: {words} {least_bytes} bytes are needed, the limit is {limits.memory_bytes} bytes"
        )
    return "; ".join(found) or "the limits contradict each other only in combination"


def _least_memory(problem: Problem, settings: Settings, low_bytes: int) -> tuple[int, bool]:
    """Smallest memory (bytes) of any plan under the other limits, and whether less is proven impossible.

    Memory takes few values: what one option needs and a whole number of rungs.

    Args:
        problem, settings: as for `explain`. low_bytes: a limit that no plan meets.
    """
    options = [o for k in set(problem.chain) for o in problem.kinds[k].options]
    rungs = len({rung for o in options for rung in o.rungs})
    sums = {
        m + r * problem.rung_memory_bytes for m in {o.memory_bytes for o in options} for r in range(rungs + 1)
    }
    values = sorted(v for v in sums if v > low_bytes)
    low, high, proven = 0, len(values) - 1, True
    while low < high:
        middle = (low + high) // 2
        limits = replace(problem.limits, memory_bytes=values[middle])
        engine = Engine(replace(problem, limits=limits), replace(settings, tie=0.0, gap=1.0))
        found = engine.solve(Objective.TIME, limits, time_limit_s=1.0)
        if found.choices:
            high = middle
        else:
            proven = proven and found.status is Status.INFEASIBLE
            low = middle + 1
    return values[high], proven


def _least_power(problem: Problem, settings: Settings, known: Solution, low_mw: int) -> tuple[int, bool]:
    """Smallest average power (mW) any plan reaches under the other limits, by bisection to 0.1 % while there is
    time, and whether less is proven impossible.

    Args:
        problem, settings: as for `explain`. known: a plan within the other limits.
        low_mw: a limit that no plan meets.
    """
    energy, time_us = known.energy_mj, known.time_us
    if settings.robust:
        energy, time_us = known.worst_energy_mj, known.worst_time_us
    high_mw, proven = -(-energy * 1_000_000 // time_us), True
    if high_mw > LARGEST:
        return high_mw, False
    until = time.monotonic() + _POWER_S
    while high_mw - low_mw > max(low_mw // 1000, 1):
        if time.monotonic() > until:
            return high_mw, False
        middle = (low_mw + high_mw) // 2
        limits = replace(problem.limits, average_power_mw=middle)
        engine = Engine(replace(problem, limits=limits, governed=False), replace(settings, tie=0.0, gap=1.0))
        status = engine.solve(Objective.TIME, limits, time_limit_s=0.5).status
        if status in (Status.OPTIMAL, Status.FEASIBLE, Status.HEURISTIC):
            high_mw = middle
        else:
            proven = proven and status is Status.INFEASIBLE
            low_mw = middle
    return high_mw, proven
