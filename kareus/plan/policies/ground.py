"""Every policy on the same recorded step: the published ones as restrictions of the solver's own problem.

Each policy may turn fewer knobs than the solver, or turns them by a coarser rule; prices, limits, switching
time and power limit are the same for all. So a row shows what a knob is worth on this step, and no policy
can look better than the certified plan through kinder assumptions, only through a larger space.

    stock, serialised       nothing is turned; every collective waits for by compute
    one clock               one SM clock for the whole step
    zeus                    one power limit, in steps of 25 W; the GPU picks the clock
    perseus                 one clock per pass (forward, backward and optimizer), switches charged
    twente                  one clock per span, switches charged; and once with switches free, as published
    kareus '26              budgeted search per span kind over clock, SMs and launch point; one clock a step
    kareus                  the certified solver, with the clock left to the GPU and with clocks
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kareus.model.cost import CostModel
from kareus.plan.knobs import knobs_from
from kareus.plan.options import OptionTable
from kareus.plan.policies import shortfall
from kareus.plan.policies.kareus26 import budget_for, search
from kareus.plan.problem import StepProblem, build_problem, whole
from kareus.trace.types import Phase, StepGraph
from solver import Objective, Problem, Solution, SpanKind, Status, judge, solve

POWER_STEP_W = 25
LOWEST_POWER_SHARE = 0.4  # of the power limit; NVML's lowest settable limit is 200 W of 700 W on an H200


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One row of the comparison; figures are predicted from the option tables, so simulated.

    Attributes:
        name: of the policy.
        time_us, energy_j: least energy within the time allowed, static power included; None where the policy
            has no such plan.
        equal_energy_time_us: least time without more energy than stock, None likewise.
        bound_j: proven least energy of the policy's space within the time allowed, None where nothing is proven.
        needs: what carrying it out needs. missing: what of it this machine lacks, "" where it can run.
        note: what the reader should know about the row. lacks: why time and energy, or the time at equal
            energy, are missing or beyond the time allowed; "" where nothing is.
    """

    name: str
    time_us: int | None
    energy_j: float | None
    equal_energy_time_us: int | None
    bound_j: float | None = None
    needs: tuple[str, ...] = ()
    missing: str = ""
    note: str = ""
    lacks: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """(time_us, energy_mj) of plans the solver came upon, the proven least energy in the time allowed, and why
    there is no plan for a limit."""

    points: tuple[tuple[int, int], ...]
    bound_j: float | None
    lacks: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ground:
    """Stock, the time allowed, and the step's problems with the clock left to the GPU and with clocks."""

    governed: StepProblem
    free: StepProblem
    time_us: int
    limit_us: int
    energy_mj: int
    time_limit_s: float


Progress = Callable[[str], None]


def compare_step(
    graph: StepGraph,
    cost: CostModel,
    capabilities: Mapping[str, Any],
    *,
    max_slowdown: float = 0.0,
    time_limit_s: float = 5.0,
    progress: Progress | None = None,
) -> tuple[Outcome, ...]:
    """Return one row per policy, stock first.

    Args:
        graph: the step. cost: fitted or assumed. capabilities: of the recording machine's manifest.
        max_slowdown: share of stock's time that plans may take longer.
        time_limit_s: for each of the some dozen solves. progress: called with each policy's name.

    Raises:
        InputError: nothing can be planned on the step.
    """
    governed = build_problem(graph, cost, knobs_from(capabilities, clocks="off"))
    free = build_problem(graph, cost, knobs_from(capabilities, clocks="advise"))
    stock = judge(replace(governed.problem, governed=False), governed.stock_choices)
    ground = _Ground(
        governed=governed,
        free=free,
        time_us=stock.time_us,
        limit_us=whole(stock.time_us * (1 + max_slowdown)),
        energy_mj=stock.energy_mj,
        time_limit_s=time_limit_s,
    )
    clocks_missing = _clocks_missing(capabilities)
    makers: tuple[tuple[str, Callable[[_Ground], Outcome]], ...] = (
        ("stock", _stock),
        ("serialised", _serialised),
        ("one clock", _one_clock),
        ("zeus power limit", _zeus),
        ("perseus", _perseus),
        ("twente", _twente),
        ("twente, free switching", _twente_free),
        ("kareus '26", _kareus26),
        ("kareus", _certified),
        ("kareus with clocks", _certified_clocks),
    )
    outcomes = []
    for name, make in makers:
        if progress is not None:
            progress(name)
        outcome = replace(make(ground), name=name)
        if outcome.needs and clocks_missing:
            outcome = replace(outcome, missing=clocks_missing)
        outcomes.append(outcome)
    return tuple(outcomes)


def _clocks_missing(capabilities: Mapping[str, Any]) -> str:
    if capabilities.get("set_clocks", False):
        return ""
    return str(capabilities.get("set_clocks_reason", "clock permission unknown; ask kareus doctor"))


def _stock(ground: _Ground) -> Outcome:
    return Outcome(
        name="",
        time_us=ground.time_us,
        energy_j=ground.energy_mj / 1000,
        equal_energy_time_us=ground.time_us,
    )


def _serialised(ground: _Ground) -> Outcome:
    judged = judge(replace(ground.governed.problem, governed=False), ground.governed.serial_choices)
    return Outcome(
        name="",
        time_us=judged.time_us,
        energy_j=judged.energy_mj / 1000,
        equal_energy_time_us=judged.time_us if judged.energy_mj <= ground.energy_mj else None,
        note="a fixed plan, shown as it is",
        lacks=shortfall.of_points([(judged.time_us, judged.energy_mj)], ground.limit_us, ground.energy_mj),
    )


def _one_clock(ground: _Ground) -> Outcome:
    problem = replace(_stock_only(ground.free), uniform_clock=True)
    return _solved(ground, problem, ("clock permission",))


def _zeus(ground: _Ground) -> Outcome:
    """At each limit, the highest clock whose average power fits."""
    limit_w = (ground.free.problem.limits.average_power_mw or 0) / 1000
    points = [(t, e) for t, e in _uniform_points(ground.free) if not limit_w or e / t * 1e3 <= limit_w]
    if not points:
        lacks = f"no clock keeps within the {limit_w:.0f} W limit"
        return Outcome(name="", time_us=None, energy_j=None, equal_energy_time_us=None, lacks=lacks)
    top_w = limit_w or max(e / t * 1e3 for t, e in points)
    reached = set()
    cap_w = top_w
    while cap_w >= LOWEST_POWER_SHARE * top_w:
        fitting = [p for p in points if p[1] / p[0] * 1e3 <= cap_w]
        if fitting:
            reached.add(min(fitting))
        cap_w -= POWER_STEP_W
    return _ruled(ground, sorted(reached), ("power-limit permission", "a profiling epoch"))


def _perseus(ground: _Ground) -> Outcome:
    """Every pair of clocks for the forward pass and the rest, stock settings otherwise."""
    step = ground.free
    problem = replace(step.problem, governed=False)
    forward = [span.phase is Phase.FORWARD for span in step.spans]
    by_level = _stock_options(step)
    points = []
    for first, second in itertools.product(range(len(problem.clocks_mhz)), repeat=2):
        choices = tuple(
            by_level[kind][first if early else second]
            for kind, early in zip(problem.chain, forward, strict=True)
        )
        judged = judge(problem, choices)
        if not judged.violations:
            points.append((judged.time_us, judged.energy_mj))
    note = "one rank has no pipeline or straggler slack; for those: kareus policies pipeline"
    return replace(_ruled(ground, points, ("clock permission", "a clock sweep per pass")), note=note)


def _twente(ground: _Ground) -> Outcome:
    return _solved(ground, _stock_only(ground.free), ("clock permission", "a clock sweep per kernel"))


def _twente_free(ground: _Ground) -> Outcome:
    problem = replace(_stock_only(ground.free), switch_time_us=0, switch_energy_mj=0, min_dwell_us=0)
    needs = ("clocks that switch in no time", "a clock sweep per kernel")
    return replace(_solved(ground, problem, needs), note="idealised: no hardware switches clocks for free")


def _kareus26(ground: _Ground) -> Outcome:
    step = ground.free
    static_w = step.problem.static_power_mw / 1000
    searched = [_searched(table, static_w) for table in step.tables]
    problem = replace(step.problem, kinds=tuple(s.kind for s in searched), uniform_clock=True, governed=False)
    needs = ("clock permission", "hours of profiling")
    settings, allowed, evaluated = (
        sum(getattr(s, name) for s in searched) for name in ("settings", "allowed", "evaluated")
    )
    note = (
        f"search budget {allowed} of {settings} settings ({100 * allowed / settings:.0f} %) over {len(searched)} "
        f"kinds of span, {evaluated} evaluated; the search proves nothing"
    )
    return replace(_solved(ground, problem, needs), bound_j=None, note=note)


def _certified(ground: _Ground) -> Outcome:
    return _solved(ground, ground.governed.problem, ())


def _certified_clocks(ground: _Ground) -> Outcome:
    """Whoever may set clocks may also leave them to the GPU, so the better of the two is taken."""
    governed, free = (_search(ground, step.problem) for step in (ground.governed, ground.free))
    picked = _picked(ground, (*governed.points, *free.points), ("clock permission",), free.lacks)
    if governed.bound_j is None or free.bound_j is None:
        return picked
    return replace(picked, bound_j=min(governed.bound_j, free.bound_j))


def _solved(ground: _Ground, problem: Problem, needs: tuple[str, ...]) -> Outcome:
    found = _search(ground, problem)
    return replace(_picked(ground, found.points, needs, found.lacks), bound_j=found.bound_j)


def _search(ground: _Ground, problem: Problem) -> _Found:
    """Least energy in the time allowed, and least time with stock's energy."""

    def best(objective: Objective, **limit: int) -> Solution:
        limited = replace(problem, limits=replace(problem.limits, **limit))
        return solve(limited, objective, time_limit_s=ground.time_limit_s)

    energy = best(Objective.ENERGY, time_us=ground.limit_us)
    time = best(Objective.TIME, energy_mj=ground.energy_mj)
    proven = energy.status in (Status.OPTIMAL, Status.FEASIBLE)
    return _Found(
        # Either solve may come upon the better plan for the other's question where it stopped at its limit.
        points=tuple((s.time_us, s.energy_mj) for s in (energy, time) if s.choices),
        bound_j=energy.bound / 1000 if proven else None,
        lacks=shortfall.of_solves(energy, time, ground.limit_us, ground.time_limit_s),
    )


def _ruled(ground: _Ground, points: Sequence[tuple[int, int]], needs: tuple[str, ...]) -> Outcome:
    """The two picks of a rule, of which `points` are all the plans."""
    lacks = shortfall.of_points(points, ground.limit_us, ground.energy_mj) if points else "no plan at all"
    return _picked(ground, points, needs, lacks)


def _picked(
    ground: _Ground, points: Sequence[tuple[int, int]], needs: tuple[str, ...], lacks: str
) -> Outcome:
    """The two picks from an explicit list of (time_us, energy_mj); `lacks` says why one is missing, if one is."""
    in_time = [p for p in points if p[0] <= ground.limit_us]
    in_energy = [p for p in points if p[1] <= ground.energy_mj]
    least = min(in_time, key=lambda p: (p[1], p[0])) if in_time else None
    return Outcome(
        name="",
        time_us=least[0] if least else None,
        energy_j=least[1] / 1000 if least else None,
        equal_energy_time_us=min(in_energy)[0] if in_energy else None,
        needs=needs,
        lacks="" if in_time and in_energy else lacks,
    )


def _stock_options(step: StepProblem) -> list[list[int]]:
    """For each kind, the option index of the stock setting at each clock level."""
    found = []
    for table in step.tables:
        levels = {
            option.clock: i
            for i, option in enumerate(table.kind.options)
            if int(table.row[i]) == table.stock_row
        }
        found.append([levels[level] for level in range(len(step.problem.clocks_mhz))])
    return found


def _stock_only(step: StepProblem) -> Problem:
    """The problem with only the clock left to choose."""
    kinds = []
    for table, indices in zip(step.tables, _stock_options(step), strict=True):
        options = tuple(table.kind.options[i] for i in indices)
        stock = indices.index(table.kind.stock)
        kinds.append(SpanKind(name=table.kind.name, options=options, stock=stock))
    return replace(step.problem, kinds=tuple(kinds), governed=False)


def _uniform_points(step: StepProblem) -> list[tuple[int, int]]:
    """(time_us, energy_mj) of stock at every clock level."""
    problem = replace(step.problem, governed=False)
    by_level = _stock_options(step)
    points = []
    for level in range(len(problem.clocks_mhz)):
        judged = judge(problem, tuple(by_level[kind][level] for kind in problem.chain))
        points.append((judged.time_us, judged.energy_mj))
    return points


@dataclass(frozen=True, kw_only=True, slots=True)
class _Searched:
    """The options the budgeted search found of a kind; counts of settings there, allowed and evaluated."""

    kind: SpanKind
    settings: int
    allowed: int
    evaluated: int


def _searched(table: OptionTable, static_power_w: float) -> _Searched:
    """What the budgeted search finds of one kind, with stock at every clock as the fallback.

    The space is what enumeration kept, which spares the search all dominated settings.
    """
    options = table.kind.options
    features = [
        (
            float(option.clock),
            *map(float, table.settings.num_ctas[row]),
            *map(float, table.settings.position[row]),
            float(table.settings.serialise[row]),
        )
        for option, row in zip(options, table.row, strict=True)
    ]
    budget = budget_for(len(options))
    result = search(
        features,
        lambda i: (max(options[i].time_us, 1) * 1e-6, options[i].energy_mj * 1e-3),
        static_power_w=static_power_w,
        budget=budget,
    )
    stock = {i for i in range(len(options)) if int(table.row[i]) == table.stock_row}
    kept = sorted({int(row) for row in result.rows} | stock)
    return _Searched(
        kind=SpanKind(
            name=table.kind.name,
            options=tuple(options[i] for i in kept),
            stock=kept.index(table.kind.stock),
        ),
        settings=len(options),
        allowed=min(budget.most, len(options)),
        evaluated=len(result.rows),
    )
