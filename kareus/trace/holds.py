"""Which kernels keep the SMs from which, and until when, read off recorded steps.

A kernel that fills the GPU keeps what becomes ready on another stream waiting. It lets go in one of two ways. By
itself on the GPU its thread blocks end together, a fixed time before its end. Where it started beside a collective,
some of its blocks found no SM; they take those that the collective leaves, and what waits finds room when its
*first* blocks end: a fixed time after its start, however late its last blocks end. Which of the two varies less
over the kernels of a name is used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kareus.trace.types import OpKind, StepGraph

Place = tuple[int, ...]
Holder = tuple[str, int, bool]  # name, grid, whether a collective ran when it started
Key = tuple[object, ...]
PROMPT_NS = 8_000  # a start this soon after all predecessors waited for nothing else
LEAST_SAMPLES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """When a holder lets a held op start: nanoseconds after its start, or (below 0: before) after its end."""

    after_ns: int
    from_start: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Late:
    """One op of a recorded step and who was on the GPU while it could have started.

    Attributes:
        start_ns: of the op. gap_ns: since it could have started. others: SM-filling ops of other streams that ran
            in between.
    """

    start_ns: int
    gap_ns: int
    others: tuple[int, ...]


def fills_sms(graph: StepGraph) -> np.ndarray:
    """Which ops can keep SMs from others: kernels; not copies, memsets and collectives: bool[ops]."""
    return np.asarray(graph.ops.kind == OpKind.COMPUTE)


def holder_of(graph: StepGraph, op: int, shares: bool) -> Holder:
    """Return what tells kinds of holders apart; `shares`: a collective ran when it started."""
    return graph.names[int(graph.ops.name[op])], int(graph.ops.grid[op]), shares


def release_keys(graph: StepGraph, op: int, holder: int, place: Place, shares: bool) -> tuple[Key, ...]:
    """Keys of "op held by holder", finest first: this very op, its kind, anything held by such a holder, classes."""
    ops, holding = graph.ops, holder_of(graph, holder, shares)
    return (
        ("place", place, holding),
        ("name", graph.names[int(ops.name[op])], int(ops.grid[op]), holding),
        ("holder", holding),
        ("class", int(ops.kernel_class[op]), int(ops.kernel_class[holder]), shares),
    )


class Crowd:
    """Who else was on the GPU in the recording."""

    def __init__(self, graph: StepGraph) -> None:
        self.ops = graph.ops
        self.fills = fills_sms(graph)
        self.rows = np.flatnonzero(self.fills)
        self.starts = self.ops.start_ns[self.rows]
        self.longest = int(self.ops.duration_ns[self.rows].max()) if len(self.rows) else 0
        talks = self.ops.kind == OpKind.COLLECTIVE
        self.talk_starts = self.ops.start_ns[talks]
        self.talk_ends = np.maximum.accumulate(self.ops.end_ns[talks])

    def between(self, op: int, ready: int, start: int) -> list[int]:
        """SM-filling ops of other streams that ran at some time from `ready` on and began before `start`."""
        first = int(np.searchsorted(self.starts, ready - self.longest, side="left"))
        last = int(np.searchsorted(self.starts, start, side="left"))
        rows = self.rows[first:last]
        keep = (self.ops.end_ns[rows] > ready) & (self.ops.stream[rows] != self.ops.stream[op])
        return [int(row) for row in rows[keep]]

    def late(self, op: int, ready: int) -> Late:
        """Return an op's start and who ran while it could have started, from `ready` on."""
        start = int(self.ops.start_ns[op])
        return Late(start_ns=start, gap_ns=start - ready, others=tuple(self.between(op, ready, start)))

    def shares(self, holder: int) -> bool:
        """Whether a collective was running when `holder` started."""
        start = self.ops.start_ns[holder]
        before = int(np.searchsorted(self.talk_starts, start, side="right"))
        return before > 0 and bool(self.talk_ends[before - 1] > start)


class FirstBlocks:
    """How long after their start holders let go, of those that started beside a collective.

    Only where that varies less than the time to their end does.
    """

    def __init__(self) -> None:
        self._samples: dict[Holder, list[tuple[int, int]]] = defaultdict(list)
        self.after_ns: dict[Holder, int] = {}

    def add(self, graph: StepGraph, crowd: Crowd, late: Sequence[Late]) -> None:
        """Add a step's ops that started late while one holder ran."""
        for one in late:
            if one.gap_ns > PROMPT_NS and len(one.others) == 1 and crowd.shares(one.others[0]):
                at = one.others[0]
                ends, starts = int(graph.ops.end_ns[at]), int(graph.ops.start_ns[at])
                self._samples[holder_of(graph, at, True)].append((one.start_ns - ends, one.start_ns - starts))

    def settle(self) -> None:
        """Decide, once all steps are in."""
        for holder, samples in self._samples.items():
            from_end, from_start = (np.array(column) for column in zip(*samples, strict=True))
            if len(samples) >= LEAST_SAMPLES and _spread(from_start) < _spread(from_end):
                self.after_ns[holder] = int(np.median(from_start))


def _spread(values: np.ndarray) -> float:
    return float(np.median(np.abs(values - np.median(values))))


class Seen:
    """Samples of who waited for whom and who did not, as (after the holder's end, after its start), by key."""

    def __init__(self, first_blocks: FirstBlocks) -> None:
        self._from_start = first_blocks.after_ns
        self._held: dict[Key, list[tuple[int, int]]] = defaultdict(list)
        self._beside: dict[Key, list[tuple[int, int]]] = defaultdict(list)

    def held(self, keys: Sequence[Key], after_end: int, after_start: int) -> None:
        """An op started when its holder let go."""
        for key in keys:
            self._held[key].append((after_end, after_start))

    def beside(self, keys: Sequence[Key], after_end: int, after_start: int) -> None:
        """An op started beside another kernel."""
        for key in keys:
            self._beside[key].append((after_end, after_start))

    def releases(self) -> dict[Key, Release | None]:
        """Median release per key; None where more ops started well before their would-be holder let go."""
        release: dict[Key, Release | None] = {}
        for key in self._held.keys() | self._beside.keys():
            from_start = key[0] != "class" and key[-1] in self._from_start
            held = [sample[from_start] for sample in self._held.get(key, ())]
            middle = int(np.median(held)) if held else 0
            free = sum(1 for sample in self._beside.get(key, ()) if sample[from_start] < middle - PROMPT_NS)
            if len(held) > free:
                release[key] = Release(after_ns=middle, from_start=from_start)
            elif free:
                release[key] = None
        return release
