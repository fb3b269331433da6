"""Problems and frontiers as JSON: `kareus.problem/1` in, `kareus.frontier/1` out.

The documents are the dataclasses field by field behind a `schema` key; README.md lists them. An unknown
schema, an unknown field or a wrong type is a ProblemError that names the place as a JSON path.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from solver.check import require_valid
from solver.errors import ProblemError
from solver.problem import Problem
from solver.solution import Frontier

T = TypeVar("T")
PROBLEM_SCHEMA = "kareus.problem/1"
FRONTIER_SCHEMA = "kareus.frontier/1"


def problem_from_json(data: bytes) -> Problem:
    """Decode and check a problem.

    Raises:
        ProblemError: not JSON, another schema, an unknown field, a wrong type, or a problem without sense.
    """
    problem: Problem = _decode(data, Problem, PROBLEM_SCHEMA)
    require_valid(problem)
    return problem


def problem_to_json(problem: Problem) -> bytes:
    """Encode a problem."""
    return _encode(problem, PROBLEM_SCHEMA)


def frontier_from_json(data: bytes) -> Frontier:
    """Decode a frontier.

    Raises:
        ProblemError: not JSON, another schema, an unknown field or a wrong type.
    """
    frontier: Frontier = _decode(data, Frontier, FRONTIER_SCHEMA)
    return frontier


def frontier_to_json(frontier: Frontier) -> bytes:
    """Encode a frontier; a bound that is not finite becomes null."""
    return _encode(frontier, FRONTIER_SCHEMA)


def read_problem(path: str | os.PathLike[str]) -> Problem:
    """Read a problem file.

    Raises:
        ProblemError: the file cannot be read or used; the message names it.
    """
    return _read(path, problem_from_json)


def read_frontier(path: str | os.PathLike[str]) -> Frontier:
    """Read a frontier file.

    Raises:
        ProblemError: the file cannot be read or used; the message names it.
    """
    return _read(path, frontier_from_json)


def _read(path: str | os.PathLike[str], decode: Callable[[bytes], T]) -> T:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ProblemError(f"{path}: cannot be read ({error.strerror}); give a readable file") from error
    try:
        return decode(data)
    except ProblemError as error:
        raise ProblemError(f"{path}: {error}") from error


def write_frontier(path: str | os.PathLike[str], frontier: Frontier) -> None:
    """Write a frontier file through a temporary file and a rename.

    Raises:
        ProblemError: the directory cannot be written.
    """
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(frontier_to_json(frontier))
        os.replace(temporary, target)
    except OSError as error:
        raise ProblemError(f"{path}: cannot be written ({error.strerror}); choose another place") from error


def _encode(value: Problem | Frontier, schema: str) -> bytes:
    document = {"schema": schema, **msgspec.to_builtins(value)}
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _decode(data: bytes, target: type[Any], schema: str) -> Any:
    try:
        raw = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ProblemError(f"$: expected JSON, found {error}") from error
    if not isinstance(raw, dict):
        raise ProblemError(f"$: expected an object with schema {schema!r}, found {type(raw).__name__}")
    found = raw.pop("schema", None)
    if found != schema:
        raise ProblemError(
            f"$.schema: expected {schema!r}, found {found!r}; convert the file or use a matching version"
        )
    _reject_unknown(raw, target, "$")
    try:
        return msgspec.convert(raw, type=target)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        if "`float`" in message:
            message += "; times are whole microseconds and energies whole millijoules, rounded up"
        raise ProblemError(f"{path.strip('`') or '$'}: {message}") from error


def _reject_unknown(raw: Any, target: Any, path: str) -> None:
    """Raise for the first key no dataclass of the format has."""
    if isinstance(raw, list):
        inner = get_args(target)
        for i, item in enumerate(raw):
            _reject_unknown(item, inner[0] if inner else None, f"{path}[{i}]")
    elif isinstance(raw, dict) and dataclasses.is_dataclass(target):
        known = get_type_hints(target)
        for key, item in raw.items():
            if key not in known:
                raise ProblemError(f"{path}.{key}: unknown field; known are {', '.join(sorted(known))}")
            _reject_unknown(item, known[key], f"{path}.{key}")
