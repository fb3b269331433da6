"""Makes a plan playable whose launch points wait for each other in a circle.

Spans are planned one by one, and a launch point that is fine by itself can hold up a later collective of
the same stream that an earlier computation needs. Dropping a few launch points breaks the circle; the
collectives keep their budgets and paths.
"""

from __future__ import annotations

import msgspec

from kareus.errors import InputError
from kareus.model.cost import CostModel
from kareus.model.simulate import Simulation, simulate
from kareus.schedule import CollectiveKey, Decision, Schedule
from kareus.trace.types import StepGraph


def without_circles(
    graph: StepGraph, schedule: Schedule, cost: CostModel
) -> tuple[Schedule, Simulation, tuple[CollectiveKey, ...]]:
    """Return a schedule that can be played, its simulation, and the collectives that lost a launch point.

    Launch points are put back one by one in the order of the decisions, each kept where the step can still
    be played, so that none is dropped without need.

    Raises:
        InputError: the plan cannot be played even without launch points.
    """
    kept = [without_launch(d) for d in schedule.decisions]
    simulation = simulate([graph], _with(schedule, kept), cost)
    dropped = []
    for i, decision in enumerate(schedule.decisions):
        if decision.launch is None:
            continue
        before, kept[i] = kept[i], decision
        try:
            simulation = simulate([graph], _with(schedule, kept), cost)
        except InputError:
            kept[i] = before
            dropped.append(decision.collective)
    return _with(schedule, kept), simulation, tuple(dropped)


def without_launch(decision: Decision) -> Decision:
    """Return the decision with its collective started as recorded."""
    return msgspec.structs.replace(decision, launch=None)


def _with(schedule: Schedule, decisions: list[Decision]) -> Schedule:
    return msgspec.structs.replace(schedule, decisions=tuple(d for d in decisions if not d.is_stock))
