"""Predicts what a profile's samples would have measured, so that a fit can compare.

Samples of one shape (same kernels, same collectives) are priced in one vectorised call over settings and
clocks, then settled by the power balance, because samples are taken in loops longer than its window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kareus.model.cost import CostModel
from kareus.model.power import clock_grid, governed
from kareus.model.profile import Piece, Profile, Sample, SpanTemplate, StepSetting, Workload
from kareus.model.span_cost import SpanConfigs, SpanWork, evaluate
from kareus.trace.types import F64, CollectiveKind, KernelClass

LOOP = "loop"


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """Predictions for s samples, float[s] each: time in us, total energy in J of one GPU, SM clock in MHz."""

    time_us: F64
    energy_j: F64
    sm_clock_mhz: F64


def predict(profile: Profile, samples: Sequence[Sample], cost: CostModel) -> Predicted:
    """Return time, energy and clock of samples of a profile under a model.

    Args:
        profile: holds the workloads step samples name. samples: any of its samples. cost: the model.
    """
    clocks = clock_grid(cost)
    time = np.zeros((len(samples), len(clocks)))
    dynamic = np.zeros((len(samples), len(clocks)))
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        groups[_shape(sample)].append(index)
    for members in groups.values():
        first = samples[members[0]]
        if first.step is not None:
            settings = [s for i in members if (s := samples[i].step) is not None]
            totals = _steps(profile.workloads[first.step.workload], settings, cost, clocks)
        else:
            totals = _loops([samples[i] for i in members], cost, clocks)
        time[members], dynamic[members] = totals
    outcome = governed(
        clocks, time, dynamic, static_power_w=cost["static_power_w"], power_limit_w=cost["power_limit_w"]
    )
    return Predicted(time_us=outcome.time_us, energy_j=outcome.energy_j, sm_clock_mhz=outcome.sm_clock_mhz)


def _shape(sample: Sample) -> tuple[object, ...]:
    if sample.step is not None:
        return ("step", sample.step.workload)
    other = sample.collective
    return (LOOP, sample.compute, other and (other.kind, other.num_bytes, other.group_size))


def _expand(pieces: Sequence[Piece]) -> tuple[F64, np.ndarray, np.ndarray]:
    alone = [p.alone_us for p in pieces for _ in range(p.count)]
    classes = [KernelClass[p.kernel_class.upper()] for p in pieces for _ in range(p.count)]
    grid = [p.grid for p in pieces for _ in range(p.count)]
    return np.array(alone, float), np.array(classes, np.int8), np.array(grid, np.int32)


def _work(
    pieces: Sequence[Piece],
    collectives: Sequence[tuple[str, int, int, int, int]],
) -> SpanWork:
    """Collectives are (kind, bytes, ranks, stock budget, required position)."""
    alone, classes, grid = _expand(pieces)
    kinds = [CollectiveKind[c[0].upper()] for c in collectives]
    return SpanWork(
        alone_us=alone,
        kernel_class=classes,
        grid=grid,
        kind=np.array(kinds, np.int8),
        num_bytes=np.array([c[1] for c in collectives], float),
        group=np.zeros(len(collectives), np.int64),
        group_size=np.array([c[2] for c in collectives], np.int64),
        phase=np.zeros(len(collectives), np.int8),
        stock_ctas=np.array([c[3] for c in collectives], np.int64),
        ready=np.zeros(len(collectives), np.int64),
        required_at=np.array([c[4] for c in collectives], np.int64),
        scale=np.ones(len(collectives)),
    )


def _price(
    work: SpanWork,
    ctas: np.ndarray,
    position: np.ndarray,
    serialise: np.ndarray,
    cost: CostModel,
    clocks: F64,
) -> tuple[F64, F64]:
    """Price n settings at c clocks in one call; float[n, c] times and dynamic energies."""
    n, c = len(ctas), len(clocks)
    costs = evaluate(
        work,
        SpanConfigs(
            num_ctas=np.repeat(ctas, c, axis=0),
            position=np.repeat(position, c, axis=0),
            serialise=np.repeat(serialise, c),
            sm_clock_mhz=np.tile(clocks, n),
        ),
        cost,
    )
    return costs.time_us.reshape(n, c), costs.energy_j.reshape(n, c)


def _loops(samples: Sequence[Sample], cost: CostModel, clocks: F64) -> tuple[F64, F64]:
    first = samples[0]
    length = sum(p.count for p in first.compute)
    other = first.collective
    members = [] if other is None else [(other.kind, other.num_bytes, other.group_size, -1, length)]
    work = _work(first.compute, members)
    ctas = np.array([[] if s.collective is None else [s.collective.num_ctas] for s in samples], np.int64)
    zero = np.zeros_like(ctas)
    return _price(work, ctas.reshape(len(samples), -1), zero, np.zeros(len(samples), bool), cost, clocks)


def _steps(
    workload: Workload, settings: Sequence[StepSetting], cost: CostModel, clocks: F64
) -> tuple[F64, F64]:
    """A step is the sum of its spans; settings without some collectives are priced without them."""
    time = np.full((len(settings), len(clocks)), workload.idle_us)
    dynamic = np.zeros_like(time)
    by_absence: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, setting in enumerate(settings):
        by_absence[setting.absent].append(index)
    for absent, rows in by_absence.items():
        chosen = [settings[i] for i in rows]
        for span in workload.spans:
            span_time, span_dynamic = _span(span, absent, chosen, cost, clocks)
            time[rows] += span.count * span_time
            dynamic[rows] += span.count * span_dynamic
    return time, dynamic


def _span(
    span: SpanTemplate, absent: tuple[str, ...], settings: Sequence[StepSetting], cost: CostModel, clocks: F64
) -> tuple[F64, F64]:
    """Price one span for settings that have the same collectives, those alike in one call."""
    present = [c for c in span.collectives if c.kind not in absent]
    length = sum(p.count for p in span.compute)
    time, dynamic = np.zeros((len(settings), len(clocks))), np.zeros((len(settings), len(clocks)))
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for row, setting in enumerate(settings):
        alike[setting.serialise, setting.separate, setting.launch].append(row)
    for rows in alike.values():
        setting = settings[rows[0]]
        start = [_position(c.position, length, setting.launch, c.kind) for c in present]
        waits = [c.kind in setting.serialise for c in present]
        required = [s if wait else c.required_at for c, s, wait in zip(present, start, waits, strict=True)]
        work = _work(
            span.compute,
            [
                (c.kind, c.num_bytes, c.group_size, c.num_ctas, r)
                for c, r in zip(present, required, strict=True)
            ],
        )
        if setting.separate:
            work = replace(work, group=np.arange(len(present)))
        ctas = [[settings[i].num_ctas.get(c.kind, c.num_ctas) for c in present] for i in rows]
        priced = _price(
            work,
            np.array(ctas, np.int64).reshape(len(rows), -1),
            np.tile(np.array(start, np.int64), (len(rows), 1)),
            np.zeros(len(rows), bool),
            cost,
            clocks,
        )
        time[rows] = priced[0] + sum(waits) * cost["serialise_us"]
        dynamic[rows] = priced[1]
    return time, dynamic


def _position(stock: int, length: int, launch: float | None, kind: str) -> int:
    return stock if launch is None or kind != "all_gather" else round(launch * length)
