"""The Profile: what was measured, with spread, counts, conditions and provenance.

A profile is raw material: samples, and at most the fit made from exactly these. `CostModel.from_profile`
reads it. Profiles of one kind of GPU can be merged; samples keep the conditions they were taken under.
"""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from kareus.errors import InputError
from kareus.model.constants import Constant
from kareus.schema import read_document, write_document

SCHEMA = "kareus.profile/1"

KindName = Literal["all_gather", "reduce_scatter", "all_reduce"]
ClassName = Literal["gemm", "attention", "memory", "optimizer", "copy", "memset", "other"]


class Conditions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where samples come from: the same for all samples of one sitting.

    Attributes:
        host_gpu: device name. num_sms: SM count. link: "nvlink", "host-memory", "socket", ...
        world_size: ranks of the job. versions: driver, CUDA, torch, NCCL, ...
        taken: date, ISO. method: how time and energy were measured, for people.
        clocks: "default" where clocks were never touched, else what was locked.
    """

    host_gpu: str
    num_sms: int
    link: str
    world_size: int
    versions: dict[str, str] = {}
    taken: str = ""
    method: str = ""
    clocks: str = "default"


class Beside(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A collective of a sample.

    Attributes:
        kind: what it does. num_bytes: the larger of its input and output message, bytes.
        group_size: ranks. num_ctas: thread blocks; 0 is the copy engine.
    """

    kind: KindName
    num_bytes: int
    group_size: int
    num_ctas: int


class Piece(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Compute of a sample: `count` kernels of one class, each `alone_us` by itself.

    Attributes:
        kernel_class: see KernelClass. alone_us: duration of one, us. count: how many in a row.
        grid: thread blocks of one kernel, 0 unknown.
    """

    kernel_class: ClassName
    alone_us: float
    count: int = 1
    grid: int = 0


class StepSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a whole-step sample ran with; the defaults are stock.

    Attributes:
        workload: key of `Profile.workloads`.
        num_ctas: thread blocks by kind of collective (0: copy engine); missing kinds are stock.
        serialise: kinds waited for at once. absent: kinds replaced by a local stand-in.
        launch: where in its span a gather may start, as a share of the span's compute; None is stock.
        separate: reduce-scatters on a communicator of their own.
    """

    workload: str
    num_ctas: dict[KindName, int] = {}
    serialise: tuple[KindName, ...] = ()
    absent: tuple[KindName, ...] = ()
    launch: float | None = None
    separate: bool = False


class Sample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measured setting.

    Exactly one of these describes it: `compute` alone, `collective` alone, both (together), or `step`.

    Attributes:
        label: for people. conditions: index into `Profile.conditions`.
        compute: kernels run, in order. collective: the collective run. step: whole-step setting.
        time_us: median or mean duration, us. time_spread_us: standard deviation, us.
        energy_j: of one GPU over that duration. energy_spread_j: its standard deviation.
        power_w: mean power where energy was not integrated. sm_clock_mhz: mean actual SM clock, 0 unknown.
        count: repetitions behind the figures. window_s: length of the energy window, s.
        throttle: clock-event reasons seen ("sw_power_cap"). temperature_c: 0 unknown.
        run: samples with the same run were interleaved; only their ratios are free of drift.
    """

    label: str
    conditions: int = 0
    compute: tuple[Piece, ...] = ()
    collective: Beside | None = None
    step: StepSetting | None = None
    time_us: float
    time_spread_us: float = 0.0
    energy_j: float | None = None
    energy_spread_j: float = 0.0
    power_w: float | None = None
    sm_clock_mhz: float = 0.0
    count: int = 1
    window_s: float = 0.0
    throttle: tuple[str, ...] = ()
    temperature_c: float = 0.0
    run: str = ""

    def __post_init__(self) -> None:
        if self.time_us <= 0:
            raise ValueError(f"sample {self.label!r}: time_us must be positive, found {self.time_us}")
        if self.step is not None and (self.compute or self.collective):
            raise ValueError(f"sample {self.label!r}: a step sample has no compute or collective of its own")
        if self.step is None and not self.compute and self.collective is None:
            raise ValueError(f"sample {self.label!r}: says neither what computed nor what communicated")


class SpanCollectiveTemplate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A collective of a workload's span: the message, and positions on the span's compute axis."""

    kind: KindName
    num_bytes: int
    group_size: int
    num_ctas: int
    position: int
    required_at: int


class SpanTemplate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A repeated stretch of a workload's step: `count` times these kernels beside these collectives."""

    name: str
    count: int
    compute: tuple[Piece, ...]
    collectives: tuple[SpanCollectiveTemplate, ...] = ()


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a step sample ran, as spans.

    Attributes:
        spans: in order. idle_us: time of a step in which the GPU does nothing.
        clock_mhz: SM clock that `alone_us` of the pieces refers to; 0 is the profile's reference clock.
        provenance: where kernel durations come from.
    """

    spans: tuple[SpanTemplate, ...]
    idle_us: float = 0.0
    clock_mhz: float = 0.0
    provenance: str = ""


class StoredFit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants fitted to a profile earlier; see `kareus.model.stored_fit`.

    Attributes:
        digest: of the measurements and the model's version. constants: the fitted model. notes: its notes.
    """

    digest: str
    constants: dict[str, Constant]
    notes: tuple[str, ...] = ()


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measurements of one kind of GPU.

    Attributes:
        gpu: device name. num_sms: SM count.
        conditions: the sittings that samples refer to. samples: what was measured.
        workloads: what step samples ran.
        reference_clock_mhz: SM clock that `alone_us` of the pieces refers to, 0 unknown.
        provenance: command or table the profile was made from.
        fit: the cost model fitted to exactly these samples, to save the time of fitting again.
    """

    gpu: str
    num_sms: int
    conditions: tuple[Conditions, ...]
    samples: tuple[Sample, ...]
    workloads: dict[str, Workload] = {}
    reference_clock_mhz: float = 0.0
    provenance: str = ""
    fit: StoredFit | None = None
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        for sample in self.samples:
            if not 0 <= sample.conditions < len(self.conditions):
                raise ValueError(
                    f"sample {sample.label!r}: conditions {sample.conditions} of {len(self.conditions)}"
                )
            if sample.step is not None and sample.step.workload not in self.workloads:
                raise ValueError(
                    f"sample {sample.label!r}: workload {sample.step.workload!r} is not one of "
                    f"{sorted(self.workloads)}"
                )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile atomically.

        Raises:
            InputError: the place cannot be written.
        """
        document = msgspec.to_builtins(self)
        write_document(path, {"schema": document.pop("schema"), **document})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile.

        Raises:
            InputError: not a profile of this version, an unknown field, a value out of range.
        """
        try:
            return read_document(path, cls, SCHEMA)
        except ValueError as error:  # raised by __post_init__ outside msgspec's wrapping
            raise InputError(f"{path}: {error}; correct the sample or measure it again") from error

    def merge(self, other: Profile) -> Profile:
        """Return the samples of both profiles.

        Raises:
            InputError: different GPUs, or one workload name for two workloads.
        """
        if (self.gpu, self.num_sms) != (other.gpu, other.num_sms):
            raise InputError(
                f"cannot merge a profile of {other.gpu} ({other.num_sms} SMs) into one of {self.gpu} "
                f"({self.num_sms} SMs); merge profiles of the same kind of GPU only"
            )
        clocks = {p.reference_clock_mhz for p in (self, other) if p.reference_clock_mhz}
        if len(clocks) > 1:
            raise InputError(
                f"cannot merge profiles whose durations refer to different clocks ({sorted(clocks)} MHz); "
                "measure both at one reference clock"
            )
        for name in self.workloads.keys() & other.workloads.keys():
            if self.workloads[name] != other.workloads[name]:
                raise InputError(
                    f"cannot merge: workload {name!r} differs between the profiles; rename one of them"
                )
        shift = len(self.conditions)
        moved = tuple(msgspec.structs.replace(s, conditions=s.conditions + shift) for s in other.samples)
        return Profile(
            gpu=self.gpu,
            num_sms=self.num_sms,
            conditions=self.conditions + other.conditions,
            samples=self.samples + moved,
            workloads={**self.workloads, **other.workloads},
            reference_clock_mhz=max(self.reference_clock_mhz, other.reference_clock_mhz),
            provenance="; ".join(p for p in (self.provenance, other.provenance) if p),
        )
