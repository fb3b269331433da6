"""Pipeline-parallel steps as graphs of forwards and backwards.

A step of `num_stages` x `num_micro_batches` is a graph whose nodes are one forward or backward of one
micro-batch on one stage. Its edges are the order in which a stage executes and the activations and
gradients that travel between stages. Orders are those of the 1F1B and interleaved 1F1B schedules
(Narayanan et al., SC'21).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kareus.errors import InputError, UsageError
from kareus.plan.policies.choose import plausible
from kareus.plan.policies.csv_file import read_number, read_rows

Kind = Literal["forward", "backward"]

MAX_OPERATIONS = 20_000  # of a step; planning takes minutes there and grows faster than the graph


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One forward or backward; `stage` is the device, `chunk` its model chunk (0 without interleaving)."""

    stage: int
    kind: Kind
    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """A step's graph.

    Attributes:
        num_stages: devices, each paying blocking power for the whole step.
        operations: grouped by stage, in the order each stage executes them.
        edges: (before, after) indices into `operations`.
    """

    num_stages: int
    operations: tuple[Operation, ...]
    edges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageOption:
    """Measured cost of one operation at one SM clock: seconds and joules, alone on its device."""

    sm_clock_mhz: int
    time_s: float
    energy_j: float


StageProfile = Mapping[tuple[int, Kind], Sequence[StageOption]]


def one_f_one_b(num_stages: int, num_micro_batches: int) -> Pipeline:
    """Return the 1F1B schedule.

    Raises:
        UsageError: a count below 1.
    """
    return interleaved(num_stages, num_micro_batches, 1)


def interleaved(num_stages: int, num_micro_batches: int, num_chunks: int) -> Pipeline:
    """Return the interleaved 1F1B schedule of `num_chunks` model chunks per device.

    Raises:
        UsageError: a count below 1, more than `MAX_OPERATIONS`, or, with more than one chunk, micro-batches not
            divisible by stages.
    """
    if min(num_stages, num_micro_batches, num_chunks) < 1:
        raise UsageError(
            "expected at least one stage, micro-batch and chunk, "
            f"found {num_stages}, {num_micro_batches} and {num_chunks}"
        )
    count = 2 * num_stages * num_micro_batches * num_chunks
    if count > MAX_OPERATIONS:
        raise UsageError(
            f"expected at most {MAX_OPERATIONS} forwards and backwards, found {count}; plan fewer micro-batches"
        )
    if num_chunks > 1 and num_micro_batches % num_stages:
        raise UsageError(
            f"interleaving needs micro-batches in multiples of the {num_stages} stages, "
            f"found {num_micro_batches}; add or drop micro-batches"
        )
    operations: list[Operation] = []
    edges: list[tuple[int, int]] = []
    for stage in range(num_stages):
        first = len(operations)
        operations += _stage_order(stage, num_stages, num_micro_batches, num_chunks)
        edges += [(i, i + 1) for i in range(first, len(operations) - 1)]
    index = {op: i for i, op in enumerate(operations)}
    last = num_stages * num_chunks - 1
    for op, i in index.items():
        depth = op.chunk * num_stages + op.stage
        if depth < last:
            neighbour = Operation(
                stage=(depth + 1) % num_stages,
                kind=op.kind,
                micro_batch=op.micro_batch,
                chunk=(depth + 1) // num_stages,
            )
            j = index[neighbour]
            edges.append((i, j) if op.kind == "forward" else (j, i))
        elif op.kind == "forward":
            edges.append((i, index[replace(op, kind="backward")]))
    return Pipeline(num_stages=num_stages, operations=tuple(operations), edges=tuple(edges))


def _stage_order(stage: int, num_stages: int, num_micro_batches: int, num_chunks: int) -> list[Operation]:
    total = num_micro_batches * num_chunks
    if num_chunks == 1:
        warm_up = min(num_stages - stage - 1, total)
    else:
        warm_up = min((num_stages - stage - 1) * 2 + (num_chunks - 1) * num_stages, total)

    def at(k: int, kind: Kind) -> Operation:
        # Micro-batches pass through the chunks in groups of num_stages, backwards in reverse chunk order.
        group = num_stages if num_chunks > 1 else 1
        chunk = k % (group * num_chunks) // group
        return Operation(
            stage=stage,
            kind=kind,
            micro_batch=k // (group * num_chunks) * group + k % group,
            chunk=chunk if kind == "forward" else num_chunks - 1 - chunk,
        )

    order = [at(k, "forward") for k in range(warm_up)]
    for k in range(total - warm_up):
        order += [at(warm_up + k, "forward"), at(k, "backward")]
    return order + [at(k, "backward") for k in range(total - warm_up, total)]


def data_parallel(num_ranks: int) -> Pipeline:
    """Return a step of independent ranks that meet at its end: DDP or FSDP seen as one operation a rank.

    Without a straggler no rank has slack; a slow rank gives the others theirs.
    """
    if num_ranks < 1:
        raise UsageError(f"expected at least one rank, found {num_ranks}")
    ranks = tuple(Operation(stage=r, kind="forward", micro_batch=0) for r in range(num_ranks))
    return Pipeline(num_stages=num_ranks, operations=ranks, edges=())


def read_stage_profile(path: str | os.PathLike[str]) -> dict[tuple[int, Kind], tuple[StageOption, ...]]:
    """Read a CSV: stage, instruction (forward or backward), frequency (MHz), time (s), energy (J).

    Raises:
        InputError: unreadable, a missing column, an unknown instruction or a number that makes no sense.
    """
    profile: dict[tuple[int, Kind], list[StageOption]] = {}
    for count, row in enumerate(
        read_rows(path, "a stage profile with stage,instruction,frequency,time,energy"), 1
    ):
        key, option = _profile_row(row, f"{path}, row {count}")
        profile.setdefault(key, []).append(option)
    return {key: tuple(options) for key, options in profile.items()}


def _profile_row(row: Mapping[str, str], where: str) -> tuple[tuple[int, Kind], StageOption]:
    try:
        stage, clock = int(row["stage"]), int(read_number(row, "frequency"))
        time_s, energy_j = read_number(row, "time"), read_number(row, "energy")
        name = row["instruction"]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{where}: expected numbers under stage, frequency (MHz), time (s), energy (J) "
            f"and a name under instruction, found {dict(row)} ({error})"
        ) from error
    if not (
        plausible(time_s)
        and (energy_j == 0 or plausible(energy_j))
        and 0 <= stage < MAX_OPERATIONS
        and clock > 0
    ):
        raise InputError(
            f"{where}: expected a stage of at least 0, a positive frequency and time and an energy of at least 0, "
            f"found {dict(row)}"
        )
    kind: Kind
    if name == "forward":
        kind = "forward"
    elif name == "backward":
        kind = "backward"
    else:
        raise InputError(f"{where}: expected instruction forward or backward, found {name!r}")
    return (stage, kind), StageOption(sm_clock_mhz=clock, time_s=time_s, energy_j=energy_j)
