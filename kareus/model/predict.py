"""Predicts what a profile's samples would have measured, so that a fit can compare.

Samples of one shape (same kernels, same collectives) are priced in one vectorised call over settings and
clocks, then settled by the power balance, because samples are taken in loops longer than its window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kareus.model import rates
from kareus.model.cost import CostModel
from kareus.model.power import clock_grid, governed, governed_phases
from kareus.model.profile import (
    Piece,
    Profile,
    Sample,
    SpanCollectiveTemplate,
    SpanTemplate,
    StepSetting,
    Workload,
)
from kareus.model.span_cost import evaluate
from kareus.model.span_work import SpanConfigs, SpanWork
from kareus.trace.types import F64, CollectiveKind, KernelClass

LOOP = "loop"
CLOCKS = 4  # of the grid that prices are interpolated on


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
    clocks = clock_grid(cost, CLOCKS)
    time, energy, clock = (np.zeros(len(samples)) for _ in range(3))
    static_w, limit_w = cost["static_power_w"], cost["power_limit_w"]
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        groups[_shape(sample)].append(index)
    for members in groups.values():
        first = samples[members[0]]
        if first.step is not None:
            settings = [s for i in members if (s := samples[i].step) is not None]
            spans = _steps(profile.workloads[first.step.workload], settings, cost, clocks)
            outcome = governed_phases(
                clocks,
                *spans,
                static_power_w=static_w,
                power_limit_w=limit_w,
                window_us=cost["power_window_us"],
            )
        else:
            loops = _loops([samples[i] for i in members], cost, clocks)
            outcome = governed(clocks, *loops, static_power_w=static_w, power_limit_w=limit_w)
        time[members], energy[members] = outcome.time_us, outcome.energy_j
        clock[members] = outcome.sm_clock_mhz
    return Predicted(time_us=time, energy_j=energy, sm_clock_mhz=clock)


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
        blocks_at=np.full(len(collectives), -1, np.int64),
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
    """Times and dynamic energies of a step's spans and of its idle time, float[n, spans + 1, c] each."""
    shape = (len(settings), len(workload.spans) + 1, len(clocks))
    time, dynamic = np.zeros(shape), np.zeros(shape)
    time[:, -1] = workload.idle_us
    for index, span in enumerate(workload.spans):
        span_time, span_dynamic = _span(span, settings, cost, clocks, workload.clock_mhz)
        time[:, index] = span.count * span_time
        dynamic[:, index] = span.count * span_dynamic
    return time, dynamic


@dataclass(frozen=True, slots=True)
class _Way:
    """What of a setting matters to one span; settings alike here are priced once."""

    present: tuple[SpanCollectiveTemplate, ...]
    start: tuple[int, ...]
    waits: tuple[bool, ...]
    separate: bool


def _way(span: SpanTemplate, setting: StepSetting, length: int) -> tuple[_Way, tuple[int, ...]]:
    present = tuple(c for c in span.collectives if c.kind not in setting.absent)
    way = _Way(
        present=present,
        start=tuple(_position(c.position, length, setting.launch, c.kind) for c in present),
        waits=tuple(c.kind in setting.serialise for c in present),
        separate=setting.separate and len(present) > 1,
    )
    return way, tuple(setting.num_ctas.get(c.kind, c.num_ctas) for c in present)


def _span(
    span: SpanTemplate, settings: Sequence[StepSetting], cost: CostModel, clocks: F64, recorded_mhz: float
) -> tuple[F64, F64]:
    """Price one span for every setting, one call for those that differ in budgets only; float[n, c]."""
    length = sum(p.count for p in span.compute)
    alike: dict[_Way, dict[tuple[int, ...], list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, setting in enumerate(settings):
        way, budgets = _way(span, setting, length)
        alike[way][budgets].append(row)
    time, dynamic = np.zeros((len(settings), len(clocks))), np.zeros((len(settings), len(clocks)))
    for way, rows_of in alike.items():
        triples = zip(way.present, way.start, way.waits, strict=True)
        required = [start if wait else c.required_at for c, start, wait in triples]
        members = [
            (c.kind, c.num_bytes, c.group_size, c.num_ctas, r)
            for c, r in zip(way.present, required, strict=True)
        ]
        work = _work(span.compute, members)
        if recorded_mhz:
            factor = rates.clock_time(cost.coefficients, work.kernel_class, recorded_mhz)
            work = replace(work, alone_us=work.alone_us / factor)
        if way.separate:
            work = replace(work, group=np.arange(len(way.present)))
        ctas = np.array(list(rows_of), np.int64).reshape(len(rows_of), -1)
        position = np.tile(np.array(way.start, np.int64), (len(ctas), 1))
        priced = _price(work, ctas, position, np.zeros(len(ctas), bool), cost, clocks)
        for index, rows in enumerate(rows_of.values()):
            time[rows] = priced[0][index] + sum(way.waits) * cost["serialise_us"]
            dynamic[rows] = priced[1][index]
    return time, dynamic


def _position(stock: int, length: int, launch: float | None, kind: str) -> int:
    return stock if launch is None or kind != "all_gather" else round(launch * length)
