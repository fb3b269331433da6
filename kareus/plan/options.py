"""Enumerates every setting of a span, prices it with the cost model and keeps what can be optimal.

A span with one to three collectives is enumerated in full (budget x launch point for each, plus
serialised). A span with more, such as a DDP backward pass with dozens of buckets, gives all collectives
of one kind the same budget. Prices come from one vectorised call, so 200,000 settings take under a
second. Dominated settings are dropped per clock: another one at the same clock is no slower and needs no
more energy. Stock and fully serialised always stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kareus.model.cost import Z90, CostModel
from kareus.model.span_cost import evaluate
from kareus.model.span_work import SpanConfigs, SpanCosts, SpanWork
from kareus.plan.knobs import Knobs
from kareus.schedule import COPY_SLOTS
from kareus.trace.types import F64, CollectiveKind, CollectiveOp, Span
from solver.problem import Option, SpanKind

FULL_PRODUCT_COLLECTIVES = 3
MAX_SETTINGS = 200_000

_KIND_KEYS = {
    CollectiveKind.ALL_GATHER: "all_gather",
    CollectiveKind.REDUCE_SCATTER: "reduce_scatter",
    CollectiveKind.ALL_REDUCE: "all_reduce",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of one span, n rows for its k collectives.

    Attributes:
        num_ctas: int[n, k], 0 is the copy engine. position: int[n, k], see SpanConfigs.
        serialise: bool[n], compute waits for every collective.
    """

    num_ctas: NDArray[np.int64]
    position: NDArray[np.int64]
    serialise: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.serialise)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionTable:
    """A span kind for the solver together with what each option means.

    Attributes:
        kind: options for the solver; option i is setting `row[i]` at `clocks_mhz[i]`.
        settings: all settings enumerated. row: int[len(options)].
        ladders: communicator family of each collective, see `ladder_key`.
        stock_row, serial_row: settings that are stock, and stock serialised.
        priced: (setting, clock) pairs priced, a count for reports.
        worst_time_us, worst_energy_j: upper ends of the 90 % intervals of every setting at every clock, dynamic
            energy only, float[levels, settings]; empty unless asked for.
    """

    kind: SpanKind
    settings: Settings
    row: NDArray[np.int64]
    ladders: tuple[str, ...]
    stock_row: int
    serial_row: int
    priced: int
    worst_time_us: F64
    worst_energy_j: F64

    def rungs(self, row: int) -> frozenset[tuple[str, int]]:
        """(ladder, budget) of each communicator a setting needs beyond stock's."""
        return _rungs(self.ladders, self.settings.num_ctas[row], self.settings.num_ctas[self.stock_row])


def stock_ctas(collective: CollectiveOp, cost: CostModel) -> int:
    """SMs the collective held when recorded, or the library's default where the trace does not say."""
    return collective.num_ctas or cost.coefficients.default_ctas


def enumerate_settings(
    span: Span, collectives: tuple[CollectiveOp, ...], cost: CostModel, knobs: Knobs
) -> Settings:
    """Return every setting of a span; row 0 is stock, row 1 stock serialised."""
    members = span.collectives
    if not members:
        empty = np.zeros((1, 0), np.int64)
        return Settings(num_ctas=empty, position=empty, serialise=np.zeros(1, bool))
    stock = [(stock_ctas(collectives[m.row], cost), m.stock) for m in members]
    budgets = [_budgets(collectives[m.row], cost, knobs) for m in members]
    positions = [m.positions if knobs.launch_points else (m.stock,) for m in members]
    if len(members) <= FULL_PRODUCT_COLLECTIVES:
        num_ctas, position = _full_product(budgets, positions)
    else:
        num_ctas, position = _same_budget_per_kind(span, collectives, budgets)
    base_ctas = np.array([[c for c, _ in stock]] * 2, np.int64)
    base_position = np.array([[p for _, p in stock]] * 2, np.int64)
    return Settings(
        num_ctas=np.concatenate([base_ctas, num_ctas]),
        position=np.concatenate([base_position, position]),
        serialise=np.concatenate([[False, True], np.zeros(len(num_ctas), bool)]),
    )


def _budgets(collective: CollectiveOp, cost: CostModel, knobs: Knobs) -> list[int]:
    """Budgets worth trying: no more than stock holds, since NCCL opens no more channels than it chose."""
    stock = stock_ctas(collective, cost)
    budgets = [stock]
    if knobs.cta_budgets and collective.kind in _KIND_KEYS:
        budgets += [c for c in knobs.ctas if c < stock]
    if collective.kind == CollectiveKind.ALL_GATHER and knobs.copies(collective.group):
        budgets.append(0)
    return sorted(budgets)


def _full_product(
    budgets: list[list[int]], positions: list[tuple[int, ...]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    shape = [len(axis) for pair in zip(budgets, positions, strict=True) for axis in pair]
    while math.prod(shape) > MAX_SETTINGS:  # thin the longest axis of positions, keeping both ends
        longest = max(range(len(positions)), key=lambda j: len(positions[j]))
        kept = np.unique(
            np.linspace(0, len(positions[longest]) - 1, len(positions[longest]) // 2 + 1).astype(int)
        )
        positions = [*positions]
        positions[longest] = tuple(positions[longest][i] for i in kept)
        shape = [len(axis) for pair in zip(budgets, positions, strict=True) for axis in pair]
    index = np.indices(shape).reshape(len(shape), -1)
    num_ctas = np.stack([np.array(b, np.int64)[index[2 * j]] for j, b in enumerate(budgets)], axis=1)
    position = np.stack([np.array(p, np.int64)[index[2 * j + 1]] for j, p in enumerate(positions)], axis=1)
    return num_ctas, position


def _same_budget_per_kind(
    span: Span, collectives: tuple[CollectiveOp, ...], budgets: list[list[int]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    kinds = [collectives[m.row].kind for m in span.collectives]
    distinct = sorted(set(kinds))
    per_kind = []
    for kind in distinct:
        own = [set(b) for b, k in zip(budgets, kinds, strict=True) if k == kind]
        everywhere = set.intersection(*own)  # the copy engine reaches all of them or is left out
        per_kind.append(sorted(c for c in set.union(*own) if c != 0 or c in everywhere))
    index = np.indices([len(b) for b in per_kind]).reshape(len(per_kind), -1)
    column = {d: np.array(per_kind[i], np.int64)[index[i]] for i, d in enumerate(distinct)}
    num_ctas = np.stack([column[k] for k in kinds], axis=1)
    position = np.tile(np.array([m.stock for m in span.collectives], np.int64), (len(num_ctas), 1))
    return num_ctas, position


def option_table(
    name: str,
    span: Span,
    work: SpanWork,
    pause_us: float,
    collectives: tuple[CollectiveOp, ...],
    cost: CostModel,
    knobs: Knobs,
    clocks_mhz: tuple[int, ...],
    *,
    limited_memory: bool = False,
    stock_sd_us: Sequence[float | None] = (),
    robust: bool = False,
) -> OptionTable:
    """Enumerate and price a span kind at every clock level, and keep what can be optimal.

    `pause_us` is added to every setting: launch gaps that no setting changes. Times and energies are
    rounded up, so no plan is promised to be better than the table. Where the clock is not ours, a setting
    that is worth keeping at one level is kept at all of them: which level the GPU will run follows from what
    the same settings draw at the next one. Where memory is limited, a setting is dominated only by those
    that need the same communicators and buffers.

    `stock_sd_us` is the spread of the recorded span for each clock level. Where it is known the worst case of
    the setting as recorded is taken from it: that setting was seen, whatever is unsure about the model.
    `robust` judges settings by their worst cases: one that is a little slower but better known is kept. The
    worst cases of all settings then stay in the table.
    """
    settings = enumerate_settings(span, collectives, cost, knobs)
    stock = settings.num_ctas[0], settings.position[0]
    changes = ((settings.num_ctas != stock[0]) | (settings.position != stock[1])).sum(
        axis=1
    ) + settings.serialise
    keys = tuple(ladder_key(collectives[m.row]) for m in span.collectives)
    options: list[Option] = []
    rows: list[int] = []
    priced = _price(work, pause_us, settings, cost, clocks_mhz)
    for costs, sd_us in zip(priced, stock_sd_us, strict=False):
        if sd_us is not None:
            costs.time_hi_us[0] = costs.time_us[0] + Z90 * sd_us
    buffers = _buffer_bytes(settings, tuple(collectives[m.row] for m in span.collectives))
    needs = _needs(settings, buffers) if limited_memory else np.zeros(len(settings), np.int64)
    always = (0, 1) if len(settings) > 1 else (0,)
    kept = [_non_dominated(costs, changes, needs, always=always, robust=robust) for costs in priced]
    if knobs.clocks == "off":
        kept = [sorted(set().union(*kept))] * len(priced)
    for level, costs in enumerate(priced):
        for row in kept[level]:
            options.append(_option(costs, settings, stock[0], changes, keys, buffers, int(row), level))
            rows.append(int(row))
    return OptionTable(
        kind=SpanKind(name=name, options=tuple(options), stock=rows.index(0)),
        settings=settings,
        row=np.array(rows, np.int64),
        ladders=keys,
        stock_row=0,
        serial_row=min(1, len(settings) - 1),
        priced=len(settings) * len(clocks_mhz),
        worst_time_us=np.array([costs.time_hi_us for costs in priced if robust], np.float64),
        worst_energy_j=np.array([costs.energy_hi_j for costs in priced if robust], np.float64),
    )


def ladder_key(collective: CollectiveOp) -> str:
    """The communicator family a budget is drawn from: rank tuple and kind."""
    return f"{_KIND_KEYS.get(collective.kind, 'other')}@{','.join(map(str, collective.group))}"


def copy_buffer_bytes(collective: CollectiveOp) -> int:
    """Symmetric memory that sending a collective by copy engine needs on each rank.

    A rank publishes its shard of an all-gather, or its whole message otherwise, in slots used in turn.
    """
    shards = max(len(collective.group), 1) if collective.kind == CollectiveKind.ALL_GATHER else 1
    return COPY_SLOTS * -(-collective.num_bytes // shards)


def _price(
    work: SpanWork, pause_us: float, settings: Settings, cost: CostModel, clocks_mhz: tuple[int, ...]
) -> list[SpanCosts]:
    """Prices of all settings at each clock, from one call: what clocks share is computed once."""
    count, levels = len(settings), len(clocks_mhz)
    costs = evaluate(
        work,
        SpanConfigs(
            num_ctas=np.tile(settings.num_ctas, (levels, 1)),
            position=np.tile(settings.position, (levels, 1)),
            serialise=np.tile(settings.serialise, levels),
            sm_clock_mhz=np.repeat(np.array(clocks_mhz, float), count),
        ),
        cost,
    )
    names = SpanCosts.__dataclass_fields__
    parts = [
        SpanCosts(**{name: getattr(costs, name)[i * count : (i + 1) * count] for name in names})
        for i in range(levels)
    ]
    return [
        replace(part, time_us=part.time_us + pause_us, time_hi_us=part.time_hi_us + pause_us)
        for part in parts
    ]


def _buffer_bytes(settings: Settings, members: tuple[CollectiveOp, ...]) -> NDArray[np.int64]:
    """Copy-engine buffers of each setting; collectives of one kind and group share theirs."""
    found = np.zeros(len(settings), np.int64)
    for key in {ladder_key(member) for member in members}:
        alike = [j for j, member in enumerate(members) if ladder_key(member) == key]
        needed = np.array([copy_buffer_bytes(members[j]) for j in alike], np.int64)
        found += np.where(settings.num_ctas[:, alike] == 0, needed, 0).max(axis=1)
    return found


def _needs(settings: Settings, buffers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of each setting's class: equal where budgets and buffers are equal."""
    _, found = np.unique(np.column_stack([settings.num_ctas, buffers]), axis=0, return_inverse=True)
    return np.asarray(found.reshape(-1), np.int64)


def _non_dominated(
    costs: SpanCosts,
    changes: NDArray[np.int64],
    needs: NDArray[np.int64],
    *,
    always: tuple[int, ...],
    robust: bool,
) -> list[int]:
    """Rows that none of equal needs beats in time and energy, fewest changes first, stock ahead of all."""
    time = np.ceil(costs.time_hi_us if robust else costs.time_us)
    energy = np.ceil((costs.energy_hi_j if robust else costs.energy_j) * 1000)
    order = np.lexsort((changes, energy, time))
    kept: list[int] = []
    best: dict[int, float] = {}
    for row in order:
        if energy[row] < best.get(int(needs[row]), np.inf):
            kept.append(int(row))
            best[int(needs[row])] = energy[row]
    return [*always, *(row for row in kept if row not in always)]


def _rungs(
    keys: tuple[str, ...], num_ctas: NDArray[np.int64], stock: NDArray[np.int64]
) -> frozenset[tuple[str, int]]:
    """Communicators to be made: neither stock's own nor the copy engine, which needs none."""
    return frozenset(
        (key, int(ctas))
        for key, ctas, usual in zip(keys, num_ctas, stock, strict=True)
        if ctas != usual and ctas > 0
    )


def _option(
    costs: SpanCosts,
    settings: Settings,
    stock: NDArray[np.int64],
    changes: NDArray[np.int64],
    keys: tuple[str, ...],
    buffers: NDArray[np.int64],
    row: int,
    level: int,
) -> Option:
    rungs = _rungs(keys, settings.num_ctas[row], stock)
    return Option(
        label=str(row),
        clock=level,
        time_us=math.ceil(costs.time_us[row]),
        energy_mj=math.ceil(costs.energy_j[row] * 1000),
        rungs=tuple(sorted(rungs)),
        changes=int(changes[row]),
        memory_bytes=int(buffers[row]),
        worst_time_us=math.ceil(costs.time_hi_us[row]),
        worst_energy_mj=math.ceil(costs.energy_hi_j[row] * 1000),
    )
