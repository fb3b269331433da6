"""What a span has to do, the settings it may be run with, and their prices: data only, see `span_cost`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.trace.types import F64, I8, I32, I64, Span, StepGraph


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanWork:
    """What a span has to do: m compute ops in order, and k collectives in issue order.

    Attributes:
        alone_us: duration of each op by itself at the reference clock, float[m].
        kernel_class, grid: int8[m], int32[m].
        kind: CollectiveKind of each collective, int8[k]. num_bytes: its larger message, float[k].
        group: number of its process group, int[k]; collectives of one communicator run one after another.
        group_size: ranks, int[k]. phase: Phase, int8[k]. stock_ctas: thread blocks in stock, int[k].
        ready: earliest position, int[k]. required_at: position that needs its result, int[k]; m is the
            span's end, more than m means that the span does not wait for it.
        scale: measured over modelled bandwidth in this trace, float[k].
        blocks_at: position at which compute waits for the collective if it starts there, int[k]; -1 nowhere.
    """

    alone_us: F64
    kernel_class: I8
    grid: I32
    kind: I8
    num_bytes: F64
    group: I64
    group_size: I64
    phase: I8
    stock_ctas: I64
    ready: I64
    required_at: I64
    scale: F64
    blocks_at: I64


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanConfigs:
    """n settings of a span with k collectives.

    Attributes:
        num_ctas: thread blocks, int[n, k]; 0 is the copy engine.
        position: compute ops that must have run before the collective may start, int[n, k].
        serialise: compute waits for every collective as soon as it may start, bool[n].
        sm_clock_mhz: SM clock, float[n].
    """

    num_ctas: NDArray[np.integer]
    position: NDArray[np.integer]
    serialise: NDArray[np.bool_]
    sm_clock_mhz: F64


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanCosts:
    """Prices of n settings.

    Attributes:
        time_us: until the span's compute and all it waits for are done. energy_j: dynamic only.
        exposed_us: time in which only collectives run.
        carry_us: communication still to do afterwards, alone (only what the span does not wait for).
        time_hi_us, energy_hi_j: upper ends of the 90 % intervals, from the constants' intervals and the residual.
    """

    time_us: F64
    energy_j: F64
    exposed_us: F64
    carry_us: F64
    time_hi_us: F64
    energy_hi_j: F64


def span_work(graph: StepGraph, span: Span) -> SpanWork:
    """Return the work of a span of a step.

    Compute time between ops of the span in which the recording shows nothing running is not part of it.
    """
    ops = graph.ops
    rows = span.compute
    members = [graph.collectives[c.row] for c in span.collectives]
    groups = {key: i for i, key in enumerate(dict.fromkeys((m.group_name, m.group) for m in members))}
    alone = ops.alone_ns[rows].astype(float) / 1e3
    return SpanWork(
        alone_us=alone,
        kernel_class=ops.kernel_class[rows].astype(np.int8),
        grid=ops.grid[rows].astype(np.int32),
        kind=np.array([m.kind for m in members], np.int8),
        num_bytes=np.array([m.num_bytes for m in members], float),
        group=np.array([groups[m.group_name, m.group] for m in members], np.int64),
        group_size=np.array([len(m.group) or graph.world_size for m in members], np.int64),
        phase=np.array([m.phase for m in members], np.int8),
        stock_ctas=np.array([m.num_ctas for m in members], np.int64),
        ready=np.array([c.ready for c in span.collectives], np.int64),
        required_at=np.array([c.required_at for c in span.collectives], np.int64),
        scale=np.ones(len(members)),
        blocks_at=np.array([c.stock if c.blocks else -1 for c in span.collectives], np.int64),
    )
