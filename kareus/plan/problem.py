"""Builds the optimisation problem of one recorded step.

    spans -> kinds (equal spans share a table) -> options at every clock level -> solver.Problem

Clocks: where they are not ours to set, the GPU's own power management picks one clock for the step from
its average power. The levels then lie close around the clock stock settles at, and the problem is
`governed`. Where they may be chosen, the levels span the card's range and each span may have its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from kareus.errors import InputError
from kareus.model.cost import CostModel
from kareus.model.span_cost import evaluate
from kareus.model.span_work import SpanConfigs, SpanWork, span_work
from kareus.plan.knobs import Knobs
from kareus.plan.options import OptionTable, Settings, enumerate_settings, option_table
from kareus.plan.recorded import recorded_spreads_us
from kareus.trace.spans import find_spans
from kareus.trace.types import Span, StepGraph
from solver.problem import Limits, Problem

GOVERNED_LEVELS = 25  # levels around stock's own clock, one supported step (15 MHz on an H200) apart
CLOCK_STEP_MHZ = 15  # NVML lists data-centre GPUs' SM clocks in steps of 15 MHz (A100, H100, H200)
FREE_LEVELS = 16  # 8 -> 16 levels changed a step's optimum by 0.2 % (solver research); more cost time only


@dataclass(frozen=True, kw_only=True, slots=True)
class StepProblem:
    """A step's problem with everything needed to read its solution back.

    Attributes:
        graph, spans, cost: what it was built from.
        tables: option table of each kind, parallel to `problem.kinds`.
        problem: for the solver.
        stock_choices, serial_choices: option index per span that amounts to stock, and to stock serialised,
            at the clock the step settles at.
        stock_clock_mhz: that clock.
    """

    graph: StepGraph
    spans: tuple[Span, ...]
    cost: CostModel
    tables: tuple[OptionTable, ...]
    problem: Problem
    stock_choices: tuple[int, ...]
    serial_choices: tuple[int, ...]
    stock_clock_mhz: float


def build_problem(
    graph: StepGraph,
    cost: CostModel,
    knobs: Knobs,
    *,
    memory_bytes: int | None = None,
    robust: bool = False,
    step_spread: float | None = None,
) -> StepProblem:
    """Build the problem of one step; `with_limits` adds limits of time and energy.

    Args:
        graph: the step. cost: prices it. knobs: what may be turned.
        memory_bytes: for communicators and buffers beyond stock's on each GPU, None without a limit.
        robust: settings are kept by their worst cases.
        step_spread: relative standard deviation of recorded steps, None where it is not known.

    Raises:
        InputError: the step has no compute on which anything could be planned.
    """
    spans = find_spans(graph)
    if not any(len(span.compute) for span in spans):
        raise InputError(
            f"rank {graph.rank}, step {graph.index}: no compute kernels between its ends; "
            "record a window that holds at least one whole training step"
        )
    names, chain, members = _kinds(spans)
    works = [_typical_work(graph, [spans[i] for i in group]) for group in members]
    pauses = [float(np.mean([_pauses_us(graph, spans[i]) for i in group])) for group in members]
    firsts = [spans[group[0]] for group in members]
    stock_clock, clocks = _clock_levels(graph, firsts, works, pauses, chain, cost, knobs)
    level = min(range(len(clocks)), key=lambda i: abs(clocks[i] - stock_clock))
    # Where the clock is the GPU's own it is no setting, so every level has stock's settings as recorded.
    as_recorded = [knobs.clocks == "off" or i == level for i in range(len(clocks))]
    spreads = recorded_spreads_us(graph, spans, members, step_spread)
    tables = tuple(
        option_table(
            name,
            span,
            work,
            pause,
            graph.collectives,
            cost,
            knobs,
            clocks,
            limited_memory=memory_bytes is not None,
            robust=robust,
            stock_sd_us=[spread if recorded else None for recorded in as_recorded],
        )
        for name, span, work, pause, spread in zip(names, firsts, works, pauses, spreads, strict=True)
    )
    tables = tuple(_with_stock_at(table, level) for table in tables)
    problem = Problem(
        clocks_mhz=clocks,
        kinds=tuple(table.kind for table in tables),
        chain=chain,
        static_power_mw=round(cost["static_power_w"] * 1000),
        switch_time_us=knobs.switch_time_us if knobs.clocks != "off" else 0,
        min_dwell_us=knobs.min_dwell_us if knobs.clocks != "off" else 0,
        uniform_clock=knobs.clocks == "off",
        governed=knobs.clocks == "off",
        rung_memory_bytes=round(cost["communicator_mb"] * 1e6),
        limits=Limits(
            average_power_mw=round(cost["power_limit_w"] * 1000) or None, memory_bytes=memory_bytes
        ),
    )
    return StepProblem(
        graph=graph,
        spans=spans,
        cost=cost,
        tables=tables,
        problem=problem,
        stock_choices=tuple(tables[kind].kind.stock for kind in chain),
        serial_choices=tuple(_option_index(tables[kind], tables[kind].serial_row, level) for kind in chain),
        stock_clock_mhz=stock_clock,
    )


def supported_clocks(cost: CostModel) -> list[int]:
    """Return the SM clocks between the card's ends, MHz ascending."""
    low, high = round(cost["min_clock_mhz"]), round(cost["max_clock_mhz"])
    return list(range(high, low - 1, -CLOCK_STEP_MHZ))[::-1]


def with_limits(
    problem: Problem,
    *,
    time_us: int | None = None,
    energy_mj: int | None = None,
) -> Problem:
    """Return the problem with other limits of time and energy; those of power and memory stay."""
    limits = replace(problem.limits, time_us=time_us, energy_mj=energy_mj)
    return replace(problem, limits=limits)


def whole(limit: float) -> int:
    """Whole units within a limit; one that misses a whole number only by rounding, as 4.035 x 1000, means it."""
    return math.floor(limit * (1 + 1e-9))


def _kinds(spans: tuple[Span, ...]) -> tuple[list[str], tuple[int, ...], list[list[int]]]:
    """Group equal spans: kind names, kind of each span, and the spans of each kind."""
    index: dict[str, int] = {}
    members: list[list[int]] = []
    for i, span in enumerate(spans):
        kind = index.setdefault(span.signature, len(index))
        if kind == len(members):
            members.append([])
        members[kind].append(i)
    names = [spans[group[0]].name + (f" x{len(group)}" if len(group) > 1 else "") for group in members]
    return names, tuple(index[span.signature] for span in spans), members


def _typical_work(graph: StepGraph, spans: list[Span]) -> SpanWork:
    """The work of a kind: the mean over its spans, so that one recording's jitter averages out."""
    works = [span_work(graph, span) for span in spans]
    if len(works) == 1:
        return works[0]
    return replace(works[0], alone_us=np.mean([work.alone_us for work in works], axis=0))


def _pauses_us(graph: StepGraph, span: Span) -> float:
    """Time inside a span in which its stream paused between two kernels although nothing made it wait.

    Launch gaps of a microsecond or two each, and stretches in which the CPU was late: no setting changes
    them, so they are added to every option of the span.
    """
    ops = graph.ops
    rows = span.compute
    required = (
        {c.required_at for c in span.collectives} | {c.stock for c in span.collectives if c.blocks} | {0}
    )
    inner = [i for i in range(1, len(rows)) if i not in required]
    gaps = ops.start_ns[rows[inner]] - ops.end_ns[rows[[i - 1 for i in inner]]]
    return float(np.maximum(gaps, 0).sum()) / 1000


def _stock_costs(
    spans: list[Span],
    works: list[SpanWork],
    pauses_us: list[float],
    graph: StepGraph,
    chain: tuple[int, ...],
    cost: CostModel,
    knobs: Knobs,
    clock_mhz: float,
) -> tuple[float, float]:
    """Time (us) and energy (J, static power included) of the all-stock step at one clock."""
    time_us, energy_j = [], []
    for span, work, pause_us in zip(spans, works, pauses_us, strict=True):
        settings = enumerate_settings(span, graph.collectives, cost, knobs)
        stock = Settings(
            num_ctas=settings.num_ctas[:1], position=settings.position[:1], serialise=settings.serialise[:1]
        )
        costs = evaluate(
            work,
            SpanConfigs(
                num_ctas=stock.num_ctas,
                position=stock.position,
                serialise=stock.serialise,
                sm_clock_mhz=np.array([clock_mhz]),
            ),
            cost,
        )
        time_us.append(float(costs.time_us[0]) + pause_us)
        energy_j.append(float(costs.energy_j[0]))
    total_us = sum(time_us[kind] for kind in chain)
    return total_us, sum(energy_j[kind] for kind in chain) + cost["static_power_w"] * total_us / 1e6


def _clock_levels(
    graph: StepGraph,
    spans: list[Span],
    works: list[SpanWork],
    pauses_us: list[float],
    chain: tuple[int, ...],
    cost: CostModel,
    knobs: Knobs,
) -> tuple[float, tuple[int, ...]]:
    """The clock stock settles at under the power limit, and the levels to plan with."""
    supported = supported_clocks(cost)

    limit_w = cost["power_limit_w"]

    def over_limit(clock_mhz: float) -> bool:
        time_us, energy_j = _stock_costs(spans, works, pauses_us, graph, chain, cost, knobs, clock_mhz)
        return 0 < limit_w < energy_j / (time_us / 1e6)

    low, high = 0, len(supported) - 1
    while low < high:  # highest supported clock within the limit; average power rises with the clock
        middle = (low + high + 1) // 2
        low, high = (low, middle - 1) if over_limit(supported[middle]) else (middle, high)
    stock = supported[low]
    if knobs.clocks != "off":
        floor = supported[-1] // 2  # below half the clock, static power makes every step dearer (h200.md)
        usable = [c for c in supported if c >= floor]
        picks = np.unique(np.linspace(0, len(usable) - 1, FREE_LEVELS).round().astype(int))
        return stock, tuple(sorted({*(usable[i] for i in picks), stock}))
    first = max(0, min(low - GOVERNED_LEVELS // 2, len(supported) - GOVERNED_LEVELS))
    return stock, tuple(supported[first : first + GOVERNED_LEVELS])


def _option_index(table: OptionTable, row: int, level: int) -> int:
    for index, option in enumerate(table.kind.options):
        if option.clock == level and table.row[index] == row:
            return index
    raise LookupError(f"setting {row} of {table.kind.name} was not kept at clock level {level}")


def _with_stock_at(table: OptionTable, level: int) -> OptionTable:
    return replace(table, kind=replace(table.kind, stock=_option_index(table, table.stock_row, level)))
