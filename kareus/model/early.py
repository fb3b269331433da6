"""Early gathers in the simulated step: the first all-gathers move into the optimizer at its end.

A step is simulated alone, but steps follow each other alike. So a gather that the next step's start would
wait for is played at the end of the same step: it starts once its unit's share of the optimizer's work is
done, and what of it outlasts the optimizer makes the step longer, as it would make the next one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kareus.trace.identity import collective_key
from kareus.trace.types import F64, I64, CollectiveKind, Phase, StepGraph


def first_gathers(graph: StepGraph, count: int) -> list[int]:
    """Return the ops of the first forward all-gathers of up to `count` units, in order of start."""
    found: list[int] = []
    for op in np.flatnonzero(graph.ops.collective >= 0).tolist():
        member = graph.collectives[int(graph.ops.collective[op])]
        key = collective_key(member)
        first = key is not None and key.phase == "forward" and key.ordinal == 0
        if first and member.kind == CollectiveKind.ALL_GATHER:
            found.append(op)
    return found[:count]


def move_early(
    graph: StepGraph,
    count: int,
    compute: I64,
    waits: list[list[int]],
    anchors: I64,
    lag_us: F64,
    feeders: Callable[[int], list[int]],
) -> tuple[list[int], str]:
    """Move the first gathers of a step into its optimizer, in place.

    Args:
        graph: the step. count: units. compute: rows of the compute stream in order.
        waits, anchors, lag_us: of every op, as in `Layout`. feeders: ops that fill a gather's input.

    Returns:
        The ops that were moved, and why none could be ("" where they were).
    """
    ops = graph.ops
    optimizer = np.flatnonzero(ops.phase[compute] == Phase.OPTIMIZER)
    gathers = first_gathers(graph, count)
    if not gathers or not len(optimizer) or optimizer[0] == 0:
        return [], "early gathers (the recorded step shows no optimizer or no forward all-gathers)"
    start = int(compute[optimizer[0]])
    work_us = float(ops.alone_ns[compute[optimizer]].sum()) / 1e3
    total = sum(graph.collectives[int(ops.collective[op])].num_bytes for op in first_gathers(graph, len(ops)))
    done_us = 0.0
    filled = {op: feeders(op) for op in gathers}
    moved = {*gathers, *(item for filling in filled.values() for item in filling)}
    for op, filling in filled.items():
        done_us += work_us * graph.collectives[int(ops.collective[op])].num_bytes / max(total, 1)
        for item in [op, *filling]:
            # What the recording had it wait for lies at the step's start; only its own filling still counts.
            waits[item] = [source for source in waits[item] if source in filling]
            anchors[item], lag_us[item] = -1, 0.0
            if not waits[item]:
                waits[item], lag_us[item] = list(waits[start]), lag_us[start] + done_us
    for op, sources in enumerate(waits):
        if op not in moved:
            waits[op] = [source for source in sources if source not in moved]
    return gathers, ""
