"""Constants of the cost model: a value with its interval, unit and where it comes from.

Names are dotted: a class or collective, then the quantity with its unit ("gemm.power_w",
"all_gather.gb_per_s"). `NAMES` lists every one with its unit and meaning, so that a profile, a report and
the model can never disagree about what a number is.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kareus.trace.types import CollectiveKind, KernelClass

Source = Literal["fitted", "assumed", "published"]

CLASSES: tuple[KernelClass, ...] = (
    KernelClass.GEMM,
    KernelClass.ATTENTION,
    KernelClass.MEMORY,
    KernelClass.OPTIMIZER,
    KernelClass.COPY,
    KernelClass.MEMSET,
    KernelClass.OTHER,
)
KINDS: tuple[CollectiveKind, ...] = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_REDUCE,
)

GLOBALS: dict[str, tuple[str, str]] = {
    "static_power_w": ("W", "drawn with a context open and nothing running; paid for the whole step"),
    "power_limit_w": ("W", "board power limit"),
    "power_window_us": ("us", "averaging window of the power limit; 0 is an instantaneous limit"),
    "hbm_gb_per_s": ("GB/s", "memory bandwidth"),
    "link_sharing": (
        "1",
        "how far collectives under way at once share one link: 1 all of it, 0 each has its own",
    ),
    "reference_clock_mhz": ("MHz", "SM clock that the durations and powers refer to"),
    "min_clock_mhz": ("MHz", "lowest SM clock"),
    "max_clock_mhz": ("MHz", "highest SM clock"),
    "clock_switch_us": ("us", "time for a requested clock to take effect"),
    "clock_dwell_us": ("us", "shortest useful stay at one clock"),
    "communicator_mb": ("MB", "device memory of one more communicator"),
    "serialise_us": ("us", "extra time of waiting for a collective at once"),
    "default_ctas": ("CTAs", "thread blocks a collective takes when nobody says otherwise"),
    "time_residual": ("1", "relative standard deviation of measured over predicted time"),
    "energy_residual": ("1", "relative standard deviation of measured over predicted energy"),
}
CLASS_QUANTITIES: dict[str, tuple[str, str]] = {
    "power_w": ("W", "dynamic power running alone at the reference clock"),
    "sm_share": ("1", "share of the run time that stretches with the SMs taken away, smoothly"),
    "wave_share": ("1", "share of the run time that stretches in whole waves of thread blocks"),
    "memory_share": ("1", "share of the run time that stretches with the memory bandwidth taken away"),
    "link_loss": ("1", "share of a thread block's wire bandwidth lost beside this class"),
    "clock_share": ("1", "share of the run time proportional to 1 / SM clock"),
    "clock_energy": ("1", "exponent of dynamic energy in SM clock"),
}
KIND_QUANTITIES: dict[str, tuple[str, str]] = {
    "gb_per_s_per_cta": ("GB/s", "wire bandwidth of one thread block before the link saturates"),
    "gb_per_s": ("GB/s", "wire bandwidth of the saturated link"),
    "knee": ("1", "sharpness of the saturation (exponent of the smooth minimum)"),
    "latency_us": ("us", "duration at zero bytes"),
    "hbm_bytes": ("1", "memory traffic for each byte on the wire"),
    "w_per_cta": ("W", "dynamic power of each resident thread block"),
    "j_per_gb": ("J/GB", "energy of moving a gigabyte over the wire"),
    "cta_clock": ("1", "exponent of a thread block's bandwidth in SM clock"),
}
COPY_ENGINE_QUANTITIES: dict[str, tuple[str, str]] = {
    "gb_per_s": ("GB/s", "wire bandwidth of peer copies"),
    "latency_us": ("us", "duration at zero bytes, barriers included"),
    "hbm_bytes": ("1", "memory traffic for each byte on the wire"),
    "j_per_gb": ("J/GB", "energy of moving a gigabyte over the wire"),
    "link_loss_scale": ("1", "the classes' link_loss applies to copies times this"),
}


def class_name(kernel_class: KernelClass) -> str:
    """Return the prefix of a class's constants, for instance "gemm"."""
    return kernel_class.name.lower()


def kind_name(kind: CollectiveKind) -> str:
    """Return the prefix of a collective's constants; kinds without their own use all_gather's."""
    return kind.name.lower() if kind in KINDS else CollectiveKind.ALL_GATHER.name.lower()


def _all_names() -> dict[str, tuple[str, str]]:
    names = dict(GLOBALS)
    for kernel_class in CLASSES:
        names |= {f"{class_name(kernel_class)}.{q}": v for q, v in CLASS_QUANTITIES.items()}
    for kind in KINDS:
        names |= {f"{kind_name(kind)}.{q}": v for q, v in KIND_QUANTITIES.items()}
    return names | {f"copy_engine.{q}": v for q, v in COPY_ENGINE_QUANTITIES.items()}


NAMES: dict[str, tuple[str, str]] = _all_names()


class Constant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number of the cost model.

    Attributes:
        value: the number used.
        low, high: 90 % interval where fitted; the range believed possible otherwise.
        unit: "W", "GB/s", "1", ...
        source: fitted to a profile, taken from a publication, or assumed.
        note: a sentence on the evidence, or on why the data cannot say.
    """

    value: float
    low: float
    high: float
    unit: str
    source: Source
    note: str = ""

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"interval {self.low}..{self.high} does not hold the value {self.value}")

    @property
    def relative_halfwidth(self) -> float:
        """Half the interval over the value; 0 where the value is 0."""
        return abs((self.high - self.low) / 2 / self.value) if self.value else 0.0


def constant(
    name: str, value: float, *, spread: float = 0.3, source: Source = "assumed", note: str = ""
) -> Constant:
    """Return a constant with a symmetric relative interval and the unit its name has.

    Args:
        name: one of NAMES. value: in that unit. spread: relative half width of the interval.
        source: where it comes from. note: evidence.

    Raises:
        KeyError: an unknown name.
    """
    half = abs(value) * spread
    return Constant(
        value=value, low=value - half, high=value + half, unit=NAMES[name][0], source=source, note=note
    )
