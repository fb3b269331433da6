"""Which collective of one rank is which of another.

A key must come out the same on every rank of a group and differ between any two collectives of the job.
Ranks alone do not name a group: a job may hold several over the same ranks (one for tensor, one for
data parallelism of a mesh that is flat in one dimension), each with sequence numbers of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from kareus.trace.types import CollectiveKind, CollectiveOp, OpKind, OpTable

# What a rank sends in an all-to-all is its own affair; everything else moves as many bytes on every rank.
UNEVEN = (CollectiveKind.ALL_TO_ALL,)


def group_key(collective: CollectiveOp) -> tuple[object, ...]:
    """Return what tells a collective's process group from others: its ranks, and its name or else its purpose."""
    return collective.group, collective.group_name or collective.group_description


def match_keys(ops: OpTable, collectives: Sequence[CollectiveOp]) -> dict[tuple[object, ...], int]:
    """Return the op of each collective by a key that is the same on every rank of its group.

    Sequence numbers identify a collective where recorded; else its kind, size and order in the group, of
    all-to-all only kind and order. Sends and receives count apart from collectives (torch numbers them by
    themselves). Copy-engine copies and groups of one rank are left out: nobody meets in them.
    """
    counts: dict[tuple[object, ...], int] = defaultdict(int)
    found: dict[tuple[object, ...], int] = {}
    for op in np.flatnonzero(ops.kind == OpKind.COLLECTIVE):
        collective = collectives[int(ops.collective[op])]
        size = len(collective.group) or collective.group_size
        if collective.path == "copy_engine" or size == 1:
            continue
        group = group_key(collective)
        base: tuple[object, ...]
        if collective.sequence >= 0:
            base = (group, "seq", collective.kind == CollectiveKind.SEND_RECV, collective.sequence)
        elif collective.kind in UNEVEN:
            base = (group, collective.kind)
        else:
            base = (group, collective.kind, collective.num_bytes)
        counts[base] += 1  # work that torch coalesces shares one sequence number
        found[*base, counts[base]] = int(op)
    return found
