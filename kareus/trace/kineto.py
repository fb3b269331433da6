"""Reads one rank's Kineto file into a Trace: columns named, linked to launches, placed and repaired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kareus.errors import InputError
from kareus.trace import kernels
from kareus.trace.alone import alone_durations
from kareus.trace.collectives import find_collectives, process_groups, serve_collectives
from kareus.trace.compact import is_compact, read_compact
from kareus.trace.execution import ExecutionTrace, read_execution_trace
from kareus.trace.execution_join import execution_facts
from kareus.trace.foreign import why_no_gpu_work
from kareus.trace.grouping import distinct, group_ids, ordinals
from kareus.trace.jsonstream import EventStream
from kareus.trace.members import rank_in_name
from kareus.trace.rawtrace import CATEGORIES, CommArgs, RawTrace, count_by, read_raw, whole
from kareus.trace.regions import find_regions
from kareus.trace.steps import find_steps, step_of
from kareus.trace.types import (
    I32,
    I64,
    ExecutionLink,
    KernelClass,
    OpFlag,
    OpKind,
    OpTable,
    Phase,
    ProcessGroup,
    Trace,
    TraceWarning,
)
from kareus.trace.waits import find_waits

CLIP_SHARE = 0.5  # a duration running past the next op of its stream by more than this share is not believed


def read_trace(
    path: str | Path,
    *,
    rank: int | None = None,
    names: Sequence[kernels.Rule] = (),
    execution: Sequence[Path] = (),
    execution_asked: bool = True,
) -> Trace:
    """Read one rank's trace.

    Args:
        path: .json or .json.gz as written by torch.profiler, any release since 2021, or .kt.json.gz as
            written by `compact.write_compact`.
        rank: the rank, where neither file nor file name says it.
        names: rows tried before the built-in table of kernel names; see `kernels.load_rules`.
        execution: execution traces, of which the first that fits is joined.
        execution_asked: refuse where none fits; else go on without, with a warning.

    Raises:
        InputError: unreadable, not a trace, no GPU work in it, the rank is nowhere to be found, or no execution
            trace that was asked for fits.
    """
    if is_compact(path):
        return read_compact(path)
    raw = read_raw(path, operators=bool(execution))
    if len(raw.start_ns) == 0:
        raise InputError(_no_gpu_work(raw))
    return _Assembly(raw, rank, names, execution, execution_asked).trace()


def _no_gpu_work(raw: RawTrace) -> str:
    """Read the file once more for what it holds instead."""
    categories: dict[str, int] = {}
    pairs = 0
    for batch in EventStream(raw.path).batches():
        for event in batch:
            categories[event.cat] = categories.get(event.cat, 0) + 1
            pairs += event.ph in ("B", "E")
    backend = str(raw.distributed.get("backend", ""))
    hint = f" (backend {backend})" if backend else ""
    early = f"; {raw.damage.ended_early}" if raw.damage.ended_early else ""
    return (
        f"{raw.path}: {raw.events} events but no GPU kernel, copy or memset among them{hint}{early}; "
        f"{why_no_gpu_work(categories, pairs, backend)}"
    )


class _Assembly:
    """The steps from raw columns to a Trace, in order."""

    def __init__(
        self,
        raw: RawTrace,
        rank: int | None,
        names: Sequence[kernels.Rule],
        execution: Sequence[Path] = (),
        execution_asked: bool = True,
    ) -> None:
        self.raw = raw
        self.names = names
        self.asked_rank = rank
        self.execution = execution
        self.execution_asked = execution_asked
        self.warnings: list[TraceWarning] = []

    def trace(self) -> Trace:
        raw = self.raw
        order = np.lexsort((raw.end_ns, raw.start_ns))
        rules = [kernels.classify(name, extra=self.names) for name in raw.names]
        by_category = {
            category: [kernels.classify(name, category) for name in raw.names] for category in CATEGORIES[1:]
        }
        chosen = [rules, *by_category.values()]
        name, category = raw.name[order], raw.category[order]
        kind = np.array([[r.kind for r in table] for table in chosen], np.int8)[category, name]
        klass = np.array([[r.kernel_class for r in table] for table in chosen], np.int8)[category, name]
        launch_ns, launch_thread, flags = self._link(raw.correlation[order], raw.stream[order])
        flags |= self._oddities(raw.start_ns[order], raw.end_ns[order], raw.stream[order])
        end_ns = self._clip(raw.start_ns[order], raw.end_ns[order], raw.stream[order], flags)
        regions = find_regions(launch_ns, launch_thread, raw.marks, raw.autograd_threads)
        phase = _fill(regions.phase, raw.stream[order], launch_ns)
        optimizer = (phase == Phase.OPTIMIZER) & (klass == KernelClass.MEMORY)
        klass[optimizer] = KernelClass.OPTIMIZER
        ops = OpTable(
            start_ns=raw.start_ns[order],
            end_ns=end_ns,
            stream=raw.stream[order],
            kind=kind,
            kernel_class=klass,
            phase=phase,
            name=name.astype(np.int32),
            launch_ns=launch_ns,
            launch_thread=launch_thread,
            grid=raw.grid[order].astype(np.int32),
            block=raw.block[order].astype(np.int32),
            num_bytes=raw.num_bytes[order].copy(),
            unit=regions.unit,
            module=regions.module,
            collective=np.full(len(order), -1, np.int32),
            alone_ns=np.zeros(len(order), np.int64),
            correlation=raw.correlation[order],
            flags=flags,
        )
        serve_collectives(ops, regions, raw.names)
        steps, source = find_steps(
            ops.start_ns, ops.end_ns, ops.launch_ns, ops.kind, ops.name, raw.marks, regions.optimizer_marks
        )
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        comm = {int(position[row]): args for row, args in raw.comm.items()}
        rank, world = self._rank()
        comm, link, groups = self._execution(ops, comm, rank, world)
        collectives = find_collectives(ops, regions, rules, comm, steps)
        compute_stream = compute_stream_of(ops)
        ops = replace(ops, alone_ns=alone_durations(ops, _places(ops, steps)))
        waits = find_waits(ops, collectives, regions, raw.calls, raw.sync, compute_stream)
        self._report_unknown(ops, name)
        info = raw.distributed
        device = self._device(rank)
        return Trace(
            path=str(raw.path),
            rank=rank,
            world_size=world,
            gpu=str(device.get("name", "")),
            num_sms=whole(device.get("numSms")) or 0,
            nccl_version=str(info.get("nccl_version", "") or ""),
            torch_version=str(raw.header.get("torch_version", "") or ""),
            ops=ops,
            collectives=tuple(collectives),
            names=tuple(raw.names),
            units=tuple(regions.units),
            modules=tuple(regions.modules),
            steps=steps,
            steps_from=source,
            waits=waits,
            process_groups=process_groups(info) or groups,
            execution=link,
            warnings=tuple(self._all_warnings()),
        )

    def _execution(
        self, ops: OpTable, comm: dict[int, CommArgs], rank: int, world: int
    ) -> tuple[dict[int, CommArgs], ExecutionLink | None, tuple[ProcessGroup, ...]]:
        """What an execution trace adds to the arguments of collectives: the first that fits."""
        refused: list[InputError] = []
        for path in self.execution:
            try:
                execution: ExecutionTrace = read_execution_trace(path)
                comm, link = execution_facts(execution, self.raw, ops, comm, rank, world)
                return comm, link, execution.groups
            except InputError as error:
                refused.append(error)
        if refused and self.execution_asked:
            raise refused[0]
        if refused:
            self._warn("execution-trace", len(refused), f"no execution trace beside it is used: {refused[0]}")
        return comm, None, ()

    def _link(self, correlation: I64, stream: I64) -> tuple[I64, I64, I32]:
        """Launch time and thread of every op by correlation; by order where all correlations are missing."""
        calls = self.raw.calls
        count = len(correlation)
        launch, thread = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        flags = np.zeros(count, np.int32)
        usable = calls[calls[:, 3] > 0]
        if len(usable):
            usable = usable[np.argsort(usable[:, 3], kind="stable")]
            at = np.minimum(np.searchsorted(usable[:, 3], correlation), len(usable) - 1)
            hit = (usable[at, 3] == correlation) & (correlation > 0)
            launch[hit], thread[hit] = usable[at[hit], 0], usable[at[hit], 2]
            flags[hit & (usable[at, 4] == 3)] |= OpFlag.GRAPH
        missing = (launch < 0) & (correlation <= 0)
        spare = calls[~np.isin(calls[:, 3], correlation[correlation > 0]) & (calls[:, 4] == 0)]
        if missing.any() and len(spare) == int(missing.sum()):
            rows = np.flatnonzero(missing)
            spare = spare[np.argsort(spare[:, 0], kind="stable")]
            launch[rows], thread[rows] = spare[:, 0], spare[:, 2]
            flags[rows] |= OpFlag.INFERRED_LAUNCH
            self._warn(
                "launch-inferred",
                len(rows),
                f"{len(rows)} GPU ops without correlation id linked to launches by order",
            )
        orphans = launch < 0
        flags[orphans] |= OpFlag.ORPHAN
        if orphans.any():
            self._warn(
                "orphans", int(orphans.sum()), f"{int(orphans.sum())} GPU ops have no launch in the window"
            )
        return launch, thread, flags

    def _oddities(self, start: I64, end: I64, stream: I64) -> I32:
        flags = np.zeros(len(start), np.int32)
        flags[end == start] |= OpFlag.ZERO_DURATION
        for one in distinct(stream):
            rows = np.flatnonzero(stream == one)
            over = end[rows[:-1]] > start[rows[1:]]
            flags[rows[1:][over]] |= OpFlag.SAME_STREAM_OVERLAP
        return flags

    def _clip(self, start: I64, end: I64, stream: I64, flags: I32) -> I64:
        """Cut durations that run far past the next op of the same stream: no stream works that way."""
        end = end.copy()
        for one in distinct(stream):
            rows = np.flatnonzero(stream == one)
            following = start[rows[1:]]
            duration = end[rows[:-1]] - start[rows[:-1]]
            over = end[rows[:-1]] - following
            bad = (over > CLIP_SHARE * duration) & (duration > 0) & (end[rows[:-1]] > end[rows[1:]])
            end[rows[:-1][bad]] = following[bad]
            flags[rows[:-1][bad]] |= OpFlag.CLIPPED
        clipped = int((flags & OpFlag.CLIPPED > 0).sum())
        if clipped:
            self._warn(
                "clipped",
                clipped,
                f"{clipped} durations ran past the next op of their stream and were cut there",
            )
        return end

    def _rank(self) -> tuple[int, int]:
        info = self.raw.distributed
        world = whole(info.get("world_size"), 1) or 1
        for candidate in (
            whole(info.get("rank")),
            self.asked_rank,
            rank_in_name(self.raw.path),
            0 if world == 1 else None,
        ):
            if candidate is not None:
                return int(candidate), world
        raise InputError(
            f"{self.raw.path}: a job of {world} ranks, but neither the file (distributedInfo.rank) nor its "
            "name (rank0.json) says which rank this is; rename it or pass the rank"
        )

    def _device(self, rank: int) -> dict[str, Any]:
        found = self.raw.header.get("deviceProperties")
        devices = [d for d in found if isinstance(d, dict)] if isinstance(found, list) else []
        ids, counts = np.unique(self.raw.device, return_counts=True)
        used = int(ids[counts.argmax()])
        return next((d for d in devices if d.get("id") == used), devices[0] if devices else {})

    def _report_unknown(self, ops: OpTable, name: I64) -> None:
        unknown = ops.kernel_class == KernelClass.OTHER
        if not unknown.any():
            return
        share = float(ops.duration_ns[unknown].sum()) / max(1.0, float(ops.duration_ns.sum()))
        top = count_by(self.raw.names[n] for n in name[unknown])[:3]
        shown = "; ".join(f"{text[:60]} x{count}" for text, count in top)
        self._warn(
            "unknown-kernels",
            int(unknown.sum()),
            f"{int(unknown.sum())} kernels ({share:.1%} of kernel time) have names the table does not "
            f"know and count as compute: {shown}",
        )

    def _warn(self, code: str, count: int, text: str) -> None:
        self.warnings.append(TraceWarning(code=code, count=count, text=f"{self.raw.path}: {text}"))

    def _all_warnings(self) -> list[TraceWarning]:
        damage = self.raw.damage
        if damage.ended_early:
            self._warn(
                "ended-early",
                1,
                f"{damage.ended_early}; everything before was used, record again for the rest",
            )
        if damage.dropped:
            self._warn(
                "bad-events",
                damage.dropped,
                f"{damage.dropped} events are not JSON and were dropped, first at {damage.first_bad}",
            )
        if damage.mended:
            self._warn(
                "mended",
                damage.mended,
                f"{damage.mended} places held bare inf/nan, control characters, stray backslashes, text that is not "
                "UTF-8 or a byte-order mark and were mended",
            )
        if damage.header:
            self._warn(
                "bad-header",
                1,
                f"what stands beside the events is not JSON ({damage.header}): GPU, rank and process groups may be "
                "missing; mend it there",
            )
        if self.raw.bad_times:
            self._warn(
                "bad-times",
                self.raw.bad_times,
                f"{self.raw.bad_times} GPU ops with a negative duration or no start time were dropped",
            )
        return self.warnings


def _fill(phase: np.ndarray, stream: I64, launch: I64) -> np.ndarray:
    """Ops without a launch take the phase of the op before them on their stream."""
    phase = phase.copy()
    for one in distinct(stream):
        rows = np.flatnonzero(stream == one)
        known = launch[rows] >= 0
        if known.any():
            last = np.maximum.accumulate(np.where(known, np.arange(len(rows)), -1))
            phase[rows] = np.where(last >= 0, phase[rows][np.maximum(last, 0)], phase[rows])
    return phase


def _places(ops: OpTable, steps: tuple[tuple[int, int], ...]) -> I32:
    """An id for "the same kernel of another unit or step": name, grid, phase and its ordinal in the unit."""
    step_index = step_of(ops.start_ns, steps)
    place = np.full(len(ops), -1, np.int32)
    rows = np.flatnonzero((ops.kind != int(OpKind.COLLECTIVE)) & (step_index >= 0))
    if len(rows) == 0:
        return place
    what = group_ids(ops.name[rows], ops.grid[rows], ops.phase[rows], ops.stream[rows])
    ordinal = ordinals(group_ids(step_index[rows], ops.unit[rows], what))
    # The root runs other layers than the blocks do. Without units the ordinal runs through the whole step,
    # and only other steps are the same place.
    root = ops.unit[rows] == 0
    place[rows] = group_ids(what, ordinal, root)
    return place


def compute_stream_of(ops: OpTable) -> int:
    """Return the stream that carries most compute time."""
    compute = ops.kind == OpKind.COMPUTE
    rows = compute if compute.any() else np.ones(len(ops), bool)
    streams, inverse = np.unique(ops.stream[rows], return_inverse=True)
    return int(streams[np.bincount(inverse, ops.duration_ns[rows].astype(float)).argmax()])
