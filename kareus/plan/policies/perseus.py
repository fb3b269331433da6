"""Perseus: the clock of every forward and backward of a pipeline, so that nothing waits at full power.

Stages wait for one another. Operations off the critical path are slowed down until they are just not late;
beyond that, the whole step is slowed where it pays. A device that waits still draws blocking power, so an
option's cost is its energy less what waiting would have drawn, and the step pays blocking power for its
whole length on every device (Chung et al., SOSP'24).

The frontier comes from `solver.slack`, with a proven bound at every point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.errors import InfeasibleError, InputError, UsageError
from kareus.plan.policies.pipeline import Pipeline, StageOption, StageProfile
from solver.slack import SlackFrontier, SlackProblem, Table, make_table, slack_frontier
from solver.slack_polish import SEARCH_WORK
from solver.slack_round import Graph

BLOCKING_POWER_W = {"A100": 83.64, "A40": 70.38}  # a GPU waiting in an NCCL receive; Perseus artefact
DEFAULT_POINTS = 2000

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelinePlan:
    """One point of the frontier.

    Attributes:
        time_s: step time. energy_j: of all stages, blocking power included.
        bound_j: no plan that meets the deadline this answers needs less. gap: (energy - bound) / energy.
        sm_clock_mhz: clock of each operation of the pipeline, in its order.
    """

    time_s: float
    energy_j: float
    bound_j: float
    gap: float
    sm_clock_mhz: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PerseusFrontier:
    """All plans of a pipeline, fastest first.

    Attributes:
        pipeline: what is planned. blocking_power_w: per device.
        time_s: float64[p]. energy_j: float64[p] with blocking power. gap: float64[p], proven (solver.slack).
        max_clock_time_s, max_clock_energy_j: every operation at its highest clock.
        solve_s: wall time of the search.
    """

    pipeline: Pipeline
    blocking_power_w: float
    time_s: Floats
    energy_j: Floats
    gap: Floats
    max_clock_time_s: float
    max_clock_energy_j: float
    solve_s: float
    _slack: SlackFrontier
    _clocks: tuple[tuple[int, ...], ...]
    _table_of: NDArray[np.int64]

    def plan(self, index: int) -> PipelinePlan:
        """Return one point with its clocks; its bound is that of a deadline equal to its own time."""
        choices = self._slack.choices[index]
        bound = float(self.bound_j(float(self.time_s[index]))[0])
        energy = float(self.energy_j[index])
        return PipelinePlan(
            time_s=float(self.time_s[index]),
            energy_j=energy,
            bound_j=min(bound, energy),
            gap=max(energy - bound, 0.0) / energy,
            sm_clock_mhz=tuple(
                self._clocks[kind][choice] for kind, choice in zip(self._table_of, choices, strict=True)
            ),
        )

    def bound_j(self, deadline_s: Floats | float) -> Floats:
        """Proven least energy of a step whose devices are held, at blocking power, until each deadline."""
        deadline = np.atleast_1d(np.asarray(deadline_s, np.float64))
        static = self.pipeline.num_stages * self.blocking_power_w * deadline
        bound: Floats = self._slack.bound_mj(deadline * 1e6) * 1e-3 + static
        return bound

    @property
    def least_energy_index(self) -> int:
        """Index of the energy minimum, the point T* beyond which slowing down no longer pays."""
        return int(np.argmin(self.energy_j))

    def for_deadline(self, deadline_s: float) -> PipelinePlan:
        """Return the plan of least energy that ends by a deadline.

        Raises:
            InfeasibleError: even the fastest plan is later.
        """
        index = self._slack.index_at(deadline_s * 1e6)
        if index < 0:
            raise InfeasibleError(
                f"no plan meets {deadline_s:.6g} s; the fastest takes {self.time_s[0]:.6g} s; "
                "ask for at least that"
            )
        return self.plan(min(index, self.least_energy_index))

    def for_straggler(self, straggler_s: float) -> PipelinePlan:
        """Return the plan to run while another replica takes `straggler_s` for the step: a table look-up.

        It is the slowest plan of at most min(straggler_s, T*); a straggler faster than the fastest plan
        leaves no slack, so the fastest plan comes back.
        """
        index = max(self._slack.index_at(straggler_s * 1e6), 0)
        return self.plan(min(index, self.least_energy_index))

    def energy_until_j(self, plan: PipelinePlan, end_s: float) -> float:
        """Energy of a plan whose devices then wait, at blocking power, until `end_s`."""
        waiting = max(end_s - plan.time_s, 0.0)
        return plan.energy_j + self.pipeline.num_stages * self.blocking_power_w * waiting


def plan_pipeline(
    pipeline: Pipeline,
    profile: StageProfile,
    *,
    blocking_power_w: float,
    time_unit_s: float | None = None,
    points: int = DEFAULT_POINTS,
    search_work: float = SEARCH_WORK,
    progress: Callable[[int, float], None] | None = None,
) -> PerseusFrontier:
    """Return the whole time-energy frontier of a pipeline.

    Args:
        pipeline: the graph, from `one_f_one_b`, `interleaved` or `data_parallel`.
        profile: options of each (stage, kind); with chunks, an operation costs its stage's profile, so give
            the time and energy of one chunk.
        blocking_power_w: what a waiting device draws.
        time_unit_s: round times *down* to whole units, as lowtime does. Only for comparing with it: plans
            are then promised up to one unit an operation faster than they run. None keeps real times.
        points: deadlines planned for.
        search_work: how much local search narrows the gaps (solver.slack_polish); 0 is quickest.
        progress: called with (prices solved, looseness left).

    Raises:
        InputError: an operation without options. UsageError: a power or unit that makes no sense, or
            OR-Tools is missing.
    """
    if not (math.isfinite(blocking_power_w) and blocking_power_w >= 0):
        raise UsageError(f"blocking power: expected at least 0 W, found {blocking_power_w}")
    if time_unit_s is not None and not time_unit_s > 0:
        raise UsageError(
            f"time unit: expected more than 0 s, found {time_unit_s}; leave it out for real times"
        )
    keys = sorted({(op.stage, op.kind) for op in pipeline.operations})
    missing = [key for key in keys if not profile.get(key)]
    if missing:
        raise InputError(
            f"the stage profile has no options for {missing[:4]}; profile every stage in both directions"
        )
    tables = [_table(profile[key], blocking_power_w, time_unit_s) for key in keys]
    index = {key: i for i, key in enumerate(keys)}
    table_of = np.array([index[op.stage, op.kind] for op in pipeline.operations], np.int64)
    static_power_mw = pipeline.num_stages * blocking_power_w * 1e3
    problem = SlackProblem(
        tables=tuple(tables),
        table_of=table_of,
        edges=np.array(pipeline.edges, np.int64).reshape(-1, 2),
        static_power_mw=static_power_mw,
    )
    try:
        slack = slack_frontier(problem, points=points, search_work=search_work, progress=progress)
    except ImportError as error:
        raise UsageError(
            f"planning a pipeline needs OR-Tools ({error}); pip install 'kareus[solver]'"
        ) from error
    max_time, max_energy = _max_clock(problem, [profile[key] for key in keys], blocking_power_w)
    return PerseusFrontier(
        pipeline=pipeline,
        blocking_power_w=blocking_power_w,
        time_s=slack.time_us * 1e-6,
        energy_j=slack.total_mj() * 1e-3,
        gap=slack.gaps(),
        max_clock_time_s=max_time,
        max_clock_energy_j=max_energy,
        solve_s=slack.solve_s,
        _slack=slack,
        _clocks=tuple(
            tuple(profile[key][origin].sm_clock_mhz for origin in table.origin)
            for key, table in zip(keys, tables, strict=True)
        ),
        _table_of=table_of,
    )


def _table(options: Sequence[StageOption], blocking_w: float, unit_s: float | None) -> Table:
    times = [o.time_s * 1e6 for o in options]
    costs = [(o.energy_j - blocking_w * o.time_s) * 1e3 for o in options]
    table = make_table(times, costs)
    if unit_s is None:
        return table
    # As in lowtime, the fastest option of each unit stands for it: its time is the closest to the unit's.
    unit_us = unit_s * 1e6
    floored: dict[int, int] = {}
    for origin in table.origin.tolist():
        floored.setdefault(max(math.floor(times[origin] / unit_us + 1e-9), 1), origin)
    rows = list(floored.values())
    return Table(
        time_us=np.array([round(units * unit_us) for units in floored], np.int64),
        energy_mj=np.array([costs[row] for row in rows]),
        origin=np.array(rows, np.int64),
    )


def _max_clock(
    problem: SlackProblem, options: list[Sequence[StageOption]], blocking_w: float
) -> tuple[float, float]:
    """Step time and energy with every operation at its highest clock, in measured times."""
    highest = [max(o, key=lambda option: option.sm_clock_mhz) for o in options]
    graph = Graph.build(len(problem.table_of), problem.edges)
    # In the solver's whole microseconds, so that "no slower than this" is a deadline a plan can meet.
    duration = np.ceil(np.array([[highest[kind].time_s * 1e6] for kind in problem.table_of]) - 1e-9) * 1e-6
    time_s = float(graph.makespan(duration)[0])
    own = sum(highest[kind].energy_j - blocking_w * highest[kind].time_s for kind in problem.table_of)
    return time_s, float(own + problem.static_power_mw * 1e-3 * time_s)
