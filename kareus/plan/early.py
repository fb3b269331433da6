"""How many of the next step's first all-gathers should start inside the optimizer; judged by the simulator.

The option tables know one step and its spans, not what comes before it, so this is no part of the solved
problem: it is tried on the finished plan, and the plan's bound is that of plans without it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kareus.model.cost import CostModel
from kareus.model.simulate import Simulation, simulate
from kareus.plan.improve import WITHIN_NOISE, Score
from kareus.schedule import Schedule
from kareus.trace.types import StepGraph


def with_early_gathers(
    graph: StepGraph,
    schedule: Schedule,
    simulation: Simulation,
    cost: CostModel,
    most: int,
    score: Callable[[Schedule, Simulation], Score],
) -> tuple[Schedule, Simulation]:
    """Return a schedule with the number of early gathers that scores best, and its simulation.

    Args:
        graph: the step. schedule, simulation: the plan so far. cost: the model.
        most: early gathers allowed; 0 returns the plan as it is.
        score: (excess over limits, value) of a schedule and its simulation, smaller is better.
    """
    best, played = schedule, simulation
    for count in range(1, most + 1):
        tried = msgspec.structs.replace(schedule, early_gathers=count)
        result = simulate([graph], tried, cost)
        excess, value = score(tried, result)
        best_excess, best_value = score(best, played)
        if (excess, value) < (best_excess, best_value * (1 - WITHIN_NOISE)):
            best, played = tried, result
    if best.early_gathers == 0:
        return schedule, simulation
    note = (
        f"the first {best.early_gathers} unit(s) are gathered for the next step inside optimizer.step(): simulated "
        f"{played.time_us / simulation.time_us - 1:+.1%} in time and {played.energy_j / simulation.energy_j - 1:+.1%} "
        "in energy over the same plan without, whose figures and bound `predicted` and `bound` hold"
    )
    return msgspec.structs.replace(best, notes=(*best.notes, note)), played
