"""Reads PyTorch Execution Traces (also with Chakra's schema): operators in order, and what they say of collectives.

Such a file holds no times. It names process groups, message sizes and sequence numbers, which Kineto files
before torch 2.4 lack. `kareus.trace.execution_join` finds its operators in the Kineto file of the same run.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kareus.errors import InputError
from kareus.trace.columns import one_int
from kareus.trace.foreign import sign_of
from kareus.trace.rawtrace import CommArgs
from kareus.trace.types import I64, ProcessGroup

MOST_ELEMENTS = 2**48  # a damaged file may say more than any message holds
MOST_RANKS = 1 << 17  # nor has any job so many
DEEPEST = 8  # lists of lists of tensors go two deep
COMMUNICATION = "record_param_comms"
_GROUPS = "## process_group:init ##"
_HEAD = re.compile(rb'^\s*{.*?"schema"\s*:\s*"1\.\d+\.\d+(?:-chakra[\d.]*)?".*?"nodes"\s*:', re.DOTALL)
_NAME = re.compile(r"(?:^|[^a-z])(?:et|eg|execution|chakra|host)(?=[^a-z]|$)", re.IGNORECASE)
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_RANK = re.compile(r"(?:rank|worker)[_-]?(\d+)", re.IGNORECASE)
_HANDLE = "address "
_NO_COLLECTIVE = ("wait", "init", "start_coalescing", "end_coalescing")
_TORCH_DTYPES = {"long int": "Long", "unsigned char": "Byte", "signed char": "Char", "short int": "Short"}


class _Attribute(msgspec.Struct, gc=False):
    name: str = ""
    value: Any = None


class _Values(msgspec.Struct, gc=False):
    values: msgspec.Raw = msgspec.Raw(b"[]")
    types: msgspec.Raw = msgspec.Raw(b"[]")


class _Node(msgspec.Struct, gc=False):
    """One operator; flat fields up to schema 1.0.1, `attrs` and structured inputs since 1.0.2."""

    name: str = ""
    rf_id: int = 0
    tid: int = 0
    inputs: msgspec.Raw = msgspec.Raw(b"[]")
    outputs: msgspec.Raw = msgspec.Raw(b"[]")
    input_types: list[str] = []
    output_types: list[str] = []
    attrs: list[_Attribute] | None = None


class _Document(msgspec.Struct):
    schema: str
    pid: int
    nodes: list[_Node]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionTrace:
    """Operators of one process in the order in which they began.

    Attributes:
        path: the file. pid: process it was recorded in.
        record_id: torch's id of the operator's record function, int64[n]. thread: int64[n], the file's own
            numbering. names: of the operators.
        comm: what collectives say of themselves, by row.
        groups: process groups named in the file.
    """

    path: Path
    pid: int
    record_id: I64
    thread: I64
    names: tuple[str, ...]
    comm: dict[int, CommArgs]
    groups: tuple[ProcessGroup, ...]


def is_execution_trace(path: Path) -> bool:
    """Return whether a file begins as an execution trace does; False for what cannot be read."""
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            head = gzip.GzipFile(fileobj=file).read(4096) if zipped else file.read(4096)
    except (OSError, EOFError, zlib.error):
        return False
    return _HEAD.match(head) is not None


def beside(path: Path) -> tuple[Path, ...]:
    """Return execution traces in the folder of a Kineto file whose names go with its name.

    The number of the rank (or the last number) must be the same: et_3.json goes with kineto_3.json,
    rank3.et.json with rank3.json. Without numbers, what stands before "et" must begin the file's name.
    """
    try:
        siblings = sorted(path.parent.iterdir())
    except OSError:
        return ()
    number = _number(path)
    found = []
    for one in siblings:
        token = _NAME.search(one.name)
        if one == path or token is None or not one.name.endswith((".json", ".json.gz")):
            continue
        if _number(one) == number and (number >= 0 or path.name.startswith(one.name[: token.start()])):
            found.append(one)
    return tuple(one for one in found[:4] if is_execution_trace(one))


def _number(path: Path) -> int:
    stem = _VERSION.sub("", path.name.partition(".json")[0])
    rank = _RANK.search(stem)
    found = [rank.group(1)] if rank else re.findall(r"\d+", stem)
    return int(found[-1]) if found else -1


def read_execution_trace(path: Path) -> ExecutionTrace:
    """Read one file, .json or .json.gz.

    Raises:
        InputError: unreadable, or no execution trace.
    """
    data = b""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        document = msgspec.json.decode(data, type=_Document)
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        sign = None if isinstance(error, OSError) or _HEAD.match(data[:4096]) else sign_of(data)
        raise InputError(
            f"{path}: expected an execution trace as torch.profiler.ExecutionTraceObserver writes it (JSON with "
            f'"schema", "pid" and "nodes"), found {sign[0] if sign else f"one that cannot be read: {error}"}; pass '
            "that file, or leave --execution-trace out"
        ) from error
    nodes = sorted(
        (n for n in map(_flat, document.nodes) if 0 < n.rf_id < 2**62 and 0 <= n.tid < 2**62),
        key=lambda node: node.rf_id,
    )
    groups = [g for n in document.nodes if n.name == _GROUPS for g in _groups(_Inputs(n).values)]
    by_name = {group.name: group for group in groups}
    comm = {
        row: args
        for row, node in enumerate(nodes)
        if node.name == COMMUNICATION and (args := _comm_args(node, by_name)) is not None
    }
    return ExecutionTrace(
        path=path,
        pid=document.pid,
        record_id=np.array([n.rf_id for n in nodes], np.int64),
        thread=np.array([n.tid for n in nodes], np.int64),
        names=tuple(n.name for n in nodes),
        comm=_without_handles(comm),
        groups=tuple(by_name.values()),
    )


def _flat(node: _Node) -> _Node:
    for attribute in node.attrs or ():
        if attribute.name in ("rf_id", "tid"):
            setattr(node, attribute.name, max(0, one_int(attribute.value)))
    return node


class _Inputs:
    """Values and types of a node's inputs (or outputs), whichever schema."""

    def __init__(self, node: _Node, *, outputs: bool = False) -> None:
        raw = node.outputs if outputs else node.inputs
        values: Any
        types: Any = node.output_types if outputs else node.input_types
        try:
            if bytes(raw).lstrip()[:1] == b"{":
                pair = msgspec.json.decode(raw, type=_Values)
                values, types = msgspec.json.decode(pair.values), msgspec.json.decode(pair.types)
            else:
                values = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, RecursionError):
            values = []
        self.values: list[Any] = values if isinstance(values, list) else []
        self.types = [str(t) for t in types] if isinstance(types, list) else []


def _groups(values: Sequence[Any]) -> list[ProcessGroup]:
    """Groups that a "## process_group:init ##" node lists as JSON in a text; no ranks: all of them."""
    try:
        table = msgspec.json.decode(values[0]) if values and isinstance(values[0], str) else []
    except msgspec.MsgspecError:
        return []
    found = []
    for entry in table if isinstance(table, list) else ():
        if isinstance(entry, dict):
            ranks, size = entry.get("ranks"), one_int(entry.get("group_size"))
            ranks = [r for r in ranks if isinstance(r, int)] if isinstance(ranks, list) else []
            found.append(
                ProcessGroup(
                    name=str(entry.get("pg_name", "")),
                    ranks=tuple(ranks[:MOST_RANKS] or range(min(max(size, 0), MOST_RANKS))),
                    description=str(entry.get("pg_desc", "")),
                )
            )
    return found


def _comm_args(node: _Node, groups: dict[str, ProcessGroup]) -> CommArgs | None:
    """What a collective says: its inputs end in (..., tensors, sequence, group, rank, name, splits...)."""
    inputs, outputs = _Inputs(node), _Inputs(node, outputs=True)
    said = {a.name: a.value for a in node.attrs or ()}
    at = next((i for i in reversed(range(len(inputs.values))) if isinstance(inputs.values[i], str)), -1)
    name = str(said.get("collective_name") or (inputs.values[at] if at >= 0 else ""))
    if at < 3 or name in _NO_COLLECTIVE:
        return None
    sequence, group = inputs.values[at - 3], inputs.values[at - 2]
    sequence = (
        sequence[0] if isinstance(sequence, list) and sequence else sequence
    )  # torch 2.5: (number, p2p)
    splits = inputs.values[at + 1] if at + 1 < len(inputs.values) else []
    if isinstance(group, list):
        group_name, description = (str(part) for part in [*group, "", ""][:2])
    else:  # up to torch 2.2 the address of the group in this process
        group_name, description = f"{_HANDLE}{one_int(group)}", ""
    known = groups.get(group_name)
    size = max(0, one_int(said.get("pg_size")))
    size = size or (len(known.ranks) if known else 0) or (len(splits) if isinstance(splits, list) else 0)
    first, stride = one_int(said.get("global_rank_start")), one_int(said.get("global_rank_stride"))
    ranks = known.ranks if known else ()
    if not ranks and first >= 0 and stride > 0 and 0 < size < MOST_RANKS:
        ranks = tuple(range(first, first + size * stride, stride))
    type_text = next((t for t in [*inputs.types, *outputs.types] if "Tensor(" in t), "")
    dtype = type_text.partition("Tensor(")[2].partition(")")[0]
    return CommArgs(
        collective=name,
        in_elements=_elements(inputs.values[: at - 3]),
        out_elements=_elements(outputs.values),
        dtype=_TORCH_DTYPES.get(dtype, dtype),
        group_name=group_name,
        group_ranks=str(list(ranks)) if ranks else "",
        sequence=one_int(sequence),
        group_size=size,
        group_description=description or (known.description if known else ""),
    )


def _without_handles(comm: dict[int, CommArgs]) -> dict[int, CommArgs]:
    """Groups known by address only: all-to-alls tell their size, several are told apart in order of use."""
    sizes: dict[str, int] = {}
    for args in comm.values():
        if args.group_name.startswith(_HANDLE):
            sizes[args.group_name] = max(sizes.get(args.group_name, 0), args.group_size)
    texts = {name: f"unnamed {n}" if len(sizes) > 1 else "" for n, name in enumerate(sizes)}
    return {
        row: replace(
            args, group_name="", group_size=sizes[args.group_name], group_description=texts[args.group_name]
        )
        if args.group_name in sizes
        else args
        for row, args in comm.items()
    }


def _elements(value: Any, depth: int = 0) -> int:
    """Elements of all tensors in a value; a tensor is [id, storage, offset, elements, bytes each, device]."""
    if not isinstance(value, list) or depth > DEEPEST:
        return 0
    if len(value) == 6 and isinstance(value[5], str) and isinstance(value[3], int):
        return min(max(0, value[3]), MOST_ELEMENTS)
    return min(sum(_elements(part, depth + 1) for part in value), MOST_ELEMENTS)
