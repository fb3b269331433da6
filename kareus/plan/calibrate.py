"""Fits the cost model's link to the recorded job: how fast its collectives really moved data.

A profile is measured on one kind of link; the recorded job may run over another (host memory instead of
NVLink, a network). Only the saturated bandwidth is taken from the trace, since a recording shows one
budget: what a single thread block moves stays as profiled.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kareus.model.constants import KINDS, kind_name
from kareus.model.cost import CostModel
from kareus.model.rates import wire_bytes
from kareus.trace.ranks import Alignment
from kareus.trace.types import CollectiveKind

# Beside compute a collective loses bandwidth, and which share is the model's business: only a recording
# this far from the profile means another link.
OTHER_LINK = 1.6
SMALLEST_BYTES = 1 << 20  # smaller messages measure latency
FASTEST_SHARE = 0.75  # quantile of bandwidth: the collectives least disturbed by compute beside them


def fit_link(cost: CostModel, alignment: Alignment, world_size: int) -> CostModel:
    """Return the model with the recorded link's bandwidth where it clearly is another link.

    Args:
        cost: the model. alignment: matched collectives; transfer times of a complete job are exact.
        world_size: ranks, for collectives whose group the trace does not name.
    """
    changed: dict[str, float] = {}
    notes: list[str] = []
    for kind in KINDS:
        recorded = _bandwidth(alignment, kind, world_size)
        name = f"{kind_name(kind)}.gb_per_s"
        if recorded is None or 1 / OTHER_LINK < recorded / cost[name] < OTHER_LINK:
            continue
        if recorded > cost[name] and not alignment.complete:
            continue
        changed[name] = recorded
        notes.append(
            f"{kind_name(kind)}: this job's link moves {recorded:.3g} GB/s, the cost model's {cost[name]:.3g}; "
            "the recorded figure is used"
        )
    if not changed:
        return cost
    fitted = cost.with_values(changed)
    return replace(fitted, notes=(*fitted.notes, *notes))


def _bandwidth(alignment: Alignment, kind: CollectiveKind, world_size: int) -> float | None:
    """Wire bandwidth of a kind's larger collectives, GB/s; None where there are none."""
    rates = [
        wire_bytes(kind, m.num_bytes, len(m.ranks) if alignment.complete else world_size) / m.transfer_ns
        for m in alignment.collectives
        if m.kind == kind and m.num_bytes >= SMALLEST_BYTES and m.transfer_ns > 0
    ]
    return float(np.quantile(rates, FASTEST_SHARE)) if rates else None
