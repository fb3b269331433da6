"""Collectives of one rank: which work items they are, what they move, and how they are named and counted."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from kareus.trace import kernels
from kareus.trace.rawtrace import CommArgs
from kareus.trace.regions import ROLE_GATHER, ROLE_REDUCE, Regions
from kareus.trace.steps import step_of
from kareus.trace.types import (
    CollectiveKind,
    CollectiveOp,
    KernelClass,
    OpFlag,
    OpKind,
    OpTable,
    Phase,
    ProcessGroup,
)

MOST_BYTES = 2**62  # fits the column, whatever a damaged file says


def serve_collectives(ops: OpTable, regions: Regions, names: Sequence[str]) -> None:
    """Peer copies launched under a gather's or reduce's label carry that collective's bytes."""
    peer = np.array(["PtoP" in n or "P2P" in n for n in names], bool)[ops.name]
    serves = (ops.kind == OpKind.COPY) & peer & np.isin(regions.role, (ROLE_GATHER, ROLE_REDUCE))
    ops.flags[serves] |= OpFlag.SERVES_COLLECTIVE
    ops.kind[serves] = OpKind.COLLECTIVE
    ops.kernel_class[serves] = KernelClass.COMMUNICATION


def find_collectives(
    ops: OpTable,
    regions: Regions,
    rules: list[kernels.Rule],
    comm: dict[int, CommArgs],
    steps: tuple[tuple[int, int], ...],
) -> list[CollectiveOp]:
    """Return the collectives in issue order, and point `ops.collective` at them.

    Args:
        ops: work items; `collective` and `num_bytes` are filled in. regions: where launches lie.
        rules: what each kernel name is. comm: arguments of kernels that carry any, by row of `ops`.
        steps: in which ordinals are counted.
    """
    found: list[CollectiveOp] = []
    counts: dict[tuple[Any, ...], int] = {}
    step_index = step_of(ops.start_ns, steps)
    # Issue order, not start order: ordinals must be the same on every rank.
    rows = np.flatnonzero(ops.kind == OpKind.COLLECTIVE)
    rows = rows[
        np.lexsort(
            (
                ops.start_ns[rows],
                np.where(ops.launch_ns[rows] < 0, ops.start_ns[rows], ops.launch_ns[rows]),
            )
        )
    ]
    for row in rows:
        op = int(row)
        served = bool(ops.flags[op] & OpFlag.SERVES_COLLECTIVE)
        kind = rules[int(ops.name[op])].collective or CollectiveKind.OTHER
        if served:
            kind = (
                CollectiveKind.ALL_GATHER
                if regions.role[op] == ROLE_GATHER
                else CollectiveKind.REDUCE_SCATTER
            )
        args = comm.get(op)
        if args is not None:
            kind = kernels.COLLECTIVE_NAMES.get(args.collective.lower(), kind)
        phase, step = Phase(int(ops.phase[op])), int(step_index[op])
        unit = regions.units[ops.unit[op]] if ops.unit[op] >= 0 else ""
        if not regions.has_fsdp and kind == CollectiveKind.ALL_REDUCE and phase == Phase.BACKWARD:
            number = counts[step, "bucket"] = counts.get((step, "bucket"), -1) + 1
            unit = f"bucket.{number}"
        ordinal = counts[step, kind, unit, phase] = counts.get((step, kind, unit, phase), -1) + 1
        ops.collective[op] = len(found)
        collective = _describe(
            kind, args, unit, phase, ordinal, int(ops.grid[op]), served, int(ops.num_bytes[op])
        )
        ops.num_bytes[op] = collective.num_bytes
        found.append(collective)
    return found


def _describe(
    kind: CollectiveKind,
    args: CommArgs | None,
    unit: str,
    phase: Phase,
    ordinal: int,
    grid: int,
    served: bool,
    copied: int,
) -> CollectiveOp:
    dtype, width = kernels.dtype_of(args.dtype) if args else ("", 0)
    numel = max(args.in_elements, args.out_elements) if args else 0
    group = ranks_of(args.group_ranks) if args else ()
    return CollectiveOp(
        kind=kind,
        num_bytes=min(numel * width, MOST_BYTES) or copied,
        dtype=dtype,
        group=group,
        group_size=(args.group_size if args else 0) or len(group),
        group_description=args.group_description if args else "",
        group_name=args.group_name if args else "",
        sequence=args.sequence if args else -1,
        num_ctas=0 if served else grid,
        unit=unit,
        phase=phase,
        ordinal=ordinal,
        path="copy_engine" if served else "nccl",
        numel=numel,
    )


@lru_cache(maxsize=1024)  # the list of a large group takes long, and all its collectives carry it
def ranks_of(text: str) -> tuple[int, ...]:
    """Return the ranks out of "[0, 1]"; () where the list was shortened with an ellipsis or is none."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ()
    return (
        tuple(int(v) for v in value)
        if isinstance(value, list) and all(isinstance(v, int) for v in value)
        else ()
    )


def process_groups(info: dict[str, Any]) -> tuple[ProcessGroup, ...]:
    """Return the groups that distributedInfo names (`pg_config`)."""
    groups = info.get("pg_config")
    groups = list(groups.values()) if isinstance(groups, dict) else groups
    return tuple(
        ProcessGroup(
            name=str(g.get("pg_name", "")),
            ranks=tuple(r for r in g["ranks"] if isinstance(r, int))
            if isinstance(g.get("ranks"), list)
            else (),
            description=str(g.get("pg_desc", "")),
        )
        for g in (groups if isinstance(groups, list) else ())
        if isinstance(g, dict)
    )
