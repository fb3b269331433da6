"""Fits a cost model to one recorded stock step: contention, bandwidth, and the clock it ran at.

A profile says how a kind of GPU behaves; a recording says what this job's kernels did. Where a kernel
class stretched more beside collectives than modelled, or a collective took longer, the constants behind it
are scaled until the simulated stock step shows the same. The clock of the recording is not in the trace:
under a power limit it is the clock at which the modelled power of the recorded step meets the limit.
"""

from __future__ import annotations

import numpy as np

from kareus.model.constants import CLASSES, KINDS, NAMES, Constant, class_name, kind_name
from kareus.model.cost import CostModel
from kareus.model.layout import Layout, layout
from kareus.model.play import Played, play
from kareus.model.power import clock_grid
from kareus.trace.types import F64, I64, OpKind, StepGraph

ROUNDS = 4
OTHER_LINK = 0.6  # bandwidth below this share of the model's: not this link's variation
MOST = 5.0  # no constant is moved by more than this factor in one round
SMALLEST_SHARE = 2e-3  # of the step: less contention than this says nothing about a class
_CONTENTION = ("sm_share", "wave_share", "memory_share")


def calibrated(cost: CostModel, graph: StepGraph) -> CostModel:
    """Return the model with its constants moved to what one recorded stock step shows.

    Args:
        cost: fitted or assumed. graph: a step recorded without any schedule.

    Returns:
        The model; its reference clock is the recording's. Sources of moved constants are "fitted", with a
        note that names the recording; intervals keep their relative width.
    """
    if not len(graph.ops):
        return cost
    tasks = layout(graph, None, cost.coefficients.default_ctas)
    clocks = np.full(len(graph.ops), cost["reference_clock_mhz"])
    for _ in range(ROUNDS):
        played = play([graph], [tasks], cost, [clocks])
        factors = {**_contention(graph, tasks, played), **_bandwidth(cost, graph, played)}
        if all(abs(factor - 1) < 0.005 for factor in factors.values()):
            break
        cost = _scaled(cost, factors, f"scaled to rank {graph.rank} step {graph.index}")
    played = play([graph], [tasks], cost, [clocks])
    return _at_recorded_clock(cost, graph, tasks, played.flow_energy_j[0])


def _contention(graph: StepGraph, tasks: Layout, played: Played) -> dict[str, float]:
    """Recorded over simulated stretch of each class, as factors of the shares behind it."""
    recorded = graph.ops.duration_ns / 1e3 - tasks.work_us
    simulated = played.end_us[0] - played.start_us[0] - tasks.work_us
    smallest = SMALLEST_SHARE * graph.duration_ns / 1e3
    factors: dict[str, float] = {}
    for kernel_class in CLASSES:
        rows = tasks.compute[graph.ops.kernel_class[tasks.compute] == kernel_class]
        seen, expected = float(recorded[rows].sum()), float(simulated[rows].sum())
        if expected > 0 and max(seen, expected) > smallest:
            factor = float(np.clip(max(seen, 0.0) / expected, 1 / MOST, MOST))
            factors |= {f"{class_name(kernel_class)}.{quantity}": factor for quantity in _CONTENTION}
    return factors


def _bandwidth(cost: CostModel, graph: StepGraph, played: Played) -> dict[str, float]:
    """Simulated over recorded duration of each kind (median), as factors of its bandwidth."""
    rows: I64 = np.flatnonzero(graph.ops.kind == OpKind.COLLECTIVE)
    kinds = np.array([graph.collectives[int(graph.ops.collective[op])].kind for op in rows])
    simulated = (played.end_us[0] - played.start_us[0])[rows]
    recorded = graph.ops.duration_ns[rows] / 1e3
    factors: dict[str, float] = {}
    for kind in KINDS:
        chosen = (kinds == kind) & (recorded > 0)
        if chosen.any():
            factor = float(np.clip(np.median(simulated[chosen] / recorded[chosen]), 1 / MOST, MOST))
            name = kind_name(kind)
            if factor < OTHER_LINK:  # another link: what one thread block can move stays as it is
                factors[f"{name}.gb_per_s"] = factor
            elif cost.constants[f"{name}.gb_per_s"].source != "fitted":
                factors |= {f"{name}.{q}": factor for q in ("gb_per_s", "gb_per_s_per_cta")}
            # Else the profile measured this link by itself, which a recording beside compute cannot better.
    return factors


def _scaled(cost: CostModel, factors: dict[str, float], note: str) -> CostModel:
    changed = {}
    for name, factor in factors.items():
        old = cost.constants[name]
        changed[name] = Constant(
            value=old.value * factor,
            low=old.low * factor,
            high=old.high * factor,
            unit=NAMES[name][0],
            source="fitted",
            note=note,
        )
    return cost.with_constants(changed)


def _at_recorded_clock(cost: CostModel, graph: StepGraph, tasks: Layout, communication_j: float) -> CostModel:
    """Re-express the classes at the clock the recording must have run at.

    The durations in the trace are durations at that clock, so power and clock shares of the classes have
    to refer to it too.
    """
    coef = cost.coefficients
    grid = clock_grid(cost, 48)
    time_s = graph.duration_ns * 1e-9
    classes = graph.ops.kernel_class
    power = np.array([_dynamic_j(cost, classes, tasks.work_us, f) for f in grid])
    power = coef.static_power_w + (power + communication_j) / time_s
    if power[0] > coef.power_limit_w:  # no clock explains it: the assumed powers are too high
        share = (coef.power_limit_w - coef.static_power_w - communication_j / time_s) / (
            power[0] - coef.static_power_w - communication_j / time_s
        )
        names = {f"{class_name(c)}.power_w": max(share, 0.05) for c in CLASSES}
        clock, cost = float(grid[0]), _scaled(cost, names, "scaled to the power limit")
    elif power[-1] <= coef.power_limit_w:
        clock = float(grid[-1])
    else:
        clock = float(np.interp(coef.power_limit_w, power, grid))
    return referred_to(cost, clock)


def _dynamic_j(cost: CostModel, classes: np.ndarray, work_us: F64, clock: float) -> float:
    """Dynamic energy of compute whose durations were recorded at a clock."""
    coef = cost.coefficients
    ratio = clock / coef.reference_clock_mhz
    stretch = 1 - coef.clock_share + coef.clock_share / ratio
    power = coef.power_w * ratio**coef.clock_energy / stretch
    return float((power[classes] * work_us).sum() * 1e-6)


def referred_to(cost: CostModel, clock_mhz: float) -> CostModel:
    """Return the same physics with every constant expressed at another reference clock.

    Args:
        cost: the model. clock_mhz: the clock that durations will refer to.
    """
    ratio = clock_mhz / cost["reference_clock_mhz"]
    factors = {"reference_clock_mhz": ratio}
    for kernel_class in CLASSES:
        name = class_name(kernel_class)
        share = cost[f"{name}.clock_share"]
        stretch = 1 - share + share / ratio
        factors[f"{name}.power_w"] = ratio ** cost[f"{name}.clock_energy"] / stretch
        factors[f"{name}.clock_share"] = 1 / (ratio * stretch)
    for kind in KINDS:
        name = kind_name(kind)
        factors[f"{name}.gb_per_s_per_cta"] = ratio ** cost[f"{name}.cta_clock"]
    changed = {}
    for name, factor in factors.items():
        old = cost.constants[name]
        changed[name] = Constant(
            value=old.value * factor,
            low=old.low * factor,
            high=old.high * factor,
            unit=old.unit,
            source=old.source,
            note=old.note,
        )
    return cost.with_constants(changed)
