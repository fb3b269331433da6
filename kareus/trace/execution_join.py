"""Finds the operators of an execution trace in the Kineto file of the same run.

By torch's record function id where Kineto wrote it (since torch 2.4), else by External id where that is the
same number, else by the order of names on each thread. Nothing is believed that names do not confirm, and what
the recording contradicts refuses the whole file (`kareus.trace.execution_check`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kareus.errors import InputError
from kareus.trace.execution import ExecutionTrace
from kareus.trace.execution_check import refuse_contradictions
from kareus.trace.grouping import distinct
from kareus.trace.rawtrace import CommArgs, RawTrace
from kareus.trace.types import I64, ExecutionLink, OpKind, OpTable

LEAST_AGREEING = 0.9  # share of operators found whose names must agree
WHOLE = 0.98  # the same on a thread for its sequence numbers; below, a stretch too many or too few may hide
SHIFTS_TRIED = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """Rows of Kineto operators, -1 where none: int64[operators of the execution trace].

    Attributes:
        unique: False where several stretches of the Kineto file fit equally well (a step that repeats) or one
            fits in part: groups and sizes are known then, sequence numbers are not.
    """

    row: I64
    how: str
    unique: bool


def join(execution: ExecutionTrace, raw: RawTrace) -> Joined:
    """Find the operators.

    Raises:
        InputError: recorded by another process, or names do not agree.
    """
    pids = {pid for pid in raw.operator_pids if pid >= 0}
    if execution.pid >= 0 and pids and execution.pid not in pids:
        raise InputError(
            f"{execution.path}: execution trace of process {execution.pid}, but {raw.path} was recorded by "
            f"process {', '.join(map(str, sorted(pids)[:4]))}; pass the one written in the same run by this rank"
        )
    numbers: dict[str, int] = {}
    ours = np.array([numbers.setdefault(n, len(numbers)) for n in execution.names], np.int64)
    theirs = np.array([numbers.setdefault(n, len(numbers)) for n in raw.operator_names], np.int64)
    for column, how in ((4, "record function id"), (3, "external id")):
        row = _claimed_once(_by_id(execution.record_id, raw.operators[:, column]))
        found = row >= 0
        if found.any() and (ours[found] == theirs[row[found]]).mean() >= LEAST_AGREEING:
            row[found] = np.where(_in_agreement(ours[found] == theirs[row[found]]), row[found], -1)
            return Joined(row=row, how=how, unique=True)
    facts = _facts(execution)
    row, unique = _by_order(execution.thread, ours, facts, raw.operators, theirs)
    if not (row >= 0).any():
        raise InputError(
            f"{execution.path}: execution trace of {len(ours)} operators, none of which is found in the order of "
            f"the {len(theirs)} operators of {raw.path}; pass the one written in the same run by this rank"
        )
    return Joined(row=row, how="order of names", unique=unique)


def _by_id(wanted: I64, ids: I64) -> I64:
    row = np.full(len(wanted), -1, np.int64)
    known = np.flatnonzero(ids >= 0)
    if len(known) and len(wanted):
        known = known[np.argsort(ids[known], kind="stable")]
        at = np.minimum(np.searchsorted(ids[known], wanted), len(known) - 1)
        hit = ids[known[at]] == wanted
        row[hit] = known[at[hit]]
    return row


def _claimed_once(row: I64) -> I64:
    """Drop Kineto rows that several operators claim: an id was written twice, and one of them is wrong."""
    rows, counts = np.unique(row[row >= 0], return_counts=True)
    return np.where(np.isin(row, rows[counts > 1]), -1, row)


def _facts(execution: ExecutionTrace) -> I64:
    """A number for what each operator says of a collective, its sequence number aside; -1 where nothing."""
    numbers: dict[CommArgs, int] = {}
    facts = np.full(len(execution.names), -1, np.int64)
    for row, args in execution.comm.items():
        facts[row] = numbers.setdefault(replace(args, sequence=-1), len(numbers))
    return facts


def _by_order(thread: I64, ours: I64, facts: I64, operators: I64, theirs: I64) -> tuple[I64, bool]:
    """Lay each thread's names beside those of each Kineto thread; the best fit that is good enough counts.

    Where several fit equally well and leave open what a collective is, none counts.
    """
    row, unique, taken = np.full(len(ours), -1, np.int64), True, set()
    rows_of = {}
    for one in distinct(operators[:, 2]).tolist():
        rows = np.flatnonzero(operators[:, 2] == one)
        rows_of[one] = rows[np.lexsort((-operators[rows, 1], operators[rows, 0]))]
    threads, counts = np.unique(thread, return_counts=True)
    for one in threads[np.argsort(-counts, kind="stable")].tolist():
        mine = np.flatnonzero(thread == one)
        fits = [
            (agreeing, -abs(shift), shift, other)
            for other, rows in rows_of.items()
            if other not in taken
            for agreeing, shift in _fits(ours[mine], theirs[rows])
        ]
        if not fits:
            continue
        best = [fit for fit in fits if fit[0] == max(fits)[0]]
        if _undecided(facts[mine], [(other, shift) for _, _, shift, other in best]):
            continue
        agreeing, _, shift, other = max(fits)
        taken.add(other)
        whole = agreeing >= WHOLE * min(len(mine), len(rows_of[other]))
        unique = unique and whole and len(best) == 1
        at = np.arange(len(mine)) + shift
        inside = (at >= 0) & (at < len(rows_of[other]))
        found = rows_of[other][at[inside]]
        row[mine[inside]] = np.where(_in_agreement(ours[mine[inside]] == theirs[found]), found, -1)
    return row, unique


def _in_agreement(same: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which names agree together with their neighbours': a name alone may agree by chance."""
    left, right = np.append(True, same[:-1]), np.append(same[1:], True)
    agreed: NDArray[np.bool_] = same & left & right
    return agreed


def _undecided(facts: I64, fits: list[tuple[int, int]]) -> bool:
    """Return whether equally good fits, each (Kineto thread, shift), leave open what a collective is.

    They may be the repetitions of a step: then none lies further from the next than the operators reach, and
    all say the same of a Kineto operator.
    """
    rows = np.flatnonzero(facts >= 0)
    if len(fits) < 2 or len(rows) == 0:
        return False
    shifts = sorted(shift for _, shift in fits)
    if len({thread for thread, _ in fits}) > 1 or max(np.diff(shifts)) > len(facts):
        return True
    said: dict[int, int] = {}
    places = ((row + shift, int(facts[row])) for shift in shifts for row in rows.tolist())
    return any(said.setdefault(at, fact) != fact for at, fact in places)


def _fits(ours: I64, theirs: I64) -> list[tuple[int, int]]:
    """Return (names that agree, shift) of the best shifts, all equally good; [] where none is good enough."""
    values, counts = np.unique(theirs, return_counts=True)
    at = np.minimum(np.searchsorted(values, ours), len(values) - 1)
    frequency = np.where(values[at] == ours, counts[at], len(theirs) + 1)
    rarest = int(frequency.argmin())
    if frequency[rarest] > len(theirs):
        return []
    scores = []
    for position in np.flatnonzero(theirs == ours[rarest])[:SHIFTS_TRIED].tolist():
        shift = position - rarest
        first, last = max(0, -shift), min(len(ours), len(theirs) - shift)
        agreeing = int((ours[first:last] == theirs[first + shift : last + shift]).sum())
        if agreeing >= max(LEAST_AGREEING * (last - first), 0.5 * min(len(ours), len(theirs)), 1):
            scores.append((agreeing, shift))
    return [score for score in scores if score[0] == max(scores)[0]]


def execution_facts(
    execution: ExecutionTrace,
    raw: RawTrace,
    ops: OpTable,
    comm: dict[int, CommArgs],
    rank: int,
    world_size: int,
) -> tuple[dict[int, CommArgs], ExecutionLink]:
    """Return the arguments of collectives with what the execution trace adds, and how the join went.

    Args:
        ops: GPU work items. comm: arguments that Kineto gave, by row of `ops`; they win where both speak.
        rank: whose trace. world_size: a group of as many ranks holds all of them.

    Raises:
        InputError: see `join` and `refuse_contradictions`.
    """
    joined = join(execution, raw)
    result, linked = dict(comm), np.zeros(len(ops), bool)
    for thread in distinct(ops.launch_thread[ops.launch_ns >= 0]).tolist():
        rows = joined.row[joined.row >= 0]
        spans = raw.operators[rows[raw.operators[rows, 2] == thread], :2]
        mine = np.flatnonzero((ops.launch_thread == thread) & (ops.launch_ns >= 0))
        if len(spans):
            spans = spans[np.argsort(spans[:, 0], kind="stable")]
            before = np.searchsorted(spans[:, 0], ops.launch_ns[mine], side="right") - 1
            reach = np.maximum.accumulate(spans[:, 1])[np.maximum(before, 0)]
            linked[mine] = (before >= 0) & (reach >= ops.launch_ns[mine])
    collective = np.flatnonzero((ops.kind == OpKind.COLLECTIVE) & (ops.launch_ns >= 0))
    named: dict[int, CommArgs] = {}
    for row, args in execution.comm.items():
        if (at := int(joined.row[row])) < 0:
            continue
        start, end, thread = raw.operators[at, :3].tolist()
        inside = (ops.launch_thread[collective] == thread) & (ops.launch_ns[collective] >= start)
        for op in collective[inside & (ops.launch_ns[collective] <= end)].tolist():
            result[op] = _merged(comm.get(op), args, world_size, unique=joined.unique)
            named[op] = args
    refuse_contradictions(execution, named, comm, raw, ops, rank, world_size)
    return result, ExecutionLink(
        file=str(execution.path),
        joined_by=joined.how,
        operators=len(execution.names),
        operators_joined=int((joined.row >= 0).sum()),
        kernels_linked=int(linked.sum()),
        collectives_named=len(named),
    )


def _merged(kineto: CommArgs | None, args: CommArgs, world_size: int, *, unique: bool) -> CommArgs:
    ranks = args.group_ranks
    if not ranks and args.group_size == world_size > 1:
        ranks = str(list(range(world_size)))
    sequence = args.sequence if unique else -1
    if kineto is None:
        return CommArgs(
            collective=args.collective,
            in_elements=args.in_elements,
            out_elements=args.out_elements,
            dtype=args.dtype,
            group_name=args.group_name,
            group_ranks=ranks,
            sequence=sequence,
            group_size=args.group_size,
            group_description=args.group_description,
        )
    return CommArgs(
        collective=kineto.collective,
        in_elements=kineto.in_elements or args.in_elements,
        out_elements=kineto.out_elements or args.out_elements,
        dtype=kineto.dtype or args.dtype,
        group_name=kineto.group_name or args.group_name,
        group_ranks=ranks if not kineto.group_ranks or "..." in kineto.group_ranks else kineto.group_ranks,
        sequence=kineto.sequence if kineto.sequence >= 0 else sequence,
        group_size=kineto.group_size or args.group_size,
        group_description=kineto.group_description or args.group_description,
    )
