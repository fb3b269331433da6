"""The fingerprint of the job a trace was recorded from.

The runtime computes the same fingerprint from the wrapped model (`kareus.runtime.fingerprint`); a
schedule replays only where both agree.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from kareus.errors import InputError
from kareus.schedule import CollectiveKey, Fingerprint, UnitShape
from kareus.trace.types import CollectiveKind, CollectiveOp, Phase, StepGraph

_KINDS: dict[CollectiveKind, Literal["all_gather", "reduce_scatter", "all_reduce"]] = {
    CollectiveKind.ALL_GATHER: "all_gather",
    CollectiveKind.REDUCE_SCATTER: "reduce_scatter",
    CollectiveKind.ALL_REDUCE: "all_reduce",
}
_PHASES: dict[Phase, Literal["forward", "backward", "optimizer"]] = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
    Phase.OTHER: "optimizer",
}


def collective_key(collective: CollectiveOp) -> CollectiveKey | None:
    """Return the name a schedule uses for a collective; None for kinds no schedule controls."""
    kind = _KINDS.get(collective.kind)
    if kind is None:
        return None
    return CollectiveKey(
        kind=kind, unit=collective.unit, phase=_PHASES[collective.phase], ordinal=collective.ordinal
    )


def fingerprint(graph: StepGraph, conditions: dict[str, str] | None = None) -> Fingerprint:
    """Return the fingerprint of the job behind one recorded step.

    Raises:
        InputError: the step shows neither FSDP2 units nor DDP buckets, so no schedule can name hook points.
    """
    keys = tuple(key for key in map(collective_key, graph.collectives) if key is not None)
    if graph.wrapper == "fsdp2":
        units = _fsdp2_units(graph.collectives)
    elif graph.wrapper == "ddp":
        reduced = [c for c in graph.collectives if c.kind == CollectiveKind.ALL_REDUCE]
        dtype = reduced[0].dtype if reduced else ""
        units = (UnitShape(name="", numel=sum(c.numel for c in reduced), dtype=dtype),)
    else:
        raise InputError(f"rank {graph.rank}, step {graph.index}: {_nothing_to_name(graph)}")
    return Fingerprint(
        wrapper="fsdp2" if graph.wrapper == "fsdp2" else "ddp",
        world_size=graph.world_size,
        units=units,
        collectives=keys,
        conditions=conditions or {},
    )


def _nothing_to_name(graph: StepGraph) -> str:
    if not graph.collectives:
        return (
            "no collective in it, so there is nothing to schedule; record a training step of two or more GPUs with "
            "`kareus run --collect DIR -- torchrun ...`"
        )
    counts = Counter(collective.kind.name.lower() for collective in graph.collectives)
    found = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    return (
        f"expected FSDP2 unit annotations or DDP all-reduces in backward, found {found} without them; record with "
        "`kareus run --collect DIR -- torchrun ...`"
    )


def _fsdp2_units(collectives: tuple[CollectiveOp, ...]) -> tuple[UnitShape, ...]:
    """Units in the order their parameters are first gathered."""
    units: dict[str, UnitShape] = {}
    for collective in collectives:
        if collective.kind == CollectiveKind.ALL_GATHER and collective.unit not in units:
            units[collective.unit] = UnitShape(
                name=collective.unit, numel=collective.numel, dtype=collective.dtype
            )
    return tuple(units.values())
