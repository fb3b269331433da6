"""Where the gathers of a recorded step could start instead: launch points by share of the compute beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, cast

from kareus.schedule import CollectiveKey, LaunchPoint
from kareus.trace.identity import collective_key
from kareus.trace.spans import find_spans
from kareus.trace.types import CollectiveKind, StepGraph

Points = Mapping[float, Mapping[CollectiveKey, LaunchPoint]]
LEAST_MOVE = 0.1  # of the span: a point nearer to stock's is no other setting


def launch_points(graph: StepGraph, shares: Sequence[float]) -> Points:
    """Return, for each share, where each all-gather starts; gathers with no point near it keep stock's.

    Args:
        graph: one step, recorded with module annotations. shares: of a span's compute ops, 0..1.
    """
    found: dict[float, dict[CollectiveKey, LaunchPoint]] = {share: {} for share in shares}
    for span in find_spans(graph):
        length = len(span.compute)
        for member in span.collectives:
            collective = graph.collectives[member.row]
            key = collective_key(collective)
            if key is None or collective.kind != CollectiveKind.ALL_GATHER or not length:
                continue
            named = [(p, t) for p, t in zip(member.positions, member.points, strict=True) if t]
            for share in shares:
                wanted = share * length
                near = min(named, key=lambda point: abs(point[0] - wanted), default=None)
                if near is not None and abs(near[0] - member.stock) >= LEAST_MOVE * length:
                    found[share][key] = _point(near[1])
    return {share: points for share, points in found.items() if points}


def _point(text: str) -> LaunchPoint:
    side, _, rest = text.partition("|")
    module, _, phase = rest.rpartition("|")
    return LaunchPoint(
        module=module,
        phase=cast("Literal['forward', 'backward']", phase),
        side=cast("Literal['before', 'after']", side),
    )
