"""What an execution trace says of collectives, held against what the Kineto file of the same run recorded.

Ids and names may agree by chance, or a file may be damaged where nothing else shows it. A collective linked to the
wrong operator gets a size and a group that look right, so the first contradiction refuses the whole file.
"""

from __future__ import annotations

from kareus.errors import InputError
from kareus.trace import kernels
from kareus.trace.collectives import ranks_of
from kareus.trace.execution import ExecutionTrace
from kareus.trace.rawtrace import CommArgs, RawTrace
from kareus.trace.types import CollectiveKind, OpTable

# Kernels of these are written for one collective only. NCCL builds others, and uneven gathers, from broadcasts,
# sends and receives.
PLAIN = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


def refuse_contradictions(
    execution: ExecutionTrace,
    named: dict[int, CommArgs],
    known: dict[int, CommArgs],
    raw: RawTrace,
    ops: OpTable,
    rank: int,
    world_size: int,
) -> None:
    """Check what an execution trace says of collectives.

    Args:
        named: what it says, by row of `ops`. known: what Kineto says itself, by row of `ops`.
        raw: for names. ops: GPU work items. rank, world_size: of the Kineto file.

    Raises:
        InputError: sequence numbers of a group that fall, another collective than the kernel, another sequence
            number than Kineto's, or a group that this rank cannot be in.
    """
    remedy = "pass the execution trace written in the same run by this rank"
    if wrong := _falling(execution):
        raise InputError(f"{execution.path}: operators or ids are mixed up: {wrong}; {remedy}")
    for op, args in named.items():
        kernel = raw.names[int(ops.name[op])]
        wrong = _against_kernel(args, kernel) or _against_kineto(args, known.get(op))
        if wrong := wrong or _against_job(args, rank, world_size):
            raise InputError(
                f"{execution.path}: does not fit {raw.path}: kernel {kernel[:60]} launched at "
                f"{int(ops.launch_ns[op])} ns is said to be {args.collective!r} with {wrong}; {remedy}"
            )


def _falling(execution: ExecutionTrace) -> str:
    """Where a group's sequence numbers fall in order of record function ids; sends and receives count apart."""
    newest: dict[tuple[str, str], tuple[int, int]] = {}
    for row, args in sorted(execution.comm.items()):
        if args.sequence < 0 or _kind(args) in (None, CollectiveKind.SEND_RECV):
            continue
        group, number = (args.group_name, args.group_description), int(execution.record_id[row])
        before, its_id = newest.get(group, (-1, -1))
        if args.sequence < before:
            return (
                f"record function {its_id} has sequence number {before}, the later {number} {args.sequence}"
            )
        newest[group] = args.sequence, number
    return ""


def _kind(args: CommArgs) -> CollectiveKind | None:
    return kernels.COLLECTIVE_NAMES.get(args.collective.lower())


def _against_kernel(args: CommArgs, name: str) -> str:
    kernel, said = kernels.classify(name).collective, _kind(args)
    if kernel in PLAIN and said in PLAIN and kernel != said:
        return f"another kernel than that of {kernel.name.lower()}" if kernel is not None else ""
    return ""


def _against_kineto(args: CommArgs, known: CommArgs | None) -> str:
    if known is None:
        return ""
    if known.sequence >= 0 and args.sequence >= 0 and known.sequence != args.sequence:
        return f"sequence number {args.sequence}, which Kineto says is {known.sequence}"
    if _kind(known) in PLAIN and _kind(args) in PLAIN and _kind(known) != _kind(args):
        return f"another name than Kineto's {known.collective!r}"
    return ""


def _against_job(args: CommArgs, rank: int, world_size: int) -> str:
    if world_size < 2:  # what a file without distributedInfo says, too
        return ""
    if args.group_size > world_size:
        return f"a group of {args.group_size} ranks in a job of {world_size}"
    ranks = ranks_of(args.group_ranks)
    if ranks and rank not in ranks:
        return f"a group of ranks {', '.join(map(str, ranks[:8]))}, which rank {rank} is not in"
    if ranks and (max(ranks) >= world_size or min(ranks) < 0):
        return f"ranks up to {max(ranks)} in a job of {world_size}"
    if ranks and args.group_size and len(ranks) != args.group_size:
        return f"{len(ranks)} ranks in a group of {args.group_size}"
    return ""
