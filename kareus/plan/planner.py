"""The main job offline: a recorded step in, a schedule with its proof out.

    plan = make_plan(graph, cost, knobs, goal)
    plan.schedule, plan.solution, plan.frontier

The plan is re-simulated on the whole step (`kareus.model.simulate`) and improved there before it is believed:
where the simulator does not confirm that it beats stock, the schedule that leaves everything as stock is returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from kareus.errors import InfeasibleError, InputError, TimeLimitError
from kareus.model.cost import CostModel
from kareus.model.simulate import Simulation, simulate
from kareus.plan.buckets import Regrouped, best_buckets
from kareus.plan.early import with_early_gathers
from kareus.plan.improve import WITHIN_NOISE, Improved, Score, improve
from kareus.plan.knobs import Knobs
from kareus.plan.lower import lower
from kareus.plan.memory import ExtraMemory, extra_memory
from kareus.plan.outcome import as_stock, effects
from kareus.plan.policies.choose import Point as Choice
from kareus.plan.policies.rules import Rule
from kareus.plan.problem import StepProblem, build_problem, whole, with_limits
from kareus.plan.repair import without_circles
from kareus.plan.worst import worst_case_kept, worst_of
from kareus.schedule import CollectiveKey, Effect, Schedule
from kareus.trace.identity import fingerprint
from kareus.trace.manifest import Gradient
from kareus.trace.types import StepGraph
from solver import Frontier, Objective, Solution, Status, frontier, solve
from solver.check import judge

Progress = Callable[..., Any]

RULE_POINTS = 40  # of the frontier a rule chooses from


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What the user asked for; at most one of the first four.

    Attributes:
        max_slowdown: least energy within this share over stock's time (0.05 is 5 %).
        deadline_us: least energy within this step time.
        energy_budget_j: least time within this energy.
        rule: chooses among the points of the frontier; its step time then is the deadline.
        memory_bytes: for what the plan needs on each GPU beyond stock, None without a limit.
    """

    max_slowdown: float | None = None
    deadline_us: float | None = None
    energy_budget_j: float | None = None
    rule: Rule | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Time and energy of one plan of the step, by the option tables."""

    time_us: int
    energy_j: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Everything `kareus solve` shows.

    Attributes:
        step: the problem. schedule: what to replay. solution: the chosen point with its proof.
        stock, serial: points of the same tables. frontier: None unless asked for.
        stock_simulation, simulation: the whole step, simulated kernel by kernel.
        composition_error: (sum of spans - simulated step) / simulated step, for stock and the solver's plan.
        measured_us: the recorded step.
        improved: what local search on the simulated step added, None where stock was kept.
        memory: what the schedule needs beyond stock.
        kept_stock: why the plan was not used, "" where it is.
    """

    step: StepProblem
    schedule: Schedule
    solution: Solution
    stock: Point
    serial: Point
    frontier: Frontier | None
    stock_simulation: Simulation
    simulation: Simulation
    composition_error: tuple[float, float]
    measured_us: float
    improved: Improved | None
    memory: ExtraMemory
    kept_stock: str = ""


def make_plan(
    graph: StepGraph,
    cost: CostModel,
    knobs: Knobs,
    goal: Goal,
    *,
    gradients: Sequence[Gradient] = (),
    frontier_points: int = 0,
    time_limit_s: float = 10.0,
    deterministic_time: float | None = None,
    robust: bool = False,
    step_spread: float | None = None,
    conditions: dict[str, str] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Plan one step.

    Args:
        graph: the step of the rank planned for. cost: fitted or assumed. knobs: what may be turned.
        goal: limits; none of them means least energy without being slower than stock.
        gradients: of a DDP model in registration order, from the manifest; without them buckets stay as they are.
        frontier_points: also trace the time-energy frontier with about this many points.
        time_limit_s: for the solver. deterministic_time: OR-Tools' machine-independent clock, for the same answer
            on any machine. robust: choose by the 90 % worst case.
        step_spread: relative standard deviation of recorded steps, for the worst case of what was recorded.
        conditions: versions and hardware, written into the schedule.
        progress: called by the solver with best, bound, gap and elapsed time.

    Raises:
        InfeasibleError: no plan meets the limits; names the least possible.
        TimeLimitError: no plan was found in time.
        InputError: the step cannot be planned (no compute, no named collectives).
    """
    fingerprint(graph)  # refuses, before anything is solved, what no schedule could name
    planning = partial(
        _plan_step, cost=cost, knobs=knobs, goal=goal, frontier_points=frontier_points, time_limit_s=time_limit_s,
        deterministic_time=deterministic_time, robust=robust, step_spread=step_spread, conditions=conditions,
        progress=progress,
    )  # fmt: skip
    plan = planning(graph)
    found = best_buckets(graph, gradients, cost) if knobs.ddp_buckets else None
    return plan if found is None else _better(plan, planning(found.graph), found, goal)


def _better(plan: Plan, other: Plan, found: Regrouped, goal: Goal) -> Plan:
    """The plan of the step with other buckets where it does better; compared with stock as recorded."""
    stock, objective = plan.stock_simulation, plan.solution.objective
    excess, value = _score(goal, objective, stock, plan.simulation, plan.memory)
    if _score(goal, objective, stock, other.simulation, other.memory) >= (excess, value * (1 - WITHIN_NOISE)):
        return plan
    note = (
        f"DDP buckets of {found.cap_mb:g} MB: stock's step simulates at {found.stock_us / 1000:.2f} ms, with "
        f"these alone at {found.time_us / 1000:.2f} ms; the bound is that of the step with these buckets"
    )
    if found.graph.world_size > 2:
        note += (
            "; with more than two ranks other buckets add gradients in another order: losses differ from "
            "stock's in the last bits"
        )
    notes = tuple(text for text in other.schedule.notes if text != other.kept_stock)
    schedule = msgspec.structs.replace(
        other.schedule,
        ddp_bucket_cap_mb=found.cap_mb,
        stock=plan.schedule.stock,
        notes=(*notes, note),
    )
    return replace(
        other,
        schedule=schedule,
        stock=plan.stock,
        serial=plan.serial,
        stock_simulation=stock,
        composition_error=(plan.composition_error[0], other.composition_error[1]),
        measured_us=plan.measured_us,
        kept_stock="",
    )


def _plan_step(
    graph: StepGraph,
    *,
    cost: CostModel,
    knobs: Knobs,
    goal: Goal,
    frontier_points: int,
    time_limit_s: float,
    deterministic_time: float | None,
    robust: bool,
    step_spread: float | None,
    conditions: dict[str, str] | None,
    progress: Progress | None,
) -> Plan:
    """Plan a step with the collectives it has; see `make_plan`."""
    step = build_problem(
        graph, cost, knobs, memory_bytes=goal.memory_bytes, robust=robust, step_spread=step_spread
    )
    stock = _point(step, step.stock_choices)
    serial = _point(step, step.serial_choices)
    base = _point(step, step.stock_choices, worst=robust)
    traced = None
    if frontier_points or goal.rule:
        points = frontier_points or RULE_POINTS
        traced = frontier(
            step.problem,
            points=points,
            deterministic_time=deterministic_time,
            robust=robust,
            progress=progress,
        )
        goal = _by_rule(goal, traced, base, robust=robust)
    problem, objective = _limited(step, goal, base)
    solution = solve(
        problem, objective, time_limit_s=time_limit_s, deterministic_time=deterministic_time, tie=WITHIN_NOISE,
        robust=robust, progress=progress,
    )  # fmt: skip
    if solution.status is Status.INFEASIBLE:
        raise InfeasibleError(f"no schedule meets the limits: {solution.reason}")
    if not solution.choices:
        raise TimeLimitError(
            f"no schedule found in {time_limit_s:g} s; allow more with --time-limit, or loosen the limits"
        )
    stock_simulation = simulate([graph], None, cost)
    stock_effect = Effect(time_us=stock.time_us, energy_j=stock.energy_j, source="predicted")
    schedule = lower(
        step, solution.choices, effects(stock_effect, solution, robust=robust), conditions=conditions
    )
    stock_error = stock.time_us / stock_simulation.time_us - 1
    dropped: tuple[CollectiveKey, ...] = ()

    def memory_of(found: Schedule, played: Simulation) -> ExtraMemory:
        return extra_memory(found, graph, cost, stock=stock_simulation, planned=played)

    try:
        simulation = simulate([graph], schedule, cost)
    except InputError:  # launch points that wait for each other in a circle
        schedule, simulation, dropped = without_circles(graph, schedule, cost)
        schedule = msgspec.structs.replace(schedule, notes=(*schedule.notes, _dropped_note(dropped)))
    scheduled_error = solution.time_us / simulation.time_us - 1

    def score(found: Schedule, played: Simulation) -> Score:
        return _score(goal, objective, stock_simulation, played, memory_of(found, played))

    allowed = worst_case_kept(step, solution.choices, WITHIN_NOISE) if robust else None
    improved = improve(step, solution.choices, schedule, score, unlaunched=dropped, allowed=allowed)
    schedule, simulation = _with_gain(improved), improved.simulation
    memory = memory_of(schedule, simulation)
    kept_stock = _why_stock(goal, stock_simulation, simulation, memory)
    if kept_stock:
        solution = as_stock(step, solution, robust=robust)
        schedule = lower(
            step,
            step.stock_choices,
            effects(stock_effect, solution, robust=robust),
            conditions=conditions,
            notes=(kept_stock,),
        )
        simulation = stock_simulation
    schedule, simulation = with_early_gathers(graph, schedule, simulation, cost, knobs.early_gathers, score)
    memory = memory_of(schedule, simulation)
    return Plan(
        step=step,
        schedule=schedule,
        solution=solution,
        stock=stock,
        serial=serial,
        frontier=traced,
        stock_simulation=stock_simulation,
        simulation=simulation,
        composition_error=(stock_error, scheduled_error),
        measured_us=graph.duration_ns / 1000,
        improved=None if kept_stock else improved,
        memory=memory,
        kept_stock=kept_stock,
    )


def _dropped_note(collectives: tuple[CollectiveKey, ...]) -> str:
    return (
        f"{len(collectives)} launch point(s) of the solver's plan would wait for each other in a circle and were "
        f"left as recorded: {', '.join(map(str, collectives))}"
    )


def _score(
    goal: Goal, objective: Objective, stock: Simulation, found: Simulation, memory: ExtraMemory
) -> Score:
    """How a simulated step does by the goal; limits in shares of what they limit."""
    excess = 0.0
    if goal.memory_bytes is not None:
        excess = max(memory.total - goal.memory_bytes, 0) / max(goal.memory_bytes, 1)
    if goal.energy_budget_j is not None:
        return excess + max(found.energy_j / goal.energy_budget_j - 1, 0.0), found.time_us
    limit_us = goal.deadline_us or stock.time_us * (1 + (goal.max_slowdown or 0.0))
    value = found.time_us if objective is Objective.TIME else found.energy_j
    return excess + max(found.time_us / limit_us - 1, 0.0), value


def _with_gain(improved: Improved) -> Schedule:
    """The improved schedule; it says so where it is not the solver's own plan."""
    schedule = improved.schedule
    proof = schedule.proof
    if proof is not None:
        proof = msgspec.structs.replace(proof, close_by=len(improved.finalists))
    notes = schedule.notes
    if improved.gain:
        notes = (
            *notes,
            f"local search on the simulated step gained {improved.gain:.2%} over the solver's plan, whose "
            "figures `predicted` holds",
        )
    return msgspec.structs.replace(schedule, proof=proof, notes=notes)


def _point(step: StepProblem, choices: tuple[int, ...], *, worst: bool = False) -> Point:
    judged = worst_of(step, choices) if worst else judge(replace(step.problem, governed=False), choices)
    return Point(time_us=judged.time_us, energy_j=judged.energy_mj / 1000)


def _limited(step: StepProblem, goal: Goal, stock: Point) -> tuple[Any, Objective]:
    """The problem with the goal's limits, and what to minimise.

    Where the clock is the GPU's own and power is at its limit, energy is power limit x time: least energy
    is least time, and least time is the objective the tables resolve better.
    """
    least_time = step.problem.governed and goal.deadline_us is None and not goal.max_slowdown
    if goal.energy_budget_j is not None:
        return with_limits(step.problem, energy_mj=whole(goal.energy_budget_j * 1000)), Objective.TIME
    if goal.deadline_us is not None:
        return with_limits(step.problem, time_us=whole(goal.deadline_us)), Objective.ENERGY
    limit_us = whole(stock.time_us * (1 + (goal.max_slowdown or 0.0)))
    return with_limits(step.problem, time_us=limit_us), Objective.TIME if least_time else Objective.ENERGY


def _by_rule(goal: Goal, traced: Frontier, stock: Point, *, robust: bool) -> Goal:
    """The goal with its rule, where it has one, turned into the deadline of the point it chooses."""
    if goal.rule is None:
        return goal
    points = [
        Choice(label="", time_s=s.worst_time_us * 1e-6, energy_j=s.worst_energy_mj * 1e-3)
        if robust
        else Choice(label="", time_s=s.time_us * 1e-6, energy_j=s.energy_mj * 1e-3)
        for s in traced.points
    ]
    if not points:
        raise TimeLimitError("no point of the frontier was found in time; allow more with --time-limit")
    chosen = goal.rule(points, stock.time_us * 1e-6)
    return replace(goal, rule=None, deadline_us=math.ceil(chosen.time_s * 1e6 - 1e-3))


def _why_stock(goal: Goal, stock: Simulation, planned: Simulation, memory: ExtraMemory) -> str:
    """A sentence when the simulated plan does not improve on stock in what the goal asks for."""
    if goal.memory_bytes is not None and memory.total > goal.memory_bytes:
        return (
            f"kept as stock: the solver's plan needs {memory.total / 1e6:.0f} MB beyond stock "
            f"({memory.gathered / 1e6:.0f} MB of it gathered parameters in the simulated step), the limit is "
            f"{goal.memory_bytes / 1e6:.0f} MB"
        )
    if goal.energy_budget_j is not None or goal.deadline_us is not None:
        return ""  # the user's limit rules, not stock
    allowed_us = stock.time_us * (1 + (goal.max_slowdown or 0.0))
    if planned.time_us > allowed_us * 1.0005:
        return (
            f"kept as stock: the solver's plan simulates at {planned.time_us / 1000:.2f} ms, "
            f"stock at {stock.time_us / 1000:.2f} ms"
        )
    if planned.energy_j > stock.energy_j * 1.0005 and planned.time_us > stock.time_us * 0.9995:
        return f"kept as stock: the solver's plan simulates at {planned.energy_j:.2f} J, stock at {stock.energy_j:.2f} J"
    return ""
