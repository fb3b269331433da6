"""The Schedule: what a job replays, keyed by hook point, with a fingerprint of the job it is for.

A Schedule is data. It is made by `kareus.plan` from a solved problem, read by `kareus.runtime` inside
training and by `kareus.model.simulate` offline. Nothing in it depends on torch.

Hook points are named by module path, phase and side, so that a schedule can be carried out without
counting kernels: "launch the all-gather of blocks.3 in the forward pass before blocks.2.mlp runs".
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any, Literal

import msgspec

from kareus.errors import InputError
from kareus.schema import encode, read_document, write_document

SCHEMA = "kareus.schedule/1"
MAX_CTAS = 32  # NCCL documents 1..32 thread blocks a communicator (config.max_ctas)


COPY_SLOTS = 2  # of a copy-engine buffer: peers may still read one while the next is filled


class Path(StrEnum):
    """How the bytes of a collective travel."""

    NCCL = "nccl"  # SM kernels of a communicator
    COPY_ENGINE = "copy_engine"  # peer copies over symmetric memory inside one host, no SMs


class CollectiveKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names one collective of a step the same way on every rank and in every tool.

    Attributes:
        kind: "all_gather", "reduce_scatter" or "all_reduce".
        unit: module path of the FSDP unit ("" for the root); "bucket.N" for DDP.
        phase: "forward", "backward" or "optimizer".
        ordinal: 0 for the first collective with this kind, unit and phase in a step, then 1, ...
    """

    kind: Literal["all_gather", "reduce_scatter", "all_reduce"]
    unit: str
    phase: Literal["forward", "backward", "optimizer"]
    ordinal: int = 0

    def __str__(self) -> str:
        tail = f"#{self.ordinal}" if self.ordinal else ""
        return f"{self.kind}({self.unit or 'root'}, {self.phase}){tail}"


class LaunchPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where in the compute stream a collective may start: it waits for the event recorded there.

    Attributes:
        module: module path ("blocks.2.mlp"), or the unit itself.
        phase: the pass in which the point is met.
        side: before or after the module's kernels.
    """

    module: str
    phase: Literal["forward", "backward"]
    side: Literal["before", "after"]

    def __str__(self) -> str:
        return f"{self.side} {self.module or 'root'} ({self.phase})"


class Decision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to one collective; the defaults are what stock PyTorch does.

    Attributes:
        collective: which one.
        num_ctas: SM budget, 1..32 NCCL thread blocks; None leaves NCCL's default.
        path: NCCL kernels or the copy engine.
        launch: start no earlier than this point; None is stock's launch point.
        serialise: wait for it at once, so that nothing runs beside it.
    """

    collective: CollectiveKey
    num_ctas: int | None = None
    path: Path = Path.NCCL
    launch: LaunchPoint | None = None
    serialise: bool = False

    def __post_init__(self) -> None:
        if self.num_ctas is not None and not 1 <= self.num_ctas <= MAX_CTAS:
            raise ValueError(f"num_ctas must be 1..{MAX_CTAS} or null, found {self.num_ctas}")

    @property
    def is_stock(self) -> bool:
        """True when nothing differs from what PyTorch does by itself."""
        return self.num_ctas is None and self.path is Path.NCCL and self.launch is None and not self.serialise


class ClockRegion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clocks and power limit from one hook point on (None leaves a value alone).

    Attributes:
        start: the point the region begins at; None is the whole run.
        sm_clock_mhz, memory_clock_mhz: locked clocks in MHz.
        power_limit_w: board power limit in watts.
    """

    start: LaunchPoint | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_limit_w: float | None = None


class UnitShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One communicated unit of the job: an FSDP unit, or a DDP model's gradients.

    Attributes:
        name: module path of the unit ("" for the root); "" for a DDP model.
        numel: elements of the gathered (FSDP, padded over ranks) or reduced (DDP) flat tensor.
        dtype: "bf16", "fp16", "fp32", ... of that tensor.
    """

    name: str
    numel: int
    dtype: str


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The job a schedule is for. What must match is here; what only warns is in `conditions`.

    Attributes:
        wrapper: "fsdp2" or "ddp".
        world_size: ranks of the job.
        units: communicated units with their sizes, in forward order.
        collectives: the collective sequence of one step, in issue order.
        conditions: GPU name, torch, NCCL and driver versions; a difference warns and re-arms the guard.
    """

    wrapper: Literal["fsdp2", "ddp"]
    world_size: int
    units: tuple[UnitShape, ...]
    collectives: tuple[CollectiveKey, ...] = ()
    conditions: dict[str, str] = {}

    def differences(self, job: Fingerprint) -> list[str]:
        """Return one sentence per difference that forbids replay; empty when the job fits."""
        found = []
        if self.wrapper != job.wrapper:
            found.append(f"schedule is for {self.wrapper}, the model is wrapped with {job.wrapper}")
        if self.world_size != job.world_size:
            found.append(f"schedule is for {self.world_size} ranks, the job has {job.world_size}")
        mine, theirs = {u.name: u for u in self.units}, {u.name: u for u in job.units}
        for name in mine.keys() - theirs.keys():
            found.append(f"schedule names unit {name or 'root'!r}, the model has no such unit")
        for name in theirs.keys() - mine.keys():
            found.append(f"the model has unit {name or 'root'!r}, the schedule does not name it")
        for name in mine.keys() & theirs.keys():
            if (mine[name].numel, mine[name].dtype) != (theirs[name].numel, theirs[name].dtype):
                found.append(
                    f"unit {name or 'root'!r}: schedule has {mine[name].numel} {mine[name].dtype} elements, "
                    f"the model {theirs[name].numel} {theirs[name].dtype}"
                )
        return sorted(found)


class Effect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time and energy of one step of one rank, with where the figures come from.

    Attributes:
        time_us: step time.
        energy_j: energy of one GPU over the step; None where nothing is known about power.
        source: "measured", "predicted" or "bound".
    """

    time_us: float
    energy_j: float | None
    source: Literal["measured", "predicted", "bound"]


class Proof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the solver knows about its plan, by its own option tables; the bound itself is an `Effect`.

    Attributes:
        status: "optimal" (the bound is met within 0.1 %, confirmed by two methods), "feasible" (a plan with a
            bound), "heuristic" (no proof) or "unknown".
        objective: "energy" or "time", what was made small.
        certificate: methods that confirm the bound, joined by "+"; "" without proof.
        gap: (value - bound) / value. solve_s: wall seconds.
        worst_time_us, worst_energy_j: of the plan in the 90 % worst case of the cost model's intervals.
        close_by: plans of other decisions that the tables cannot tell from this one; measure them too.
    """

    status: str
    objective: Literal["energy", "time"]
    certificate: str = ""
    gap: float = 1.0
    solve_s: float = 0.0
    worst_time_us: float | None = None
    worst_energy_j: float | None = None
    close_by: int = 0


class RankClocks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clock regions of some ranks, instead of the schedule's: GPUs that differ, or that wait for slower ones.

    Attributes:
        ranks: global ranks. clocks: their regions; empty leaves their clocks alone.
    """

    ranks: tuple[int, ...]
    clocks: tuple[ClockRegion, ...] = ()


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan for every step of a job. `Schedule.load` and `save` are the only ways to and from a file.

    Attributes:
        fingerprint: the job it is for.
        decisions: one per collective that is not left as stock, in issue order.
        forward_prefetch, backward_prefetch: units gathered ahead; None is stock.
        reduce_scatter_deferral: how many units the reduce-scatter is issued late; 0 is stock.
        early_gathers: FSDP2 units, in forward order, that are updated first inside `optimizer.step()` and whose
            all-gather for the next step starts there; 0 is stock. What is written to parameters between steps
            is seen where torch counts it (not through `.data`): see `kareus.runtime.early_gathers`.
        separate_reduce_scatter_group: give reduce-scatters a communicator of their own.
        ddp_bucket_cap_mb: bucket size for `kareus.ddp_kwargs`; None leaves it alone.
        ddp_bucket_cap_mb_list: sizes of single buckets in order (torch >= 2.11); empty leaves it alone.
        clocks: clock regions; carried out only with `clocks="apply"`.
        rank_clocks: ranks with clock regions of their own. What ranks must share, the order and the groups of
            collectives, has no such part.
        compute_sm_margin: SMs kept free of GEMMs (BLAS carve-out); None is off.
        stock, predicted, bound: effects the solver worked with. proof: how sure it is; None unknown.
        verified: the cost model was fitted from a profile of this kind of GPU.
        notes: sentences for people, shown by `kareus report`.
    """

    fingerprint: Fingerprint
    decisions: tuple[Decision, ...] = ()
    forward_prefetch: int | None = None
    backward_prefetch: int | None = None
    reduce_scatter_deferral: int = 0
    early_gathers: int = 0
    separate_reduce_scatter_group: bool = False
    ddp_bucket_cap_mb: float | None = None
    ddp_bucket_cap_mb_list: tuple[float, ...] = ()
    clocks: tuple[ClockRegion, ...] = ()
    rank_clocks: tuple[RankClocks, ...] = ()
    compute_sm_margin: int | None = None
    stock: Effect | None = None
    predicted: Effect | None = None
    bound: Effect | None = None
    proof: Proof | None = None
    verified: bool = False
    notes: tuple[str, ...] = ()
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        seen: set[CollectiveKey] = set()
        for decision in self.decisions:
            if decision.collective in seen:
                raise ValueError(f"two decisions for {decision.collective}")
            seen.add(decision.collective)
        if self.early_gathers < 0 or (self.early_gathers and self.fingerprint.wrapper != "fsdp2"):
            raise ValueError(
                f"early_gathers: expected 0 or more with fsdp2, 0 with {self.fingerprint.wrapper}, "
                f"found {self.early_gathers}"
            )
        own = [rank for part in self.rank_clocks for rank in part.ranks]
        if len(own) != len(set(own)):
            raise ValueError(f"rank_clocks: expected each rank once, found {sorted(own)}")

    @property
    def every_region(self) -> tuple[ClockRegion, ...]:
        """The clock regions of all ranks, the same on each."""
        return self.clocks + tuple(region for part in self.rank_clocks for region in part.clocks)

    def clocks_of(self, rank: int) -> tuple[ClockRegion, ...]:
        """Return the clock regions of a rank."""
        for part in self.rank_clocks:
            if rank in part.ranks:
                return part.clocks
        return self.clocks

    def decision_for(self, key: CollectiveKey) -> Decision:
        """Return the decision for a collective; stock's where the schedule names none."""
        for decision in self.decisions:
            if decision.collective == key:
                return decision
        return Decision(collective=key)

    def digest(self) -> str:
        """Return a SHA-256 over everything that changes execution (not notes or predictions)."""
        core: dict[str, Any] = msgspec.to_builtins(self)
        for name in ("stock", "predicted", "bound", "proof", "notes", "verified"):
            core.pop(name, None)
        core["fingerprint"].pop("conditions", None)
        return hashlib.sha256(msgspec.json.encode(core, order="deterministic")).hexdigest()

    def to_bytes(self) -> bytes:
        """Return the file's bytes, schema first."""
        document = msgspec.to_builtins(self)
        return encode({"schema": document.pop("schema"), **document})

    def save(self, path: str) -> None:
        """Write the schedule atomically."""
        document = msgspec.to_builtins(self)
        write_document(path, {"schema": document.pop("schema"), **document})

    @classmethod
    def load(cls, path: str) -> Schedule:
        """Read a schedule.

        Raises:
            InputError: not a schedule of this version, an unknown field, a value out of range.
        """
        try:
            return read_document(path, cls, SCHEMA)
        except ValueError as error:  # raised by __post_init__ outside msgspec's wrapping
            raise InputError(f"{path}: {error}") from error
