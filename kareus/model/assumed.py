"""Constants for GPUs nobody has profiled yet: data-sheet figures and cautious guesses, marked as such.

They exist so that a plan can be looked at before anything was measured. Plans made from them are called
unverified, and the intervals are wide on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass

from kareus.model.constants import CLASSES, KINDS, Constant, class_name, constant, kind_name


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sheet:
    """Data-sheet figures of a GPU family.

    Attributes:
        limit_w, static_w: board limit and idle-with-context power, W.
        hbm: memory bandwidth, GB/s. link: one-way GPU-to-GPU wire bandwidth, GB/s.
        per_cta: wire bandwidth of one NCCL thread block, GB/s.
        clocks: lowest and highest SM clock, MHz. evidence: where the figures come from.
    """

    limit_w: float
    static_w: float
    hbm: float
    link: float
    per_cta: float
    clocks: tuple[float, float]
    evidence: str


_SHEETS: dict[str, _Sheet] = {
    "H200": _Sheet(
        limit_w=700, static_w=123, hbm=4800, link=257, per_cta=15.5, clocks=(345, 1980),
        evidence="H200 data sheet; link and idle power as measured once on a pair over NV18",
    ),
    "H100": _Sheet(
        limit_w=700, static_w=115, hbm=3350, link=250, per_cta=15, clocks=(345, 1980),
        evidence="H100 SXM data sheet; the rest by likeness to H200",
    ),
    "A100": _Sheet(
        limit_w=400, static_w=84, hbm=2039, link=200, per_cta=16, clocks=(210, 1410),
        evidence="A100 SXM data sheet; static power as published by Perseus (83.6 W)",
    ),
    "A40": _Sheet(
        limit_w=300, static_w=70, hbm=696, link=20, per_cta=10, clocks=(210, 1740),
        evidence="A40 data sheet; static power as published by Perseus (70.4 W)",
    ),
}  # fmt: skip

# Power as a share of (limit - static), then the other quantities in the order of _CLASS_ORDER.
_CLASS_GUESS: dict[str, tuple[float, ...]] = {
    "gemm": (1.20, 0.6, 0.3, 0.5, 0.30, 0.55, 0.9),
    "attention": (0.95, 0.7, 0.1, 0.2, 0.15, 0.85, 0.9),
    "memory": (0.80, 0.0, 0.0, 1.0, 0.20, 0.10, 0.4),
    "optimizer": (0.80, 0.0, 0.0, 1.0, 0.20, 0.10, 0.4),
    "copy": (0.60, 0.0, 0.0, 1.0, 0.20, 0.05, 0.3),
    "memset": (0.50, 0.0, 0.0, 1.0, 0.20, 0.05, 0.3),
    "other": (0.70, 0.3, 0.0, 0.5, 0.20, 0.40, 0.6),
}
_CLASS_ORDER = (
    "power_w",
    "sm_share",
    "wave_share",
    "memory_share",
    "link_loss",
    "clock_share",
    "clock_energy",
)


def assumed_constants(gpu: str, num_sms: int) -> dict[str, Constant]:
    """Return every constant of the model for a GPU known by its name only.

    Args:
        gpu: device name as the driver gives it ("NVIDIA H200"); "" unknown.
        num_sms: SM count, 0 unknown (108 is used).

    Returns:
        Constants by name, all with source "assumed".
    """
    family, sheet = _sheet(gpu, num_sms or 108)
    values: dict[str, tuple[float, float]] = {
        "static_power_w": (sheet.static_w, 0.2),
        "power_limit_w": (sheet.limit_w, 0.0),
        "power_window_us": (90_000.0, 0.5),
        "hbm_gb_per_s": (sheet.hbm, 0.1),
        "link_sharing": (1.0, 0.0),
        "reference_clock_mhz": (sheet.clocks[1], 0.2),
        "min_clock_mhz": (sheet.clocks[0], 0.0),
        "max_clock_mhz": (sheet.clocks[1], 0.0),
        "clock_switch_us": (15_000.0, 0.6),
        "clock_dwell_us": (1_000_000.0, 0.5),
        "communicator_mb": (350.0, 0.5),
        "serialise_us": (20.0, 0.5),
        "default_ctas": (24.0 if family in ("H200", "H100") else 16.0, 0.4),
        "time_residual": (0.05, 0.5),
        "energy_residual": (0.08, 0.5),
    }
    usable = sheet.limit_w - sheet.static_w
    for kernel_class in CLASSES:
        name = class_name(kernel_class)
        guess = (_CLASS_GUESS[name][0] * usable, *_CLASS_GUESS[name][1:])
        values |= {f"{name}.{q}": (v, 0.4) for q, v in zip(_CLASS_ORDER, guess, strict=True)}
    for kind in KINDS:
        name = kind_name(kind)
        values |= {
            f"{name}.gb_per_s_per_cta": (sheet.per_cta, 0.3),
            f"{name}.gb_per_s": (sheet.link, 0.3),
            f"{name}.knee": (5.0, 0.5),
            f"{name}.latency_us": (25.0, 0.5),
            f"{name}.hbm_bytes": (3.0 if name == "all_gather" else 4.0, 0.4),
            f"{name}.w_per_cta": (0.006 * usable, 0.5),
            f"{name}.j_per_gb": (0.25, 0.6),
            f"{name}.cta_clock": (0.5, 0.6),
        }
    values |= {
        "copy_engine.gb_per_s": (0.9 * sheet.link, 0.3),
        "copy_engine.latency_us": (60.0, 0.5),
        "copy_engine.hbm_bytes": (2.0, 0.4),
        "copy_engine.j_per_gb": (0.25, 0.6),
        "copy_engine.link_loss_scale": (0.5, 1.0),
    }
    return {
        name: constant(name, value, spread=spread, note=sheet.evidence)
        for name, (value, spread) in values.items()
    }


def _sheet(gpu: str, num_sms: int) -> tuple[str, _Sheet]:
    for family, sheet in _SHEETS.items():
        if family in gpu.upper():
            return family, sheet
    scale = num_sms / 108
    return "", _Sheet(
        limit_w=400 * scale, static_w=80 * scale, hbm=2000 * scale, link=100, per_cta=12, clocks=(210, 1500),
        evidence=f"unknown GPU {gpu!r}: A100-like figures scaled to {num_sms} SMs",
    )  # fmt: skip
