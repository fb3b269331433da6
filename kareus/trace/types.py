"""The vocabulary of traces: what a rank did, as numpy columns.

Times are integer nanoseconds since the Unix epoch of the recording host (`Trace.clock_offset_ns` moves
them onto rank 0's clock). Small closed sets are IntEnums, stored as int8 columns; texts are indices
into a tuple of names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
I8 = NDArray[np.int8]
F64 = NDArray[np.float64]


class OpKind(IntEnum):
    """What a GPU work item is, decided by its identity and never by its stream."""

    COMPUTE = 0
    COLLECTIVE = 1
    COPY = 2
    MEMSET = 3


class KernelClass(IntEnum):
    """Kernels that share hardware alike share a class; the cost model has one set of constants each."""

    GEMM = 0
    ATTENTION = 1
    MEMORY = 2  # elementwise, norms, reductions, casts, concatenations: bound by HBM bandwidth
    OPTIMIZER = 3  # multi-tensor parameter updates, also bound by HBM
    COPY = 4
    MEMSET = 5
    COMMUNICATION = 6
    OTHER = 7  # a name the table does not know; counted and reported


class CollectiveKind(IntEnum):
    """Collective operations, by what they do to the data."""

    ALL_GATHER = 0
    REDUCE_SCATTER = 1
    ALL_REDUCE = 2
    BROADCAST = 3
    ALL_TO_ALL = 4
    SEND_RECV = 5
    OTHER = 6


class Phase(IntEnum):
    """The part of a training step an op belongs to."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    OTHER = 3


class EdgeKind(IntEnum):
    """Why one op cannot start before another has ended."""

    STREAM = 0  # the same stream runs its work in order
    LAUNCH = 1  # a kernel starts after the CPU call that launched it
    EVENT = 2  # a stream waits for an event recorded on another stream
    HOST = 3  # the CPU waited for GPU work before it launched more
    COLLECTIVE = 4  # a collective moves data only once every rank has arrived


class Provenance(IntEnum):
    """How an edge is known."""

    TRACED = 0  # a record in the file says so
    INFERRED = 1  # follows from the order of calls
    PRUNED = 2  # was inferred, and dropped because the recording contradicts it
    ASSUMED = 3  # follows from the structure of DDP/FSDP units only


class OpFlag(IntFlag):
    """Oddities of one op, kept so that later stages can weigh it."""

    ORPHAN = 1  # no launch in the window
    CLIPPED = 2  # duration ran past the next op of its stream and was cut
    INFERRED_LAUNCH = 4  # linked by order, its correlation was missing
    GRAPH = 8  # launched by a CUDA or HIP graph
    SAME_STREAM_OVERLAP = 16  # overlaps its predecessor on one stream (programmatic launch)
    ZERO_DURATION = 32
    SERVES_COLLECTIVE = 64  # a copy-engine copy that carries a collective's bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class OpTable:
    """GPU work items of one rank, sorted by start; every column has length `len(table)`.

    Attributes:
        start_ns, end_ns: absolute times, int64.
        stream: CUDA stream id, int64.
        kind, kernel_class, phase: OpKind, KernelClass, Phase, int8.
        name: index into `Trace.names`, int32.
        launch_ns: start of the CPU call that launched it, -1 unknown, int64.
        launch_thread: CPU thread of that call, -1 unknown, int64.
        grid: thread blocks, 0 unknown, int32. block: threads a block, int32.
        num_bytes: bytes moved by a copy, or the message bytes of a collective, 0 unknown, int64.
        unit: index into `Trace.units`, -1 unknown, int32.
        module: index into `Trace.modules` (submodule annotation), -1 unknown, int32.
        collective: row in `Trace.collectives`, -1 for everything else, int32.
        alone_ns: duration without a collective beside it, estimated; equals the recorded one where none
            ran beside it, int64. See `kareus.trace.alone`.
        correlation: CUPTI correlation id, -1 unknown, int64.
        flags: OpFlag, int32.
    """

    start_ns: I64
    end_ns: I64
    stream: I64
    kind: I8
    kernel_class: I8
    phase: I8
    name: I32
    launch_ns: I64
    launch_thread: I64
    grid: I32
    block: I32
    num_bytes: I64
    unit: I32
    module: I32
    collective: I32
    alone_ns: I64
    correlation: I64
    flags: I32

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> I64:
        """Recorded durations, int64."""
        return self.end_ns - self.start_ns

    def take(self, index: NDArray[Any]) -> OpTable:
        """Return the rows chosen by an integer or boolean index."""
        return OpTable(**{name: getattr(self, name)[index] for name in self.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveOp:
    """One collective as one rank saw it.

    Attributes:
        kind: what it does.
        num_bytes: the larger of its input and output message, bytes; 0 unknown.
        dtype: "bf16", "fp32", ... or "" unknown.
        group: ranks of its process group, () unknown. group_size: how many, 0 unknown.
        group_name, group_description: the group's name and what it is for, "" unknown.
        sequence: sequence number in the group, -1 unknown.
        num_ctas: grid of its kernel (SMs it holds), 0 for the copy engine or unknown.
        unit: module path of the FSDP unit, "bucket.N" for DDP, "" for root or unknown.
        phase: pass it was launched in.
        ordinal: counts collectives of the same kind, unit and phase within a step.
        path: "nccl" or "copy_engine".
        numel: elements of the larger message, 0 unknown.
    """

    kind: CollectiveKind
    num_bytes: int = 0
    dtype: str = ""
    group: tuple[int, ...] = ()
    group_name: str = ""
    sequence: int = -1
    num_ctas: int = 0
    unit: str = ""
    phase: Phase = Phase.OTHER
    ordinal: int = 0
    path: str = "nccl"
    numel: int = 0
    group_size: int = 0
    group_description: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessGroup:
    """One process group: its name and the global ranks in it."""

    name: str
    ranks: tuple[int, ...]
    description: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceWarning:
    """Something dropped, repaired or guessed while reading: a stable code, a count and a sentence."""

    code: str
    count: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionLink:
    """How an execution trace was joined to a Kineto file.

    Attributes:
        file: the execution trace. joined_by: "record function id", "external id" or "order of names".
        operators, operators_joined: in the file, and found in the Kineto file.
        kernels_linked: GPU work items launched inside an operator found. collectives_named: that got facts.
    """

    file: str
    joined_by: str
    operators: int
    operators_joined: int
    kernels_linked: int
    collectives_named: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerSamples:
    """NVML samples beside a trace (empty arrays where none were taken); all columns equally long.

    Attributes:
        time_ns: absolute, int64. energy_mj: total-energy counter, mJ. power_mw: instant power, mW.
        sm_clock_mhz: actual SM clock, MHz.
    """

    time_ns: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    energy_mj: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    power_mw: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    sm_clock_mhz: I64 = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Everything one rank's file says that later stages use.

    Attributes:
        path: the file it came from.
        rank, world_size: of the job (world_size 1 where the file does not say).
        gpu: device name, "" unknown. num_sms: SM count, 0 unknown.
        nccl_version, torch_version: "" unknown.
        ops: GPU work items. collectives: rows that `ops.collective` points at.
        names: kernel names. units: FSDP unit paths. modules: annotated submodule paths.
        steps: (start_ns, end_ns) of each step found, in order. steps_from: "profiler", "annotation",
            "optimizer", "repetition" or "window".
        waits: event edges as (source op, destination op, provenance) rows, int64[n, 3].
        process_groups: groups named in the file.
        execution: how an execution trace was joined, None without one.
        power: NVML samples.
        clock_offset_ns: add to this rank's times to get rank 0's clock.
        warnings: what was dropped, repaired or guessed.
    """

    path: str
    rank: int
    world_size: int
    gpu: str = ""
    num_sms: int = 0
    nccl_version: str = ""
    torch_version: str = ""
    ops: OpTable
    collectives: tuple[CollectiveOp, ...]
    names: tuple[str, ...]
    units: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()
    steps_from: str = "window"
    waits: I64 = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    process_groups: tuple[ProcessGroup, ...] = ()
    execution: ExecutionLink | None = None
    power: PowerSamples = field(default_factory=PowerSamples)
    clock_offset_ns: int = 0
    warnings: tuple[TraceWarning, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StepGraph:
    """One step of one rank as ops and typed edges.

    Attributes:
        rank, world_size, num_sms, gpu: of the trace.
        index: which step of the trace, from 0.
        start_ns, end_ns: the step's span.
        ops: the step's rows, `collective` re-pointed into `collectives`.
        collectives: the step's collectives in issue order.
        names, units, modules: as in Trace.
        edges: int64[n, 2] of (source op, destination op).
        edge_kind, edge_provenance: EdgeKind, Provenance, int8[n].
        host_delay_ns: earliest start of each op allowed by the CPU, relative to start_ns, int64[ops].
        compute_stream: stream id that carries the model's compute.
        wrapper: "fsdp2", "ddp" or "".
    """

    rank: int
    world_size: int
    num_sms: int
    gpu: str
    index: int
    start_ns: int
    end_ns: int
    ops: OpTable
    collectives: tuple[CollectiveOp, ...]
    names: tuple[str, ...]
    units: tuple[str, ...]
    modules: tuple[str, ...]
    edges: I64
    edge_kind: I8
    edge_provenance: I8
    host_delay_ns: I64
    compute_stream: int
    wrapper: str = ""

    @property
    def duration_ns(self) -> int:
        """The step's span in nanoseconds."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanCollective:
    """A collective as a span sees it.

    Attributes:
        row: index into `StepGraph.collectives`.
        ready: earliest position: it may start once `ready` compute ops of the span have run (its data).
        stock: position stock used. required_at: position that needs its result, len(compute) the span's end, also
            where only a later span does (see `kareus.trace.spans`).
        positions: positions a launch point exists for (named in `points`), ascending.
        points: one launch point text "side|module|phase" for each of `positions`; "" is stock's.
        blocks: compute waits for it where stock starts it, on a device without streams.
        may_run_on: nothing in the span waits for it, only a later one does.
    """

    row: int
    ready: int
    stock: int
    required_at: int
    positions: tuple[int, ...]
    points: tuple[str, ...]
    blocks: bool = False
    may_run_on: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A stretch of the compute stream between two waits, and the collectives that may run beside it.

    The unit of decision: what is chosen inside one span does not change another, except through power,
    the clock and collectives that outlast it.

    Attributes:
        index: position in the step. name: "forward blocks.3".
        phase, unit: where it lies.
        compute: op rows of the compute stream in order, int64[n].
        collectives: those that may run beside it, in issue order.
        signature: equal spans (same kernels, grids, collectives) share it, and so share options.
    """

    index: int
    name: str
    phase: Phase
    unit: str
    compute: I64
    collectives: tuple[SpanCollective, ...]
    signature: str
