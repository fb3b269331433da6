"""Versioned JSON documents: strict on reading, atomic on writing.

Every file Kareus writes starts with `"schema": "kareus.<name>/<major>"`. Reading checks that first,
then decodes into a typed struct with msgspec; an unknown field, a wrong type or an unknown major
version is an `InputError` naming the file and the JSON path.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kareus.errors import InputError

T = TypeVar("T")


def encode(document: Any, *, indent: int = 1) -> bytes:
    """Return a msgspec-encodable document as readable JSON, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(document), indent=indent) + b"\n"


def write_document(path: str | os.PathLike[str], document: Any) -> None:
    """Write a document through a temporary file and a rename, so no reader sees half of it.

    Raises:
        InputError: the directory does not exist or cannot be written.
    """
    write_bytes(path, encode(document))


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write bytes atomically beside their destination.

    Raises:
        InputError: the directory does not exist or cannot be written.
    """
    import tempfile  # takes long to import, and most commands only read

    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise InputError(
            f"cannot write {target}: {error.strerror}; choose a directory that exists and is writable"
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InputError(f"cannot write {target}: {error.strerror}; free some space and retry") from error


def read_document(path: str | os.PathLike[str], kind: type[T], schema: str) -> T:
    """Read and check one versioned document.

    Args:
        path: the file.
        kind: the msgspec struct to decode into (declared with `forbid_unknown_fields=True`).
        schema: the expected identifier, for instance `"kareus.schedule/1"`.

    Raises:
        InputError: unreadable, not JSON, another schema or version, unknown field, wrong type.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; expected a {schema} file") from error
    return decode_document(data, kind, schema, where=str(path))


def decode_document(data: bytes, kind: type[T], schema: str, *, where: str) -> T:
    """Decode and check one versioned document held in memory; see `read_document`."""
    try:
        head = json.loads(data)
    except ValueError as error:
        raise InputError(f"{where}: not JSON ({error}); expected a {schema} document") from error
    found = head.get("schema") if isinstance(head, dict) else None
    if found != schema:
        name, _, major = schema.partition("/")
        if isinstance(found, str) and found.partition("/")[0] == name:
            raise InputError(
                f"{where}: schema is {found!r}, this version of Kareus reads major version {major} "
                f"({schema!r}); use the Kareus version that wrote it, or make it again"
            )
        raise InputError(
            f'{where}: expected "schema": {schema!r}, found {found!r}; this is another kind of file'
        )
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:  # wrong types, and NaN, which only Python takes for JSON
        raise InputError(
            f"{where}: {error} (schema {schema}); correct the field or make the file again"
        ) from error
