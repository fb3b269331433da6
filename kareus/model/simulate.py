"""Plays a step kernel by kernel through the fluid model, under a schedule, for one or many ranks.

Every op of the graph is a task; a collective moves data once all simulated ranks have arrived. Between two
events nothing changes, so each running op has a constant rate; an event is a task's start or end. The
power balance is closed around the whole step: the step is played at the clock its durations refer to, the
clock at which the average power meets the limit is estimated, and the step is played again there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kareus.errors import InputError
from kareus.model.cost import Coefficients, CostModel
from kareus.model.layout import Layout, layout
from kareus.model.play import Played, play
from kareus.model.power import clock_grid, governed_clock
from kareus.schedule import LaunchPoint, Schedule
from kareus.trace.intervals import intersection_ns, length, union
from kareus.trace.types import F64, I64, CollectiveKind, OpKind, Phase, StepGraph

CLOCK_TOLERANCE = 0.002  # relative: a clock estimate this close to the one played is not played again
MAX_PLAYS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """A predicted step.

    Attributes:
        op_start_ns, op_end_ns: for each rank, int64[ops] relative to the step's start.
        time_us: of the slowest rank. energy_j: of one GPU, the mean over ranks.
        compute_us, comm_us, exposed_comm_us, idle_us: of the slowest rank: some compute running, some
            collective running, a collective and no compute, nothing.
        average_power_w: energy over time. sm_clock_mhz: mean over ranks of the clock compute ran at, weighted by
            its time: what a schedule locks where it locks any, else what the power balance settled at.
        peak_gathered_bytes: most gathered parameters alive at once on any rank.
        measured_us: the recorded step, slowest rank. composition_error: time_us / measured_us - 1; says
            something about the model only where nothing was scheduled.
        region_energy_j: dynamic energy of one GPU by phase ("forward", ..., "communication"), and "static".
        events: events of the last play, all ranks. plays: how often the step was played.
        notes: what of the schedule was not simulated.
    """

    op_start_ns: tuple[I64, ...]
    op_end_ns: tuple[I64, ...]
    time_us: float
    energy_j: float
    compute_us: float
    comm_us: float
    exposed_comm_us: float
    idle_us: float
    average_power_w: float
    sm_clock_mhz: float
    peak_gathered_bytes: int
    measured_us: float
    composition_error: float
    region_energy_j: dict[str, float]
    events: int
    plays: int
    notes: tuple[str, ...] = field(default=())


def simulate(graphs: Sequence[StepGraph], schedule: Schedule | None, cost: CostModel) -> Simulation:
    """Predict a step.

    Args:
        graphs: one step of one or more ranks. Collectives whose peers are not among them meet no delay.
        schedule: what to replay; None or an empty one is stock, as recorded.
        cost: the model; `kareus.model.calibrate.calibrated` fits it to the recording.

    Returns:
        The simulation.

    Raises:
        InputError: no graphs, or a schedule that names what the step does not have.
    """
    if not graphs:
        raise InputError("nothing to simulate: expected at least one rank's step, found none")
    coef = cost.coefficients
    layouts = [layout(graph, schedule, coef.default_ctas) for graph in graphs]
    locked = _locked_clocks(graphs, schedule)
    ceiling = cost["max_clock_mhz"]
    clock = min(cost["reference_clock_mhz"], ceiling)
    plays, played = 0, None
    while plays < MAX_PLAYS:
        played = play(graphs, layouts, cost, [_op_clocks(c, clock) for c in locked])
        plays += 1
        wanted = _settled_clock(graphs, layouts, played, cost, clock, locked)
        if abs(wanted / clock - 1) <= CLOCK_TOLERANCE:
            break
        clock = wanted
    assert played is not None  # MAX_PLAYS is positive
    return _summary(graphs, layouts, played, cost, clock, plays, locked)


def _locked_clocks(graphs: Sequence[StepGraph], schedule: Schedule | None) -> list[F64]:
    """Clock asked for at each op, 0 where none is, one array a rank.

    Steps repeat: what comes before the first region's start runs at the clock of the last one.
    """
    clocks = []
    for graph in graphs:
        regions = [
            region
            for region in (schedule.clocks_of(graph.rank) if schedule is not None else ())
            if region.sm_clock_mhz is not None
        ]
        wanted = np.full(len(graph.ops), (regions[-1].sm_clock_mhz or 0) if regions else 0, np.float64)
        for region in regions:
            wanted[_region_start(graph, region.start) :] = region.sm_clock_mhz
        clocks.append(wanted)
    return clocks


def _region_start(graph: StepGraph, point: LaunchPoint | None) -> int:
    """First op of a unit or module in a phase, or the first op after its last; the ops are sorted by start."""
    if point is None:
        return 0
    ops = graph.ops
    inside = (ops.phase == Phase[point.phase.upper()]) & (ops.stream == graph.compute_stream)
    found = []
    if point.side == "after" and not point.module:  # the root ends with all it contains
        found.append(np.flatnonzero(inside))
    for column, known in {"unit": graph.units, "module": graph.modules}.items():
        if point.module in known:
            found.append(np.flatnonzero(inside & (getattr(ops, column) == known.index(point.module))))
    for rows in found:
        if len(rows):
            return int(rows[0]) if point.side == "before" else int(rows[-1]) + 1
    raise InputError(
        f"rank {graph.rank} step {graph.index}: a clock region starts {point.side} {point.module or 'root'} "
        f"({point.phase}), which the recorded step does not have; solve this trace again"
    )


def _op_clocks(locked: F64, governed: float) -> F64:
    """A lock is an upper limit: the power limit may hold the clock lower."""
    return np.where(locked > 0, np.minimum(locked, governed), governed)


def _settled_clock(
    graphs: Sequence[StepGraph],
    layouts: Sequence[Layout],
    played: Played,
    cost: CostModel,
    clock: float,
    locked: Sequence[F64],
) -> float:
    """Estimate the clock at which the hungriest rank's average power meets the limit.

    Compute on the critical path stretches with the clock; what only communication or nothing occupies
    does not.
    """
    grid = clock_grid(cost, 24)
    coef = cost.coefficients
    clocks = []
    for rank, (graph, tasks) in enumerate(zip(graphs, layouts, strict=True)):
        now = _op_clocks(locked[rank], clock)
        time, dynamic = np.zeros(len(grid)), np.zeros(len(grid))
        work = tasks.work_us
        classes = graph.ops.kernel_class
        busy = np.zeros(len(graph.ops), bool)
        busy[tasks.compute] = True
        communication = played.flow_energy_j[rank]
        spent = (played.end_us[rank] - played.start_us[rank])[busy]
        for i, f in enumerate(grid):
            then = _op_clocks(locked[rank], float(f))
            stretch = _factor(coef, classes, then) / _factor(coef, classes, now)
            time[i] = played.time_us[rank] + (spent * (stretch[busy] - 1)).sum()
            dynamic[i] = communication + _energies(coef, classes, work, then).sum()
        clocks.append(governed_clock(cost, grid, time, dynamic))
    return min(clocks)


def _factor(coef: Coefficients, classes: np.ndarray, clocks: F64) -> F64:
    share = coef.clock_share[classes]
    return np.asarray(1 - share + share * coef.reference_clock_mhz / clocks)


def _energies(coef: Coefficients, classes: np.ndarray, work_us: F64, clocks: F64) -> F64:
    scale = (clocks / coef.reference_clock_mhz) ** coef.clock_energy[classes]
    return np.asarray(coef.power_w[classes] * scale * work_us * 1e-6)


def _summary(
    graphs: Sequence[StepGraph],
    layouts: Sequence[Layout],
    played: Played,
    cost: CostModel,
    clock: float,
    plays: int,
    locked: Sequence[F64],
) -> Simulation:
    coef = cost.coefficients
    starts = tuple(np.round(s * 1e3).astype(np.int64) for s in played.start_us)
    ends = tuple(np.round(e * 1e3).astype(np.int64) for e in played.end_us)
    slowest = int(np.argmax(played.time_us))
    time_us = float(played.time_us[slowest])
    regions: dict[str, float] = {}
    for rank, (graph, tasks) in enumerate(zip(graphs, layouts, strict=True)):
        energy = _energies(coef, graph.ops.kernel_class, tasks.work_us, _op_clocks(locked[rank], clock))
        for phase in Phase:
            name = phase.name.lower()
            regions[name] = regions.get(name, 0.0) + float(energy[graph.ops.phase == phase].sum())
        regions["communication"] = regions.get("communication", 0.0) + played.flow_energy_j[rank]
        regions["static"] = regions.get("static", 0.0) + coef.static_power_w * time_us * 1e-6
    regions = {name: joules / len(graphs) for name, joules in regions.items()}
    energy_j = sum(regions.values())
    measured = max(graph.duration_ns for graph in graphs) / 1e3
    compute_us, comm_us, exposed_us, idle_us = _breakdown(
        graphs[slowest], starts[slowest], ends[slowest], time_us
    )
    notes = tuple(dict.fromkeys(note for tasks in layouts for note in tasks.notes))
    return Simulation(
        op_start_ns=starts,
        op_end_ns=ends,
        time_us=time_us,
        energy_j=energy_j,
        compute_us=compute_us,
        comm_us=comm_us,
        exposed_comm_us=exposed_us,
        idle_us=idle_us,
        average_power_w=energy_j / time_us * 1e6 if time_us > 0 else 0.0,
        sm_clock_mhz=_mean_clock(layouts, played, [_op_clocks(at, clock) for at in locked], clock),
        peak_gathered_bytes=max(peak_gathered_bytes(g, s) for g, s in zip(graphs, starts, strict=True)),
        measured_us=measured,
        composition_error=time_us / measured - 1 if measured > 0 else 0.0,
        region_energy_j=regions,
        events=played.events,
        plays=plays,
        notes=notes,
    )


def _mean_clock(
    layouts: Sequence[Layout], played: Played, clocks: Sequence[F64], settled_mhz: float
) -> float:
    """Mean over ranks of the clock compute ran at, weighted by its time."""
    means = []
    for rank, tasks in enumerate(layouts):
        spent = (played.end_us[rank] - played.start_us[rank])[tasks.compute]
        if spent.sum() > 0:
            means.append(float(np.average(clocks[rank][tasks.compute], weights=spent)))
    return float(np.mean(means)) if means else settled_mhz


def _breakdown(graph: StepGraph, start: I64, end: I64, time_us: float) -> tuple[float, float, float, float]:
    collective = graph.ops.kind == OpKind.COLLECTIVE
    compute = union(start[~collective], end[~collective])
    comm = union(start[collective], end[collective])
    busy = length(union(start, end))
    exposed = length(comm) - intersection_ns(comm, compute)
    return length(compute) / 1e3, length(comm) / 1e3, exposed / 1e3, max(time_us - busy / 1e3, 0.0)


def peak_gathered_bytes(graph: StepGraph, start_ns: I64) -> int:
    """Most bytes of gathered parameters alive at once in a step.

    A unit's parameters live from the start of its all-gather to the start of the first op after the last
    one that belongs to the unit in that phase; the root's, which FSDP does not reshard, to the end.

    Args:
        graph: the step. start_ns: simulated or recorded start of each op, int64[ops].
    """
    ops = graph.ops
    on_compute = np.flatnonzero((ops.stream == graph.compute_stream) & (ops.kind != OpKind.COLLECTIVE))
    changes: list[tuple[int, int]] = []
    horizon = int(start_ns.max(initial=0)) + 1
    for op in np.flatnonzero(ops.kind == OpKind.COLLECTIVE).tolist():
        member = graph.collectives[int(ops.collective[op])]
        if member.kind != CollectiveKind.ALL_GATHER or member.unit not in graph.units:
            continue
        unit = graph.units.index(member.unit)
        same_pass = (ops.unit[on_compute] == unit) & (ops.phase[on_compute] == member.phase)
        users = on_compute[same_pass]
        freed = horizon
        if member.unit and len(users):
            after = on_compute[on_compute > users[-1]]
            freed = int(start_ns[after[0]]) if len(after) else horizon
        changes += [(int(start_ns[op]), member.num_bytes), (max(freed, int(start_ns[op])), -member.num_bytes)]
    alive = peak = 0
    for _, size in sorted(changes):
        alive += size
        peak = max(peak, alive)
    return peak
