"""The compact form of a trace: one columnar JSON document, `rank0.kt.json.gz`, integer nanoseconds.

It holds everything a `Trace` holds and nothing that stages after the reader do not use, so it is some fifty
times smaller than Kineto's file, reads without interpretation, and can be diffed and shared.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kareus.errors import InputError
from kareus.schema import decode_document, write_bytes
from kareus.trace.types import (
    CollectiveKind,
    CollectiveOp,
    KernelClass,
    OpKind,
    OpTable,
    Phase,
    PowerSamples,
    ProcessGroup,
    Provenance,
    Trace,
    TraceWarning,
)

SCHEMA = "kareus.trace/1"
SUFFIXES = (".kt.json", ".kt.json.gz")
_INT8 = {"kind": OpKind, "kernel_class": KernelClass, "phase": Phase}
_INT32 = ("name", "grid", "block", "unit", "module", "collective", "flags")


class CompactCollective(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One CollectiveOp; enums by lower-case name, `ops.num_bytes` aside nothing is left out."""

    kind: str
    num_bytes: int
    dtype: str
    group: tuple[int, ...]
    group_name: str
    sequence: int
    num_ctas: int
    unit: str
    phase: str
    ordinal: int
    path: str
    numel: int
    group_size: int = 0
    group_description: str = ""


class CompactTrace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The document; see Trace and OpTable for meanings and units.

    Attributes:
        base_ns: added to start_ns, to launch_ns other than -1, to steps and to power's time_ns.
        ops: columns by name; `duration_ns` stands for end_ns.
        waits: columns source, target, provenance.
    """

    schema: str = SCHEMA
    rank: int
    world_size: int
    gpu: str
    num_sms: int
    nccl_version: str
    torch_version: str
    base_ns: int
    steps_from: str
    steps: tuple[tuple[int, int], ...]
    clock_offset_ns: int
    names: tuple[str, ...]
    units: tuple[str, ...]
    modules: tuple[str, ...]
    process_groups: tuple[tuple[str, tuple[int, ...], str], ...]
    warnings: tuple[tuple[str, int, str], ...]
    collectives: tuple[CompactCollective, ...]
    ops: dict[str, list[int]]
    waits: dict[str, list[int]]
    power: dict[str, list[int]]


def write_compact(path: str | os.PathLike[str], trace: Trace) -> None:
    """Write a trace in compact form, atomically; gzip where the name ends in .gz.

    Raises:
        InputError: the directory cannot be written.
    """
    ops = trace.ops
    base = int(ops.start_ns[0]) if len(ops) else 0
    columns = {f.name: getattr(ops, f.name) for f in fields(OpTable)}
    columns["duration_ns"] = ops.duration_ns
    del columns["end_ns"]
    columns["start_ns"] = ops.start_ns - base
    columns["launch_ns"] = np.where(ops.launch_ns == -1, -1, ops.launch_ns - base)
    power = {f.name: getattr(trace.power, f.name) for f in fields(PowerSamples)}
    power["time_ns"] = power["time_ns"] - base
    document = CompactTrace(
        rank=trace.rank,
        world_size=trace.world_size,
        gpu=trace.gpu,
        num_sms=trace.num_sms,
        nccl_version=trace.nccl_version,
        torch_version=trace.torch_version,
        base_ns=base,
        steps_from=trace.steps_from,
        steps=tuple((start - base, end - base) for start, end in trace.steps),
        clock_offset_ns=trace.clock_offset_ns,
        names=trace.names,
        units=trace.units,
        modules=trace.modules,
        process_groups=tuple((g.name, g.ranks, g.description) for g in trace.process_groups),
        warnings=tuple((w.code, w.count, w.text) for w in trace.warnings),
        collectives=tuple(_collective(c) for c in trace.collectives),
        ops={name: column.tolist() for name, column in columns.items()},
        waits={name: trace.waits[:, i].tolist() for i, name in enumerate(("source", "target", "provenance"))},
        power={name: column.tolist() for name, column in power.items()},
    )
    data = msgspec.json.encode(document) + b"\n"
    write_bytes(path, gzip.compress(data, 9, mtime=0) if str(path).endswith(".gz") else data)


def read_compact(path: str | os.PathLike[str]) -> Trace:
    """Read a trace in compact form.

    Raises:
        InputError: unreadable, another schema, columns of different length, or an index out of range.
    """
    document = decode_document(_bytes(Path(path)), CompactTrace, SCHEMA, where=str(path))

    def refuse(what: str) -> InputError:
        return InputError(f"{path}: {what}; write the file again from the Kineto trace")

    ops = _ops(document, refuse)
    waits = _columns(document.waits, ("source", "target", "provenance"), "waits", refuse)
    _within(waits["source"], 0, len(ops), "waits.source", refuse)
    _within(waits["target"], 0, len(ops), "waits.target", refuse)
    _within(waits["provenance"], 0, len(Provenance), "waits.provenance", refuse)
    power = _columns(document.power, tuple(f.name for f in fields(PowerSamples)), "power", refuse)
    try:
        collectives = tuple(_from_compact(c) for c in document.collectives)
    except KeyError as error:
        raise refuse(f"unknown kind or phase of a collective: {error}") from error
    base = document.base_ns
    return Trace(
        path=str(path),
        rank=document.rank,
        world_size=document.world_size,
        gpu=document.gpu,
        num_sms=document.num_sms,
        nccl_version=document.nccl_version,
        torch_version=document.torch_version,
        ops=ops,
        collectives=collectives,
        names=document.names,
        units=document.units,
        modules=document.modules,
        steps=tuple((start + base, end + base) for start, end in document.steps),
        steps_from=document.steps_from,
        waits=np.stack([waits["source"], waits["target"], waits["provenance"]], axis=1),
        process_groups=tuple(
            ProcessGroup(name=n, ranks=ranks, description=text) for n, ranks, text in document.process_groups
        ),
        power=replace(PowerSamples(**power), time_ns=power["time_ns"] + base),
        clock_offset_ns=document.clock_offset_ns,
        warnings=tuple(TraceWarning(code=c, count=n, text=t) for c, n, t in document.warnings),
    )


def is_compact(path: str | os.PathLike[str]) -> bool:
    """Return whether a file's name says that it is in compact form."""
    return str(path).endswith(SUFFIXES)


Refuse = Callable[[str], InputError]


def _ops(document: CompactTrace, refuse: Refuse) -> OpTable:
    expected = tuple("duration_ns" if f.name == "end_ns" else f.name for f in fields(OpTable))
    columns = _columns(document.ops, expected, "ops", refuse)
    if (columns["duration_ns"] < 0).any() or (np.diff(columns["start_ns"]) < 0).any():
        raise refuse("ops are not in order of start, or a duration is negative")
    limits = {"name": document.names, "unit": document.units, "module": document.modules,
              "collective": document.collectives}  # fmt: skip
    for name, table in limits.items():
        _within(columns[name], 0 if name == "name" else -1, len(table), f"ops.{name}", refuse)
    for name, members in _INT8.items():
        _within(columns[name], 0, len(members), f"ops.{name}", refuse)
    if (columns["collective"][columns["kind"] == int(OpKind.COLLECTIVE)] < 0).any():
        raise refuse("a collective op without its row in collectives")
    columns["start_ns"] = columns["start_ns"] + document.base_ns
    launch = columns["launch_ns"]
    columns["launch_ns"] = np.where(launch == -1, -1, launch + document.base_ns)
    columns["end_ns"] = columns["start_ns"] + columns.pop("duration_ns")
    typed: dict[str, Any] = {
        name: column.astype(np.int8 if name in _INT8 else np.int32 if name in _INT32 else np.int64)
        for name, column in columns.items()
    }
    return OpTable(**typed)


def _columns(
    found: dict[str, list[int]], expected: tuple[str, ...], what: str, refuse: Refuse
) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """Return columns as int64 arrays after checking that all are there and equally long."""
    if set(found) != set(expected):
        raise refuse(f"{what}: expected columns {', '.join(expected)}, found {', '.join(found) or 'none'}")
    if len({len(column) for column in found.values()}) > 1:
        raise refuse(f"{what}: columns of different length")
    try:
        return {name: np.array(column, np.int64) for name, column in found.items()}
    except OverflowError as error:
        raise refuse(f"{what}: a number beyond 64 bits") from error


def _within(
    column: np.ndarray[Any, np.dtype[np.int64]], low: int, end: int, what: str, refuse: Refuse
) -> None:
    if len(column) and (column.min() < low or column.max() >= end):
        raise refuse(f"{what}: expected {low}..{end - 1}, found {column.min()}..{column.max()}")


def _collective(collective: CollectiveOp) -> CompactCollective:
    values = {f.name: getattr(collective, f.name) for f in fields(CollectiveOp)}
    values |= {"kind": collective.kind.name.lower(), "phase": collective.phase.name.lower()}
    return CompactCollective(**values)


def _from_compact(collective: CompactCollective) -> CollectiveOp:
    values = {f.name: getattr(collective, f.name) for f in fields(CollectiveOp)}
    values |= {"kind": CollectiveKind[values["kind"].upper()], "phase": Phase[values["phase"].upper()]}
    return CollectiveOp(**values)


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path}: {error}; expected a {SCHEMA} document") from error
