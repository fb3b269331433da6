"""The CostModel: named constants, and the numpy view of them that the physics reads.

A CostModel is made in one of two ways: `from_profile`, fitted to measurements, or `assumed`, for a GPU
nobody has profiled. Both hold the same constants; only their sources and intervals differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kareus.model.assumed import assumed_constants
from kareus.model.constants import (
    CLASS_QUANTITIES,
    CLASSES,
    KIND_QUANTITIES,
    NAMES,
    Constant,
    class_name,
    kind_name,
)
from kareus.trace.types import F64, CollectiveKind, KernelClass

if TYPE_CHECKING:
    from kareus.model.profile import Profile

NUM_CLASSES = max(KernelClass) + 1
NUM_KINDS = max(CollectiveKind) + 1
Z90 = 1.6448536269514722  # standard deviations from the mean to the 95 % quantile: half a 90 % interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Coefficients:
    """Plain numbers of a CostModel, indexed by KernelClass or CollectiveKind; see `constants.NAMES`.

    Arrays of the first group have length NUM_CLASSES, of the second NUM_KINDS.
    """

    power_w: F64
    sm_share: F64
    wave_share: F64
    memory_share: F64
    link_loss: F64
    clock_share: F64
    clock_energy: F64

    gb_per_s_per_cta: F64
    gb_per_s: F64
    knee: F64
    latency_us: F64
    hbm_bytes: F64
    w_per_cta: F64
    j_per_gb: F64
    cta_clock: F64

    copy_gb_per_s: float
    copy_latency_us: float
    copy_hbm_bytes: float
    copy_j_per_gb: float
    copy_link_loss_scale: float

    num_sms: int
    hbm_gb_per_s: float
    link_sharing: float
    static_power_w: float
    power_limit_w: float
    power_window_us: float
    reference_clock_mhz: float
    min_clock_mhz: float
    max_clock_mhz: float
    serialise_us: float
    default_ctas: int


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """What running together costs on one kind of GPU and link.

    Attributes:
        gpu: device name. num_sms: SM count.
        constants: every name of `constants.NAMES`.
        verified: fitted to a profile of this kind of GPU.
        notes: what the data could not identify, for people.
    """

    gpu: str
    num_sms: int
    constants: Mapping[str, Constant]
    verified: bool = False
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        missing = sorted(NAMES.keys() - self.constants.keys())
        unknown = sorted(self.constants.keys() - NAMES.keys())
        if missing or unknown:
            raise ValueError(f"cost model constants: missing {missing}, unknown {unknown}")

    @classmethod
    def assumed(cls, gpu: str, num_sms: int) -> CostModel:
        """Return the model for a GPU known by name only; nothing in it is measured.

        Args:
            gpu: device name, "" unknown. num_sms: SM count, 0 unknown.
        """
        return cls(
            gpu=gpu,
            num_sms=num_sms or 108,
            constants=assumed_constants(gpu, num_sms),
            notes=("no profile: every constant is assumed",),
        )

    @classmethod
    def from_profile(cls, profile: Profile) -> CostModel:
        """Fit the model to a profile, or take the fit stored in it.

        Constants that its samples cannot identify stay assumed, and are noted.

        Raises:
            InputError: the profile has no samples.
        """
        from kareus.model.fit_profile import fit_profile  # both need this class
        from kareus.model.stored_fit import stored_model

        return stored_model(profile) or fit_profile(profile)

    def __getitem__(self, name: str) -> float:
        """Return the value of a constant."""
        return self.constants[name].value

    def with_constants(self, changed: Mapping[str, Constant], *, notes: tuple[str, ...] = ()) -> CostModel:
        """Return a copy with some constants replaced and notes added."""
        return replace(self, constants={**self.constants, **changed}, notes=(*self.notes, *notes))

    def with_values(self, values: Mapping[str, float]) -> CostModel:
        """Return a copy with some values replaced, their sources kept.

        Intervals keep their relative width: a link found a thousand times slower is no less well known.
        Where there is none (a value of 0 or another sign) they keep their absolute one.
        """
        changed = {}
        for name, value in values.items():
            old = self.constants[name]
            factor = value / old.value if old.value else 0.0
            below, above = old.value - old.low, old.high - old.value
            if factor > 0:
                below, above = below * factor, above * factor
            changed[name] = Constant(
                value=value,
                low=value - below,
                high=value + above,
                unit=old.unit,
                source=old.source,
                note=old.note,
            )
        return self.with_constants(changed)

    @cached_property
    def coefficients(self) -> Coefficients:
        """The numbers as arrays, made once."""
        arrays = {q: np.zeros(NUM_CLASSES) for q in CLASS_QUANTITIES}
        for kernel_class in KernelClass:
            name = class_name(kernel_class if kernel_class in CLASSES else KernelClass.OTHER)
            for quantity, array in arrays.items():
                array[kernel_class] = self[f"{name}.{quantity}"]
        kinds = {q: np.zeros(NUM_KINDS) for q in KIND_QUANTITIES}
        for kind in CollectiveKind:
            for quantity, array in kinds.items():
                array[kind] = self[f"{kind_name(kind)}.{quantity}"]
        return Coefficients(
            **arrays,
            **kinds,
            copy_gb_per_s=self["copy_engine.gb_per_s"],
            copy_latency_us=self["copy_engine.latency_us"],
            copy_hbm_bytes=self["copy_engine.hbm_bytes"],
            copy_j_per_gb=self["copy_engine.j_per_gb"],
            copy_link_loss_scale=self["copy_engine.link_loss_scale"],
            num_sms=self.num_sms,
            hbm_gb_per_s=self["hbm_gb_per_s"],
            link_sharing=self["link_sharing"],
            static_power_w=self["static_power_w"],
            power_limit_w=self["power_limit_w"],
            power_window_us=self["power_window_us"],
            reference_clock_mhz=self["reference_clock_mhz"],
            min_clock_mhz=self["min_clock_mhz"],
            max_clock_mhz=self["max_clock_mhz"],
            serialise_us=self["serialise_us"],
            default_ctas=round(self["default_ctas"]),
        )
