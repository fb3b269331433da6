"""The 90 % worst case of a plan by the option tables, and plans that do not make it worse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kareus.plan.problem import StepProblem
from solver.check import Judged, judge
from solver.governor import settled
from solver.tables import worst_case

Rows = tuple[int, ...]  # setting of each span, a row of its table's `settings`


def worst_of(step: StepProblem, choices: tuple[int, ...]) -> Judged:
    """Return what a plan amounts to at the upper ends of its options' intervals.

    Drawing more, a step whose clock is the GPU's own runs at a lower one.

    Args:
        step: the problem. choices: option of each span.
    """
    problem = worst_case(step.problem)
    return judge(replace(problem, governed=False), settled(problem, choices))


def worst_case_kept(step: StepProblem, choices: tuple[int, ...], noise: float) -> Callable[[Rows], bool]:
    """Return a test of other settings: whether time and energy of their worst case are within noise of a plan's.

    Args:
        step: a problem built to be robust. choices: option of each span of the plan. noise: relative.
    """
    options = [step.tables[k].kind.options[m] for k, m in zip(step.problem.chain, choices, strict=True)]
    levels = np.array([option.clock for option in options])
    rows = tuple(int(step.tables[k].row[m]) for k, m in zip(step.problem.chain, choices, strict=True))
    most_us, most_j = _worst_of_settings(step, rows, levels)

    def kept(other: Rows) -> bool:
        time_us, energy_j = _worst_of_settings(step, other, levels)
        return time_us <= most_us * (1 + noise) and energy_j <= most_j * (1 + noise)

    return kept


def _worst_of_settings(step: StepProblem, rows: Rows, levels: NDArray[np.int64]) -> tuple[float, float]:
    """Worst time (us) and energy (J) of any settings, clock changes left out: they are the plan's."""
    tables = [step.tables[kind] for kind in step.problem.chain]
    time_us = np.stack([t.worst_time_us[:, row] for t, row in zip(tables, rows, strict=True)])
    energy_j = np.stack([t.worst_energy_j[:, row] for t, row in zip(tables, rows, strict=True)])
    static_w, limit_mw = step.problem.static_power_mw / 1e3, step.problem.limits.average_power_mw
    if not step.problem.governed:
        at = np.arange(len(tables)), levels
        total_us = float(time_us[at].sum())
        return total_us, float(energy_j[at].sum()) + static_w * total_us / 1e6
    totals_us = time_us.sum(axis=0)
    totals_j = energy_j.sum(axis=0) + static_w * totals_us / 1e6
    within = np.flatnonzero(totals_j * 1e9 <= (limit_mw or np.inf) * totals_us)
    level = int(within[-1]) if len(within) else 0
    return float(totals_us[level]), float(totals_j[level])
