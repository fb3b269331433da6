"""What a report shows, as plain data: made by `kareus.report.build`, drawn by every renderer.

Nothing here computes a prediction. Every figure carries a `Source`, and renderers print it beside the
figure, so that nobody can take a predicted millisecond for a measured one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Source(StrEnum):
    """Where a figure comes from."""

    MEASURED = "measured"  # read from a trace, a counter or a replayed step
    PREDICTED = "predicted"  # computed by the cost model
    BOUND = "bound"  # proven: nothing is lower under the same cost model
    ASSUMED = "assumed"  # a constant nobody measured on this machine


class SliceClass(IntEnum):
    """Colour classes of a timeline; the first eight equal `kareus.trace.types.KernelClass`."""

    GEMM = 0
    ATTENTION = 1
    MEMORY = 2
    OPTIMIZER = 3
    COPY = 4
    MEMSET = 5
    COMMUNICATION = 6
    OTHER = 7
    ALL_GATHER = 8
    REDUCE_SCATTER = 9
    ALL_REDUCE = 10

    @property
    def is_communication(self) -> bool:
        """True for what moves data between ranks."""
        return self is SliceClass.COMMUNICATION or self >= SliceClass.ALL_GATHER


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """One piece of work on a track.

    Attributes:
        start_ns, end_ns: relative to the step's start, nanoseconds.
        kind: its colour class.
        label: kernel name or collective.
        detail: what else is known ("24 CTAs, 228.0 MB"), "" nothing.
        op: id that `Timeline.arrows` refer to, -1 none.
    """

    start_ns: int
    end_ns: int
    kind: SliceClass
    label: str
    detail: str = ""
    op: int = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Track:
    """One CUDA stream: its name and its slices, by start."""

    name: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counter:
    """A value over time, drawn as a step function.

    Attributes:
        name: with its unit, "power W". samples: (time_ns relative to the step, value).
    """

    name: str
    samples: tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """One step of one rank, stream by stream.

    Attributes:
        duration_ns: the step's span. tracks: compute first.
        source: measured for a recorded step, predicted for a simulated one.
        counters: power and clock. arrows: (source op, target op) between tracks.
    """

    duration_ns: int
    tracks: tuple[Track, ...]
    source: Source
    counters: tuple[Counter, ...] = ()
    arrows: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """Where one step's time goes, by interval union, microseconds.

    Attributes:
        compute_us: at least one compute kernel runs. comm_us: at least one collective runs.
        exposed_us: a collective runs and no compute does. idle_us: neither runs.
    """

    compute_us: float
    comm_us: float
    exposed_us: float
    idle_us: float

    @property
    def span_us(self) -> float:
        """The whole step."""
        return self.compute_us + self.exposed_us + self.idle_us

    @property
    def overlapped_us(self) -> float:
        """Both run."""
        return self.comm_us - self.exposed_us


@dataclass(frozen=True, kw_only=True, slots=True)
class RankView:
    """One rank's step, up to three times.

    Attributes:
        rank: global rank. before: as recorded. after: under the schedule.
        stock: as the model predicts the recorded step, so that `after` has something of its own kind to be
            compared with; None unknown.
    """

    rank: int
    before: Timeline
    after: Timeline
    stock: Timeline | None = None

    @property
    def sides(self) -> tuple[tuple[str, Timeline], ...]:
        """What there is to draw, with its name, in order."""
        middle = (("Stock as simulated", self.stock),) if self.stock is not None else ()
        return (("Before", self.before), *middle, ("After", self.after))

    @property
    def baseline(self) -> Timeline:
        """What `after` is compared with."""
        return self.before if self.stock is None else self.stock


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """Time and energy of one step of one GPU; energy None where nothing is known about power."""

    time_us: float
    energy_j: float | None
    source: Source


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierPoint:
    """One point of the time-energy plot.

    Attributes:
        time_us, energy_j: of a step. status: solver status text.
        bound_j: proven lower bound of energy at this time, None without proof. gap: relative.
    """

    time_us: float
    energy_j: float
    status: str = ""
    bound_j: float | None = None
    gap: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierView:
    """The frontier and the points people look for; None where a point does not exist.

    Attributes:
        points: fastest first. stock, serialised, chosen, knee, least_energy: marked points.
    """

    points: tuple[FrontierPoint, ...]
    stock: FrontierPoint | None = None
    serialised: FrontierPoint | None = None
    chosen: FrontierPoint | None = None
    knee: FrontierPoint | None = None
    least_energy: FrontierPoint | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionRow:
    """One change, in words, for one collective or a group of collectives that change alike.

    Attributes:
        what: "all-gather, forward, blocks.1 to blocks.7". count: collectives in the group.
        change: what differs from stock. effect: duration and exposure before and after, "" unknown.
    """

    what: str
    count: int
    change: str
    effect: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyRow:
    """One policy of `kareus compare` on the same step.

    Attributes:
        name: of the policy. effect: its time and energy, None where it has no plan (the note says why).
        equal_energy_time_us: its least time without more energy than stock, None unknown.
        needs: what it needs ("root", "profiling 5 min"), () nothing.
        runnable: this machine could carry it out. bound_j: proven bound where there is one.
        note: what the reader should know about the row, "" nothing.
    """

    name: str
    effect: Effect | None
    needs: tuple[str, ...] = ()
    runnable: bool = True
    bound_j: float | None = None
    equal_energy_time_us: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingRow:
    """One emulated cluster: stock and scheduled step under stated links."""

    label: str
    num_ranks: int
    stock: Effect
    scheduled: Effect


@dataclass(frozen=True, kw_only=True, slots=True)
class SolverFacts:
    """How the schedule was found.

    Attributes:
        status: "optimal", "feasible", "heuristic", ... gap: relative to the bound, None without proof.
        certificate: the method that confirmed the bound, "" unknown. solve_s: wall time, None unknown.
    """

    status: str
    gap: float | None = None
    certificate: str = ""
    solve_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportData:
    """Everything on the page.

    Attributes:
        title: the job, "FSDP2 on 2 x NVIDIA H200".
        subject: one line under it: trace, step, ranks.
        verified: the cost model was fitted from a profile of this kind of GPU.
        recorded: the step in the trace, measured. stock: the same step as the model predicts it.
        scheduled: under the schedule, predicted. replayed: the same, measured, None before any replay.
        bound: proven bound, None without proof. solver: None where the schedule came from elsewhere.
        planned: the plan by the solver's option tables, which `bound` belongs to; None unknown.
        before, after: breakdown of the planned rank. stock_parts: of its simulated stock step, None unknown.
        ranks: timelines, the planned rank first.
        frontier: None where there is no energy or no frontier file.
        decisions: changes per collective. settings: changes of the whole step, in words.
        composition_error: simulated stock step against the recorded one, relative.
        parts_error: simulated step against the sum of its separately simulated spans, None unknown.
        assumptions: sentences about what the prediction assumes. notes: from the schedule and the trace.
        policies, scaling: rows of `compare` and of cluster emulation, () none.
        provenance: (what, value) rows: files, digests, versions. commands: to replay, in order.
    """

    title: str
    subject: str
    verified: bool
    recorded: Effect
    stock: Effect
    scheduled: Effect
    replayed: Effect | None = None
    bound: Effect | None = None
    solver: SolverFacts | None = None
    planned: Effect | None = None
    stock_parts: Breakdown | None = None
    before: Breakdown
    after: Breakdown
    ranks: tuple[RankView, ...]
    frontier: FrontierView | None = None
    decisions: tuple[DecisionRow, ...] = ()
    settings: tuple[str, ...] = ()
    composition_error: float
    parts_error: float | None = None
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    policies: tuple[PolicyRow, ...] = ()
    scaling: tuple[ScalingRow, ...] = ()
    provenance: tuple[tuple[str, str], ...] = ()
    commands: tuple[str, ...] = ()
