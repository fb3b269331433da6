"""The physics of running together: pure numpy functions that span evaluation and simulation share.

A compute op beside collectives stretches by

    1 + sm_share (g - 1) + wave_share (w - 1) + memory_share (h - 1)

with g = S / (S - c) for c of S SMs held by collectives, w the same in whole waves of thread blocks, and
h = 1 / (1 - m) for the share m of memory bandwidth the collectives draw. A collective of c thread blocks
has the smooth minimum of c times one block's bandwidth and the link's. Beside compute its thread blocks
lose `link_loss` of theirs; the link loses nothing, so a slow link hides the loss. Collectives under way at
once share the link as far as `link_sharing` says. An op does the same work however long it takes, so its dynamic
energy does not depend on what runs beside it; a collective pays for bytes and for every microsecond its
thread blocks are resident.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.model.cost import Coefficients
from kareus.trace.types import F64, CollectiveKind

COPY_ENGINE = 0  # num_ctas of a collective that the copy engine carries
MAX_MEMORY_SHARE = 0.9
MAX_SM_SHARE = 0.95
MAX_LOSS = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """A collective that is moving data.

    Attributes:
        kind: CollectiveKind. num_ctas: thread blocks, 0 is the copy engine.
        scale: measured over modelled bandwidth of this collective in one trace, 1 unknown.
    """

    kind: int
    num_ctas: int
    scale: float = 1.0


def wire_bytes(kind: int, num_bytes: float, group_size: int) -> float:
    """Bytes one rank sends: (n-1)/n of the larger message, twice that for an all-reduce.

    Args:
        kind: CollectiveKind. num_bytes: the larger of its input and output message. group_size: ranks n.
    """
    share = (group_size - 1) / group_size if group_size > 1 else 0.0
    return num_bytes * share * (2.0 if kind == CollectiveKind.ALL_REDUCE else 1.0)


def alone_bytes_per_us(coef: Coefficients, flow: Flow, clock_mhz: float) -> float:
    """Wire bytes per microsecond of a collective with nothing beside it."""
    if flow.num_ctas == COPY_ENGINE:
        return coef.copy_gb_per_s * 1e3 * flow.scale
    return float(_saturated(coef, flow, clock_mhz, np.ones(1))[0]) * flow.scale


def _saturated(coef: Coefficients, flow: Flow, clock_mhz: float, kept: F64) -> F64:
    """Bytes per microsecond of thread blocks on a link when they keep a share of their own bandwidth."""
    blocks = coef.gb_per_s_per_cta[flow.kind] * flow.num_ctas * kept
    blocks *= (clock_mhz / coef.reference_clock_mhz) ** coef.cta_clock[flow.kind]
    knee = coef.knee[flow.kind]
    return np.asarray((blocks**-knee + coef.gb_per_s[flow.kind] ** -knee) ** (-1 / knee) * 1e3)


def latency_us(coef: Coefficients, flow: Flow) -> float:
    """Duration at zero bytes."""
    return coef.copy_latency_us if flow.num_ctas == COPY_ENGINE else float(coef.latency_us[flow.kind])


def shared_bytes_per_us(coef: Coefficients, flows: tuple[Flow, ...], clock_mhz: float) -> list[float]:
    """Bandwidth of each collective with no compute beside: what is shared of the link, in proportion."""
    alone = [alone_bytes_per_us(coef, flow, clock_mhz) for flow in flows]
    limits = [
        (coef.copy_gb_per_s if flow.num_ctas == COPY_ENGINE else coef.gb_per_s[flow.kind]) * 1e3 * flow.scale
        for flow in flows
    ]
    share = min(1.0, max(limits, default=1.0) / sum(alone)) if sum(alone) > 0 else 1.0
    return [a * share**coef.link_sharing for a in alone]


def beside(
    coef: Coefficients,
    flows: tuple[Flow, ...],
    kernel_class: NDArray[np.int8],
    grid: NDArray[np.int32],
    clock_mhz: float,
) -> tuple[F64, F64]:
    """Return how compute ops and collectives slow each other down.

    Args:
        coef: the model. flows: the collectives running. kernel_class, grid: of the m compute ops.
        clock_mhz: SM clock.

    Returns:
        Stretch of each op, float[m] (1 is as if alone), and wire bytes per microsecond of each collective
        beside each op, float[len(flows), m].
    """
    rates = np.zeros((len(flows), len(kernel_class)))
    if not flows:
        return np.ones(len(kernel_class)), rates
    held = min(sum(f.num_ctas for f in flows), int(MAX_SM_SHARE * coef.num_sms))
    left = coef.num_sms - held
    traffic = np.zeros(len(kernel_class))
    for row, (flow, rate) in enumerate(zip(flows, shared_bytes_per_us(coef, flows, clock_mhz), strict=True)):
        if flow.num_ctas == COPY_ENGINE:
            loss = coef.link_loss[kernel_class] * coef.copy_link_loss_scale
            rates[row] = rate * (1 - np.minimum(loss, MAX_LOSS))
            traffic += rates[row] * coef.copy_hbm_bytes
        else:
            kept = 1 - np.minimum(coef.link_loss, MAX_LOSS)  # by class
            beside = _saturated(coef, flow, clock_mhz, kept) * flow.scale
            rates[row] = rate * (beside / alone_bytes_per_us(coef, flow, clock_mhz))[kernel_class]
            traffic += rates[row] * coef.hbm_bytes[flow.kind]
    smooth = coef.num_sms / left
    blocks = np.maximum(grid, 1)
    waves = np.where(grid > 0, np.ceil(blocks / left) / np.ceil(blocks / coef.num_sms), smooth)
    memory = np.minimum(traffic / (coef.hbm_gb_per_s * 1e3), MAX_MEMORY_SHARE)
    stretch = (
        1
        + coef.sm_share[kernel_class] * (smooth - 1)
        + coef.wave_share[kernel_class] * (waves - 1)
        + coef.memory_share[kernel_class] * (1 / (1 - memory) - 1)
    )
    return stretch, rates


def clock_time(coef: Coefficients, kernel_class: NDArray[np.int8], clock_mhz: float) -> F64:
    """Duration at a clock over duration at the reference clock, float[m]."""
    share = coef.clock_share[kernel_class]
    return np.asarray(1 - share + share * coef.reference_clock_mhz / clock_mhz)


def clock_energy(coef: Coefficients, kernel_class: NDArray[np.int8], clock_mhz: float) -> F64:
    """Dynamic energy at a clock over that at the reference clock, float[m]."""
    return np.asarray((clock_mhz / coef.reference_clock_mhz) ** coef.clock_energy[kernel_class])


def compute_energy_j(
    coef: Coefficients, kernel_class: NDArray[np.int8], alone_us: F64, clock_mhz: float
) -> F64:
    """Dynamic energy of compute ops whose durations are given at the reference clock, J, float[m]."""
    power = coef.power_w[kernel_class] * clock_energy(coef, kernel_class, clock_mhz)
    return np.asarray(power * alone_us * 1e-6)


def flow_power_w(coef: Coefficients, flow: Flow) -> float:
    """Dynamic power of a collective's resident thread blocks, without its bytes."""
    return float(coef.w_per_cta[flow.kind] * flow.num_ctas)


def flow_energy_j(coef: Coefficients, flow: Flow, wire: float) -> float:
    """Dynamic energy of moving wire bytes, without the thread blocks' residence."""
    per_gb = coef.copy_j_per_gb if flow.num_ctas == COPY_ENGINE else float(coef.j_per_gb[flow.kind])
    return per_gb * wire * 1e-9
