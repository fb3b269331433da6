"""Collectives that the issuing thread waited for, on a device without streams.

FSDP2 on CPU issues a gather and waits for it in the same call, so the recording shows nothing beside it
although nothing needs its result yet. On a GPU the same call returns at once. A schedule that issues gathers ahead lets
gloo's threads carry them out (`kareus.runtime.fsdp2`), so whether compute waits is a setting here, not a fact.
"""

from __future__ import annotations

import numpy as np

from kareus.trace.types import OpKind, StepGraph


def blocking_collectives(graph: StepGraph) -> dict[int, int]:
    """Return op row of each blocking collective -> row of the compute op that had to wait for it.

    None on a device with streams, none in DDP, whose all-reduces never block.
    """
    if graph.gpu != "cpu" or graph.wrapper != "fsdp2":
        return {}
    ops = graph.ops
    collective = ops.kind == OpKind.COLLECTIVE
    compute = np.flatnonzero((ops.stream == graph.compute_stream) & ~collective)
    starts = ops.start_ns[compute]
    found: dict[int, int] = {}
    for op in np.flatnonzero(collective).tolist():
        during = np.searchsorted(starts, ops.start_ns[op], side="left")
        after = int(np.searchsorted(starts, ops.end_ns[op], side="left"))
        if during == after < len(compute):
            found[op] = int(compute[after])
    return found
