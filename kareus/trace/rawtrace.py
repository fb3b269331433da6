"""One Kineto file as plain columns: GPU work items, launches, waits and annotations. No interpretation yet.

Times are integer nanoseconds. `External id` is not used: in most traces before torch 2.3 it repeats the
correlation id. Kernels find their launch by correlation, annotations by thread and time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kareus.errors import InputError
from kareus.trace.jsonstream import Damage, EventStream
from kareus.trace.types import I64

GPU_CATEGORIES = {"kernel": "kernel", "gpu_memcpy": "gpu_memcpy", "gpu_memset": "gpu_memset",
                  "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset",
                  "gpu_op": "kernel"}  # fmt: skip
RUNTIME_CATEGORIES = {"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "hip_driver"}
WAIT_CALLS = ("cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent")
HOST_SYNC_CALLS = ("DeviceSynchronize", "StreamSynchronize", "EventSynchronize")
LATEST_NS = 2**62  # the year 2116; sums of two such times still fit an int64
FLOAT_EXACT_US = 2**53 / 1000  # beyond this, microseconds with three decimals do not fit a float64

Loose = int | float | str | None


class GpuArgs(msgspec.Struct, gc=False):
    """Arguments of a GPU work item; types vary between torch releases, so they are read loosely."""

    stream: Loose = None
    device: Loose = None
    correlation: Loose = None
    grid: list[int] | None = None
    block: list[int] | None = None
    nbytes: Loose = msgspec.field(name="bytes", default=None)
    graph_id: Loose = msgspec.field(name="graph id", default=None)
    collective: Loose = msgspec.field(name="Collective name", default=None)
    in_elements: Loose = msgspec.field(name="In msg nelems", default=None)
    out_elements: Loose = msgspec.field(name="Out msg nelems", default=None)
    group_size: Loose = msgspec.field(name="Group size", default=None)
    dtype: Loose = None
    group_name: Loose = msgspec.field(name="Process Group Name", default=None)
    group_ranks: Loose = msgspec.field(name="Process Group Ranks", default=None)
    sequence: Loose = msgspec.field(name="Seq", default=None)


class CallArgs(msgspec.Struct, gc=False):
    """Arguments of a runtime call or a sync record."""

    correlation: Loose = None
    stream: Loose = None
    wait_on_stream: Loose = None
    record_correlation: Loose = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=None)


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

    @property
    def distributed(self) -> dict[str, Any]:
        """The file's distributedInfo, {} where there is none."""
        return mapping(self.header, "distributedInfo")

    events: int = 0
    bad_times: int = 0


CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")


def read_raw(path: str | Path) -> RawTrace:
    """Read one file into columns.

    Raises:
        InputError: unreadable, or not a trace.
    """
    raw = _Collector(Path(path), exact=False)
    try:
        return raw.run()
    except _NeedsExactTimes:
        return _Collector(Path(path), exact=True).run()


class _NeedsExactTimes(Exception):
    """Absolute microseconds with a fraction: read again, keeping the decimal text."""


class _Collector:
    """Walks the events once and fills a RawTrace."""

    def __init__(self, path: Path, *, exact: bool) -> None:
        self.path = path
        self.exact = exact
        self.stream = EventStream(path, exact=exact)
        self.gpu: list[I64] = []
        self.calls: list[I64] = []
        self.names: dict[str, int] = {}
        self.raw = RawTrace(path=path, header={}, damage=self.stream.damage, base_ns=0)
        self.gpu_args = msgspec.json.Decoder(GpuArgs)
        self.call_args = msgspec.json.Decoder(CallArgs)
        self.rows = 0
        self.threads: dict[str, int] = {}

    def run(self) -> RawTrace:
        for batch in self.stream.batches():
            self._batch(batch)
        raw = self.raw
        raw.header = self.stream.header
        base = raw.header.get("baseTimeNanoseconds", 0)
        raw.base_ns = base if isinstance(base, int) and 0 <= base <= LATEST_NS else 0
        if raw.events == 0:
            raise InputError(
                f"{self.path}: holds no events"
                f"{raw.damage.ended_early and ' (' + raw.damage.ended_early + ')'}; record the trace again"
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
        raw.names = list(self.names)
        raw.marks = sorted((s + base, e + base, t, n) for s, e, t, n in raw.marks)
        raw.cpu_comm = sorted((s + base, e + base, t, n) for s, e, t, n in raw.cpu_comm)
        if len(raw.sync):
            raw.sync = raw.sync.copy()
            raw.sync[:, 0] += base

    def _ns(self, value: Any) -> int:
        """Microseconds as number, text or raw JSON to integer nanoseconds; -1 where it is no time."""
        if isinstance(value, float | int):
            return round(value * 1000) if -LATEST_NS < value * 1000 < LATEST_NS else -1
        try:
            text = bytes(value).decode() if isinstance(value, msgspec.Raw) else str(value)
            number = Decimal(text.strip('"')) * 1000
            return int(number.to_integral_value()) if abs(number) < LATEST_NS else -1
        except (InvalidOperation, ValueError, OverflowError):
            return -1

    def _thread(self, value: Any) -> int:
        if isinstance(value, int):
            return _int(value)
        text = str(value)
        digits = text.rpartition(" ")[2]  # 2021 files write "stream 7"
        if digits.isdecimal() and len(digits) < 19:
            return int(digits)
        return self.threads.setdefault(text, -2 - len(self.threads))

    def _batch(self, batch: Iterable[Any]) -> None:
        gpu: list[tuple[int, ...]] = []
        calls: list[tuple[int, ...]] = []
        syncs: list[tuple[int, ...]] = []
        raw = self.raw
        for event in batch:
            raw.events += 1
            if event.ph != "X":
                continue
            category = GPU_CATEGORIES.get(event.cat)
            if category is not None:
                row = self._gpu_row(event, category)
                if row is not None:
                    gpu.append(row)
                    self.rows += 1
            elif event.cat in RUNTIME_CATEGORIES:
                calls.append(self._call_row(event))
            elif event.cat == "user_annotation":
                start, end = self._span(event)
                raw.marks.append((start, end, self._thread(event.tid), event.name))
            elif event.cat in ("cpu_op", "Operator"):
                self._cpu_op(event)
            elif event.cat == "cuda_sync" and event.name == "Stream Wait Event":
                args = self._args(self.call_args, event, CallArgs())
                syncs.append(
                    (
                        self._ns(event.ts),
                        _int(args.stream),
                        _int(args.wait_on_stream),
                        _int(args.record_correlation),
                    )
                )
        if gpu:
            self.gpu.append(np.array(gpu, np.int64))
        if calls:
            self.calls.append(np.array(calls, np.int64))
        if syncs:
            raw.sync = np.concatenate([raw.sync, np.array(syncs, np.int64)])

    def _span(self, event: Any) -> tuple[int, int]:
        start = self._ns(event.ts)
        return start, start + max(0, self._ns(event.dur))

    def _args(self, decoder: Any, event: Any, default: Any) -> Any:
        if not len(bytes(event.args)):
            return default
        try:
            return decoder.decode(event.args)
        except msgspec.MsgspecError:
            return default

    def _gpu_row(self, event: Any, category: str) -> tuple[int, ...] | None:
        if not self.exact and isinstance(event.ts, float) and event.ts > FLOAT_EXACT_US:
            raise _NeedsExactTimes
        start, duration = self._ns(event.ts), self._ns(event.dur)
        if start <= 0 or duration < 0:
            self.raw.bad_times += 1
            return None
        args: GpuArgs = self._args(self.gpu_args, event, GpuArgs())
        if args.collective is not None:
            self.raw.comm[self.rows] = CommArgs(
                collective=str(args.collective), in_elements=max(0, _int(args.in_elements)),
                out_elements=max(0, _int(args.out_elements)), dtype=str(args.dtype or ""),
                group_name=str(args.group_name if args.group_name is not None else ""),
                group_ranks=str(args.group_ranks or ""), sequence=_int(args.sequence),
            )  # fmt: skip
        stream = args.stream if args.stream is not None else self._thread(event.tid)
        return (
            start, start + duration, _int(stream), _int(args.correlation), _product(args.grid),
            _product(args.block), max(0, _int(args.nbytes)),
            self.names.setdefault(event.name, len(self.names)), CATEGORIES.index(category),
            max(0, _int(args.graph_id)),
            _int(args.device if args.device is not None else event.pid),
        )  # fmt: skip

    def _call_row(self, event: Any) -> tuple[int, ...]:
        args: CallArgs = self._args(self.call_args, event, CallArgs())
        name = event.name
        kind = 0
        if name.startswith(WAIT_CALLS):
            kind = 1
        elif any(part in name for part in HOST_SYNC_CALLS):
            kind = 2
        elif "GraphLaunch" in name:
            kind = 3
        start, end = self._span(event)
        return start, end, self._thread(event.tid), _int(args.correlation), kind

    def _cpu_op(self, event: Any) -> None:
        name = event.name
        if name.startswith("autograd::engine"):
            self.raw.autograd_threads.add(self._thread(event.tid))
        elif name.startswith("gloo:"):
            start, end = self._span(event)
            self.raw.cpu_comm.append((start, end, self._thread(event.tid), name))


def _int(value: Loose) -> int:
    """An integer out of whatever a trace writes; -1 where it is none."""
    if isinstance(value, bool) or value is None:
        return -1
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else value % 2**63  # AMD stream ids are unsigned 64-bit
    try:
        number = float(value)
    except ValueError:
        digits = str(value).rpartition(" ")[2]
        return int(digits) if digits.isdecimal() and len(digits) < 19 else -1
    return int(number) if -LATEST_NS < number < LATEST_NS else -1


def _product(dims: list[int] | None) -> int:
    if not dims:
        return 0
    total = 1
    for dim in dims:
        total = min(total * max(0, dim), 2**31 - 1)
    return total


def mapping(header: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a header entry that should be an object, {} where it is something else."""
    value = header.get(key)
    return value if isinstance(value, dict) else {}


def whole(value: Any, least: int = 0) -> int | None:
    """Return a whole number of at least `least` out of a header entry, None where it is none."""
    number = _int(value) if isinstance(value, int | float | str) else -1
    return number if least <= number < 2**31 else None


def count_by(values: Iterable[str]) -> list[tuple[str, int]]:
    """Return (value, count) pairs, most frequent first."""
    return Counter(values).most_common()
