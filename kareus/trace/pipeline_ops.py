"""What-if replay of pipeline jobs recorded as operators instead of kernels, one row an operator, rank and step.

The form in which ByteDance published three jobs (github.com/ByteDance-Seed/StragglerAnalysis, Apache-2.0; Lin et
al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025). Every rank of a stage
runs the same operators in the same order, so the graph is built once, and each operator's times are one array
over data-parallel ranks and steps. Transfers meet as in `kareus.trace.replay`: they end a transfer time after the
last of their group has started. What waits for what follows the rules of the published
analyzer. Times are seconds, as in the published files.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kareus.errors import InputError
from kareus.trace.types import F64

COLUMNS = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id", "mc")
COMPUTE = ("forward-compute", "backward-compute")
GATHER, REDUCE, CLIP = "params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad"
EMBEDDING, LAYERNORM = "embedding-grads-all-reduce", "layernorm-grads-all-reduce"
ACROSS_DATA_PARALLEL = (GATHER, REDUCE, CLIP)
TRANSFERS = (
    "forward-send",
    "forward-recv",
    "backward-send",
    "backward-recv",
    *ACROSS_DATA_PARALLEL,
    EMBEDDING,
)
CLOCK_TOLERANCE_S = 0.01  # a transfer that ended this long before the last start has clocks that disagree

Op = tuple[str, int, int]  # kind, number in its kind, stage


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineJob:
    """One job; arrays are float64[data-parallel ranks, steps], seconds.

    Attributes:
        steps: their numbers. start, duration: of each op, start from the step's first.
        transfer: of ops that meet others, from the last start of the group to their own end.
        before: what each op waits for. group: the ops each transfer meets, itself among them.
    """

    steps: tuple[int, ...]
    start: dict[Op, F64]
    duration: dict[Op, F64]
    transfer: dict[Op, F64]
    before: dict[Op, tuple[Op, ...]]
    group: dict[Op, tuple[Op, ...]]

    def recorded_s(self) -> F64:
        """Step times as recorded, float64[steps]."""
        ends = [self.start[op] + self.duration[op] for op in self.start]
        return np.asarray(np.max(ends, axis=(0, 1)) - np.min(list(self.start.values()), axis=(0, 1)))


def read_job(table: Mapping[str, NDArray[Any]]) -> PipelineJob:
    """Build the graph of a job from its columns.

    Args:
        table: COLUMNS, equally long; optype as text.

    Raises:
        InputError: a column is missing, several model chunks a stage, or ranks with different operators.
    """
    if missing := [name for name in COLUMNS if name not in table]:
        raise InputError(
            f"table of operators: expected columns {', '.join(COLUMNS)}, without {', '.join(missing)}"
        )
    if int(np.max(table["mc"])) > 0:
        raise InputError(
            f"table of operators: {int(np.max(table['mc'])) + 1} model chunks a stage, one is supported"
        )
    steps, step = np.unique(table["step"], return_inverse=True)
    ranks = int(np.max(table["dp_rank"])) + 1
    began = np.full(len(steps), np.inf)
    np.minimum.at(began, step, table["start_ts"].astype(float))
    start: dict[Op, F64] = defaultdict(lambda: np.full((ranks, len(steps)), np.nan))
    duration: dict[Op, F64] = defaultdict(lambda: np.full((ranks, len(steps)), np.nan))
    keys = zip(map(str, table["optype"]), table["seq_id"].tolist(), table["stage"].tolist(), strict=True)
    rows = zip(keys, table["dp_rank"].tolist(), step.tolist(), table["start_ts"].tolist(),
               table["duration"].tolist(), strict=True)  # fmt: skip
    for op, rank, at, begins, lasts in rows:
        start[op][rank, at], duration[op][rank, at] = begins - began[at], lasts
    torn = [op for op, times in start.items() if np.isnan(times).any()]
    if torn:
        raise InputError(
            f"table of operators: {len(torn)} operators not on every rank and step, first {torn[0]}"
        )
    before = _before(start, duration, ranks)
    group = _groups(start)
    transfer = {}
    for op, members in group.items():
        latest = _latest(op, [start[one] for one in members])
        took = start[op] + duration[op] - latest
        transfer[op] = np.where(took <= -CLOCK_TOLERANCE_S, 0.0, took)
    return PipelineJob(
        steps=tuple(int(s) for s in steps),
        start=dict(start),
        duration=dict(duration),
        transfer=transfer,
        before=before,
        group=group,
    )


def _latest(op: Op, starts: list[F64]) -> F64:
    """When the last of a group starts; data-parallel groups span the ranks too."""
    latest = np.maximum.reduce(starts)
    if op[0] in ACROSS_DATA_PARALLEL:
        latest = np.broadcast_to(latest.max(axis=0, keepdims=True), latest.shape)
    return np.asarray(latest)


def _groups(ops: Mapping[Op, F64]) -> dict[Op, tuple[Op, ...]]:
    """Who meets whom: sends and receives of neighbours, the embedding's two stages, everybody for the norm."""
    group: dict[Op, tuple[Op, ...]] = {}
    for op in ops:
        kind, number, stage = op
        if kind in (EMBEDDING, CLIP):
            group[op] = tuple(one for one in ops if one[:2] == (kind, number))
        elif kind in TRANSFERS:
            direction, what = kind.split("-", 1)
            peer = op
            if what in ("send", "recv"):
                step = 1 if (direction == "forward") == (what == "send") else -1
                peer = (f"{direction}-{'recv' if what == 'send' else 'send'}", number, stage + step)
            group[op] = (op, peer) if peer in ops and peer != op else (op,)
    return group


def _before(start: Mapping[Op, F64], duration: Mapping[Op, F64], ranks: int) -> dict[Op, tuple[Op, ...]]:
    before: dict[Op, list[Op]] = {op: [] for op in start}

    def chain(ops: list[Op]) -> None:
        for source, target in itertools.pairwise(ops):
            before[target].append(source)

    def ordered(stage: int, *kinds: str) -> list[Op]:
        found = [op for op in start if op[2] == stage and op[0] in kinds]
        return sorted(found, key=lambda op: (start[op][0, 0], op[1], op[0]))

    for stage in sorted({op[2] for op in start}):
        compute = ordered(stage, *COMPUTE)
        chain(compute)
        for direction in ("forward", "backward"):
            steps = [op for op in compute if op[0] == f"{direction}-compute"]
            for what in ("send", "recv"):
                moves = ordered(stage, f"{direction}-{what}")
                chain(moves)
                for number, (move, work) in enumerate(zip(moves, steps, strict=False)):
                    if what == "send":
                        before[move].append(work)
                    else:  # a receive is posted when the computation before it has ended
                        before[work].append(move)
                        before[move] += steps[number - 1 : number] if number else []
        first = next((i for i, op in enumerate(compute) if op[0] == "backward-compute"), 0)
        if first >= 2:
            for kind in ("backward-recv", "backward-send"):
                if (kind, 0, stage) in before:
                    before[kind, 0, stage].append(compute[first - 2])
        chain(ordered(stage, GATHER, REDUCE))
        if gathers := ordered(stage, GATHER):
            before[next(op for op in compute if op[0] == "forward-compute")].append(gathers[-1])
        last = max(compute, key=lambda op: float(start[op][0, 0] + duration[op][0, 0]))
        tail = [
            op
            for kind in ("gc", LAYERNORM, EMBEDDING, REDUCE, CLIP, "optimizer")
            for op in ordered(stage, kind)
        ]
        chain([last, *tail])
    return {op: tuple(sources) for op, sources in before.items()}


def replay_job(
    job: PipelineJob, duration: Mapping[Op, F64], transfer: Mapping[Op, F64]
) -> tuple[F64, dict[Op, F64]]:
    """Replay with given durations and no delay between what an op waits for and its start.

    Returns:
        Step times, float64[steps], and the time each op lasts, waiting included.

    Raises:
        InputError: operators wait for each other in a circle.
    """
    start: dict[Op, F64] = {}
    end: dict[Op, F64] = {}
    after: dict[Op, list[Op]] = defaultdict(list)
    for op, sources in job.before.items():
        for source in sources:
            after[source].append(op)
    open_sources = {op: len(sources) for op, sources in job.before.items()}
    todo = [op for op, count in open_sources.items() if count == 0]
    zero = np.zeros_like(next(iter(job.start.values())))
    while todo:
        op = todo.pop()
        start[op] = np.maximum.reduce([zero, *(end[source] for source in job.before[op])])
        members = job.group.get(op, (op,))
        if any(one not in start for one in members):
            continue
        latest = _latest(op, [start[one] for one in members])
        for one in members:
            end[one] = latest + transfer[one] if one in job.group else start[one] + duration[one]
            for following in after[one]:
                open_sources[following] -= 1
                if open_sources[following] == 0:
                    todo.append(following)
    if len(end) != len(job.start):
        stuck = next(op for op in job.start if op not in end)
        raise InputError(
            f"table of operators: {stuck} waits for itself; its order is none that a pipeline runs"
        )
    total = np.max(list(end.values()), axis=(0, 1)) - np.min(list(start.values()), axis=(0, 1))
    return np.asarray(total), {op: end[op] - start[op] for op in end}


def without_stragglers(job: PipelineJob, lasts: Mapping[Op, F64]) -> tuple[dict[Op, F64], dict[Op, F64]]:
    """Return durations and transfers all equal per kind: mean of computation, median of communication."""
    duration, transfer = {}, {}
    for kind in {op[0] for op in job.start}:
        ops = [op for op in job.start if op[0] == kind]
        middle = np.median if kind in (*TRANSFERS, LAYERNORM) else np.mean
        even = float(middle([lasts[op] for op in ops]))
        even_transfer = float(middle([job.transfer[op] for op in ops])) if ops[0] in job.transfer else 0.0
        for op in ops:
            duration[op] = np.full_like(job.start[op], even)
            if op in job.transfer:
                transfer[op] = np.full_like(job.start[op], even_transfer)
    return duration, transfer
