"""One Kineto file as plain columns: GPU work items, launches, waits and annotations. No interpretation yet.

Times are integer nanoseconds. `External id` is not used: in most traces before torch 2.3 it repeats the
correlation id. Kernels find their launch by correlation, annotations by thread and time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kareus.errors import InputError
from kareus.trace.columns import (
    LATEST_NS,
    ArgsDecoder,
    CallArgs,
    GpuArgs,
    NeedsExactTimesError,
    OperatorArgs,
    ints,
    lanes,
    one_int,
    products,
    times_ns,
)
from kareus.trace.jsonstream import Damage, EventStream
from kareus.trace.types import I64

CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
GPU_CATEGORIES = {
    "kernel": 0,
    "gpu_memcpy": 1,
    "gpu_memset": 2,
    "Kernel": 0,
    "Memcpy": 1,
    "Memset": 2,
    "gpu_op": 0,
}  # index into CATEGORIES; fmt: skip
RUNTIME_CATEGORIES = {"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "hip_driver", "xpu_runtime",
                      "xpu_driver", "privateuse1_runtime", "privateuse1_driver"}  # fmt: skip
OPERATOR_CATEGORIES = ("cpu_op", "Operator")
WAIT_CALLS = ("cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent")
HOST_SYNC_CALLS = ("DeviceSynchronize", "StreamSynchronize", "EventSynchronize")
# Calls that never launch or order work on a GPU: left out before anything else is looked at.
IDLE_CALLS = ("IsCapturing", "GetError", "LastError", "EventQuery", "StreamQuery", "FuncBySymbol",
              "GetDevice", "SetDevice", "ThreadExchange", "FuncGetAttributes", "PointerGetAttribute",
              "Occupancy", "EventCreate", "EventDestroy", "DeviceGet", "GetAttribute", "FuncSetAttribute",
              "CtxGet", "EventElapsed", "Malloc", "Free", "HostAlloc", "CaptureInfo")  # fmt: skip
CALL_OTHER, CALL_WAIT, CALL_HOST_SYNC, CALL_GRAPH, CALL_IDLE = range(5)


@dataclass(frozen=True, kw_only=True, slots=True)
class CommArgs:
    """What a collective's own arguments say; see GpuArgs."""

    collective: str
    in_elements: int
    out_elements: int
    dtype: str
    group_name: str
    group_ranks: str
    sequence: int
    group_size: int = 0
    group_description: str = ""


@dataclass
class RawTrace:
    """Columns of one file; every array of a group has the same length.

    Attributes:
        start_ns, end_ns, stream, correlation, grid, block, num_bytes, name, category, graph: GPU work
            items in file order. comm: arguments of those that carry any, by row.
        call_ns, call_thread, call_correlation, call_kind: runtime calls; kind 0 other, 1 wait, 2 host sync,
            3 graph launch. call_end_ns: their ends.
        sync: (start, stream, wait_on_stream, record correlation) of "Stream Wait Event" records.
        marks: annotations as (start, end, thread, text).
        autograd_threads: threads that ran autograd's engine.
        operators: where asked for, CPU operators and annotations as (start, end, thread, External id, record
            function id) with operator_names and operator_pids, the processes they ran in.
        cpu_comm: CPU-side collectives (gloo) as (start, end, thread, name).
    """

    path: Path
    header: dict[str, Any]
    damage: Damage
    base_ns: int
    names: list[str] = field(default_factory=list)
    start_ns: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    end_ns: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    stream: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    correlation: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    grid: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    block: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    num_bytes: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    name: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    category: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    graph: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    device: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    comm: dict[int, CommArgs] = field(default_factory=dict)
    calls: I64 = field(default_factory=lambda: np.zeros((0, 5), np.int64))
    sync: I64 = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    marks: list[tuple[int, int, int, str]] = field(default_factory=list)
    autograd_threads: set[int] = field(default_factory=set)
    cpu_comm: list[tuple[int, int, int, str]] = field(default_factory=list)
    operators: I64 = field(default_factory=lambda: np.zeros((0, 5), np.int64))
    operator_names: list[str] = field(default_factory=list)
    operator_pids: set[int] = field(default_factory=set)
    events: int = 0
    bad_times: int = 0

    @property
    def distributed(self) -> dict[str, Any]:
        """The file's distributedInfo, {} where there is none."""
        return mapping(self.header, "distributedInfo")


def read_raw(path: str | Path, *, operators: bool = False) -> RawTrace:
    """Read one file into columns, on demand with all CPU operators (slower).

    Raises:
        InputError: unreadable, or not a trace.
    """
    raw = _Collector(Path(path), exact=False, operators=operators)
    try:
        return raw.run()
    except NeedsExactTimesError:
        return _Collector(Path(path), exact=True, operators=operators).run()


class _Collector:
    """Walks the events once and fills a RawTrace."""

    def __init__(self, path: Path, *, exact: bool, operators: bool = False) -> None:
        self.path = path
        self.exact = exact
        self.stream = EventStream(path, exact=exact)
        self.gpu: list[I64] = []
        self.calls: list[I64] = []
        self.names: dict[str, int] = {}
        self.raw = RawTrace(path=path, header={}, damage=self.stream.damage, base_ns=0)
        self.gpu_args = ArgsDecoder(GpuArgs)
        self.call_args = ArgsDecoder(CallArgs)
        self.call_kinds: dict[str, int] = {}
        self.operators: dict[str, bool] = {}
        self.operator_args = ArgsDecoder(OperatorArgs) if operators else None
        self.operator_rows: list[I64] = []
        self.rows = 0
        self.threads: dict[str, int] = {}

    def run(self) -> RawTrace:
        for batch in self.stream.batches():
            self.raw.events += len(batch)
            self._batch(batch)
        raw = self.raw
        raw.header = self.stream.header
        base = raw.header.get("baseTimeNanoseconds", 0)
        raw.base_ns = base if isinstance(base, int) and 0 <= base <= LATEST_NS else 0
        if raw.events == 0:
            early, lost = raw.damage.ended_early, raw.damage.dropped
            raise InputError(
                f"{self.path}: holds no events{early and ' (' + early + ')'}"
                f"{f' that can be read ({lost} are not, first at {raw.damage.first_bad})' if lost else ''}; record "
                "the trace again"
            )
        self._finish()
        return raw

    def _finish(self) -> None:
        raw, base = self.raw, self.raw.base_ns
        gpu = np.concatenate(self.gpu) if self.gpu else np.zeros((0, 11), np.int64)
        columns = ("start_ns", "end_ns", "stream", "correlation", "grid", "block", "num_bytes", "name",
                   "category", "graph", "device")  # fmt: skip
        for index, column in enumerate(columns):
            setattr(raw, column, np.ascontiguousarray(gpu[:, index]))
        raw.start_ns += base
        raw.end_ns += base
        raw.calls = np.concatenate(self.calls) if self.calls else np.zeros((0, 5), np.int64)
        raw.calls[:, :2] += base
        raw.operators = np.concatenate(self.operator_rows) if self.operator_rows else raw.operators
        raw.operators[:, :2] += base
        raw.names = list(self.names)
        raw.marks = sorted((s + base, e + base, t, n) for s, e, t, n in raw.marks)
        raw.cpu_comm = sorted((s + base, e + base, t, n) for s, e, t, n in raw.cpu_comm)
        if len(raw.sync):
            raw.sync = raw.sync.copy()
            raw.sync[:, 0] += base

    def _lane(self, text: str) -> int:
        """A number for a thread or stream given as text; files of 2021 write "stream 7"."""
        digits = text.rpartition(" ")[2]
        if digits.isdecimal() and len(digits) < 19:
            return int(digits)
        return self.threads.setdefault(text, -2 - len(self.threads))

    def _batch(self, batch: list[Any]) -> None:
        gpu: list[Any] = []
        calls: list[Any] = []
        marks: list[Any] = []
        syncs: list[Any] = []
        kinds, operators = self.call_kinds, self.operators
        groups = {**dict.fromkeys(GPU_CATEGORIES, gpu), **dict.fromkeys(RUNTIME_CATEGORIES, calls)}
        groups |= {"user_annotation": marks, "cuda_sync": syncs}
        for event in batch:
            group = groups.get(event.cat)
            if group is None:
                if event.cat in OPERATOR_CATEGORIES:
                    name = event.name
                    if name not in operators:
                        operators[name] = name.startswith(("autograd::engine", "gloo:"))
                    if operators[name]:
                        self._cpu_op(event)
            elif event.ph == "X":
                if group is calls and kinds.get(event.name) == CALL_IDLE:
                    continue
                group.append(event)
        if self.operator_args is not None:
            self._operator_rows(batch)
        if gpu:
            self._gpu_rows(gpu)
        if calls:
            self._call_rows(calls)
        if marks:
            start, duration = times_ns(marks, exact=self.exact)
            end, thread = start + np.maximum(duration, 0), lanes([m.tid for m in marks], self._lane)
            columns = zip(start.tolist(), end.tolist(), thread.tolist(), (m.name for m in marks), strict=True)
            self.raw.marks.extend(columns)
        if syncs := [e for e in syncs if e.name == "Stream Wait Event"]:
            start, _ = times_ns(syncs, exact=self.exact)
            args = self.call_args(syncs)
            fields = ("stream", "wait_on_stream", "record_correlation")
            rows = np.stack([start, *(ints([getattr(a, f) for a in args]) for f in fields)], axis=1)
            self.raw.sync = np.concatenate([self.raw.sync, rows])

    def _operator_rows(self, batch: list[Any]) -> None:
        wanted = (*OPERATOR_CATEGORIES, "user_annotation")
        events = [event for event in batch if event.cat in wanted and event.ph == "X"]
        if not events or self.operator_args is None:
            return
        start, duration = times_ns(events, exact=self.exact)
        args, thread = self.operator_args(events), lanes([event.tid for event in events], self._lane)
        ids = (ints([a.external_id for a in args]), ints([a.record_id for a in args]))
        self.operator_rows.append(np.stack([start, start + np.maximum(duration, 0), thread, *ids], axis=1))
        self.raw.operator_names += [event.name for event in events]
        self.raw.operator_pids |= {one_int(event.pid) for event in events}

    def _gpu_rows(self, events: list[Any]) -> None:
        start, duration = times_ns(events, exact=self.exact)
        good = (start > 0) & (duration >= 0)
        if not good.all():
            self.raw.bad_times += int((~good).sum())
            events = [event for event, keep in zip(events, good, strict=True) if keep]
            start, duration = start[good], duration[good]
        args, names = self.gpu_args(events), self.names
        streams = [a.stream for a in args]
        if None in streams:
            lane = lanes([event.tid for event in events], self._lane)
            streams = [int(lane[row]) if s is None else s for row, s in enumerate(streams)]
        devices = [e.pid if a.device is None else a.device for a, e in zip(args, events, strict=True)]
        columns = (
            start, start + duration, ints(streams), ints([a.correlation for a in args]),
            products([a.grid for a in args]), products([a.block for a in args]),
            np.maximum(ints([a.nbytes for a in args]), 0),
            [names.setdefault(event.name, len(names)) for event in events],
            [GPU_CATEGORIES[event.cat] for event in events],
            np.maximum(ints([a.graph_id for a in args]), 0), ints(devices),
        )  # fmt: skip
        for row, one in enumerate(args):
            if one.collective is not None:
                self.raw.comm[self.rows + row] = _comm_args(one)
        self.rows += len(events)
        self.gpu.append(np.stack([np.asarray(column, np.int64) for column in columns], axis=1))

    def _call_rows(self, events: list[Any]) -> None:
        kinds = self.call_kinds
        for event in events:
            if event.name not in kinds:
                kinds[event.name] = _call_kind(event.name)
        events = [event for event in events if kinds[event.name] != CALL_IDLE]
        start, duration = times_ns(events, exact=self.exact)
        columns = (
            start, start + np.maximum(duration, 0), lanes([event.tid for event in events], self._lane),
            ints([a.correlation for a in self.call_args(events)]),
            np.array([kinds[event.name] for event in events], np.int64),
        )  # fmt: skip
        self.calls.append(np.stack(columns, axis=1))

    def _cpu_op(self, event: Any) -> None:
        name = event.name
        if name.startswith("autograd::engine"):
            self.raw.autograd_threads.add(int(lanes([event.tid], self._lane)[0]))
        else:
            start, duration = (int(value[0]) for value in times_ns([event], exact=self.exact))
            thread = int(lanes([event.tid], self._lane)[0])
            self.raw.cpu_comm.append((start, start + max(0, duration), thread, name))


def _call_kind(name: str) -> int:
    if name.startswith(WAIT_CALLS):
        return CALL_WAIT
    if any(part in name for part in HOST_SYNC_CALLS):
        return CALL_HOST_SYNC
    if "GraphLaunch" in name:
        return CALL_GRAPH
    return CALL_IDLE if any(part in name for part in IDLE_CALLS) else CALL_OTHER


def _comm_args(args: GpuArgs) -> CommArgs:
    return CommArgs(
        collective=str(args.collective),
        in_elements=max(0, one_int(args.in_elements)),
        out_elements=max(0, one_int(args.out_elements)),
        dtype=str(args.dtype or ""),
        group_name=str(args.group_name if args.group_name is not None else ""),
        group_ranks=str(args.group_ranks or ""),
        sequence=one_int(args.sequence),
        group_size=max(0, one_int(args.group_size)),
        group_description=str(args.group_description or ""),
    )


def mapping(header: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a header entry that should be an object, {} where it is something else."""
    value = header.get(key)
    return value if isinstance(value, dict) else {}


def whole(value: Any, least: int = 0) -> int | None:
    """Return a whole number of at least `least` out of a header entry, None where it is none."""
    number = one_int(value) if isinstance(value, int | float | str) else -1
    return number if least <= number < 2**31 else None


def count_by(values: Iterable[str]) -> list[tuple[str, int]]:
    """Return (value, count) pairs, most frequent first."""
    return Counter(values).most_common()
