"""Turns batches of decoded events into integer columns, a whole batch at a time.

Field types vary between releases and damaged files hold anything, so every column has a fast way for what
is usual and a slow way, value by value, for the rest. Nothing here raises on a strange value: it becomes
-1, or the event is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import numpy as np

from kareus.trace.types import I64

LATEST_NS = 2**62  # the year 2116; sums of two such times still fit an int64
FLOAT_EXACT_US = 2**53 / 1000  # beyond this, microseconds with three decimals do not fit a float64

Loose = int | float | str | None


class NeedsExactTimesError(Exception):
    """Absolute microseconds with a fraction: the file must be read keeping the decimal text."""


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
    group_description: Loose = msgspec.field(name="Process Group Description", default=None)
    group_ranks: Loose = msgspec.field(name="Process Group Ranks", default=None)
    sequence: Loose = msgspec.field(name="Seq", default=None)


class CallArgs(msgspec.Struct, gc=False):
    """Arguments of a runtime call or a sync record."""

    correlation: Loose = None
    stream: Loose = None
    wait_on_stream: Loose = None
    record_correlation: Loose = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=None)


class OperatorArgs(msgspec.Struct, gc=False):
    """Ids of a CPU operator."""

    external_id: Loose = msgspec.field(name="External id", default=None)
    record_id: Loose = msgspec.field(name="Record function id", default=None)


class ArgsDecoder:
    """Decodes the raw arguments of many events with one call."""

    def __init__(self, kind: type[Any]) -> None:
        self._default = kind
        self._many = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        self._one = msgspec.json.Decoder(kind)

    def __call__(self, events: Sequence[Any]) -> list[Any]:
        """Return one struct an event; where arguments do not decode, an empty one."""
        try:
            decoded = self._many.decode(b"[" + b",".join([event.args for event in events]) + b"]")
        except msgspec.MsgspecError:
            decoded = []
        return decoded if len(decoded) == len(events) else [self._single(event.args) for event in events]

    def _single(self, args: msgspec.Raw) -> Any:
        try:
            return self._one.decode(args)
        except msgspec.MsgspecError:
            return self._default()


def times_ns(events: Sequence[Any], *, exact: bool) -> tuple[I64, I64]:
    """Return (start, duration) in ns, int64 each; -1 where there is no possible time.

    Args:
        events: their `ts` and `dur` are microseconds.
        exact: they are raw JSON instead of numbers.

    Raises:
        NeedsExactTimesError: a float holds less than the nanosecond the file wrote.
    """
    starts, durations = [event.ts for event in events], [event.dur for event in events]
    if exact:
        return _slow_ns(starts), _slow_ns(durations)
    return _fast_ns(starts), _fast_ns(durations)


def _fast_ns(values: list[Any]) -> I64:
    if all(type(value) is int for value in values):  # files up to early 2024: whole microseconds
        try:
            whole = np.array(values, np.int64)
        except OverflowError:
            return _slow_ns(values)
        return np.where(np.abs(whole) < LATEST_NS // 1000, whole * 1000, -1)
    try:
        numbers = np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        return _slow_ns(values)
    if len(numbers) and not numbers.max() < FLOAT_EXACT_US:
        if any(isinstance(value, float) and FLOAT_EXACT_US <= value < LATEST_NS / 1000 for value in values):
            raise NeedsExactTimesError
        return _slow_ns(values)
    if len(numbers) and not numbers.min() > -FLOAT_EXACT_US:
        return _slow_ns(values)
    return np.rint(numbers * 1000).astype(np.int64)


def _slow_ns(values: list[Any]) -> I64:
    return np.array([one_ns(value) for value in values], np.int64)


def one_ns(value: Any) -> int:
    """Microseconds as number, text or raw JSON to integer nanoseconds; -1 where it is no time."""
    if isinstance(value, float | int):
        return round(value * 1000) if -LATEST_NS < value * 1000 < LATEST_NS else -1
    try:
        text = bytes(value).decode() if isinstance(value, msgspec.Raw) else str(value)
        number = Decimal(text.strip('"')) * 1000
        return int(number.to_integral_value()) if abs(number) < LATEST_NS else -1
    except (InvalidOperation, ValueError, OverflowError):
        return -1


def ints(values: Sequence[Any]) -> I64:
    """Return integers out of whatever a trace writes, -1 where a value is none, int64."""
    plain = [-1 if value is None else value for value in values]
    try:
        return np.array(plain, np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([one_int(value) for value in plain], np.int64)


def one_int(value: Any) -> int:
    """An integer out of whatever a trace writes; -1 where it is none."""
    if isinstance(value, bool) or value is None:
        return -1
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else value % 2**63  # AMD stream ids are unsigned 64-bit
    try:
        number = float(value)
    except (TypeError, ValueError):
        digits = str(value).rpartition(" ")[2]
        return int(digits) if digits.isdecimal() and len(digits) < 19 else -1
    return int(number) if -LATEST_NS < number < LATEST_NS else -1


def products(many: Sequence[list[int] | None]) -> I64:
    """Return the number of blocks or threads of each [x, y, z], at most 2^31 - 1; 0 unknown."""
    try:
        table = np.array([dims or (0, 0, 0) for dims in many], np.int64)
    except (TypeError, ValueError, OverflowError):
        table = np.zeros(0, np.int64)
    if table.ndim != 2 or (len(table) and (table.min() < 0 or table.max() >= 2**20)):
        return np.array([_product(dims) for dims in many], np.int64)
    counts: I64 = np.minimum(table.prod(axis=1), 2**31 - 1)
    return counts


def _product(dims: list[int] | None) -> int:
    if not dims:
        return 0
    total = 1
    for dim in dims:
        total = min(total * max(0, dim), 2**31 - 1)
    return total


def lanes(values: Sequence[Any], of_text: Callable[[str], int]) -> I64:
    """Return thread or stream ids; texts such as "stream 7" go through `of_text`."""
    if all(type(value) is int for value in values):
        return ints(values)
    return np.array([one_int(v) if isinstance(v, int | float) else of_text(str(v)) for v in values], np.int64)
