"""Which files of a folder are traces, and what to say where none is."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from kareus.errors import InputError
from kareus.trace.manifest import FILE_NAME

SUFFIXES = (".json", ".json.gz")
_SAMPLES = (".samples.json", ".samples.json.gz")
_UNREAD = {
    ".et": "a Chakra graph", ".pftrace": "a Perfetto file", ".perfetto-trace": "a Perfetto file", ".zst": "zstd",
    ".xz": "xz", ".bz2": "bzip2", ".zip": "an archive", ".tar": "an archive", ".tgz": "an archive", ".tar.gz": "an archive",
    ".nsys-rep": "Nsight Systems", ".sqlite": "Nsight Systems", ".parquet": "Parquet",
}  # fmt: skip


def trace_files(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> tuple[list[Path], Path | None]:
    """Return files that may be traces, and the folder they lie in (None where files were given).

    Raises:
        InputError: nothing there; says what is there instead.
    """
    if not isinstance(source, str | os.PathLike):
        paths = [Path(p) for p in source]
        if not paths:
            raise InputError("no trace files given; pass a directory or at least one file")
        return paths, None
    path = Path(source)
    if path.is_file():
        return [path], None
    if not path.is_dir():
        found = "neither a file nor a directory" if path.exists() else "no such file or directory"
        raise InputError(f"{path}: {found}; expected a directory with one trace file per rank")
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; make it readable") from error
    found_files = [p for p in entries if _may_be_trace(p)]
    if not found_files:
        raise InputError(
            f"{path}: holds no trace (expected rank0.json or rank0.json.gz, ...); {_instead(entries)}"
        )
    return found_files, path


def _may_be_trace(path: Path) -> bool:
    """By name; what cannot be opened is named later, what would block on opening (a pipe) is no file."""
    name = path.name.lower()
    return (
        name.endswith(SUFFIXES)
        and name != FILE_NAME
        and not name.startswith(".")
        and not name.endswith(_SAMPLES)
        and (path.is_file() or not path.exists())
    )


def _instead(entries: list[Path]) -> str:
    """What to do, judged by what a folder holds instead of traces."""
    folders = [p for p in entries if p.is_dir() and any(_may_be_trace(inner) for inner in _inside(p))]
    if folders:
        more = f" or one of {len(folders) - 1} more folders in it" if len(folders) > 1 else ""
        return f"pass {folders[0]}{more}"
    for one in entries:
        suffix = next((s for s in _UNREAD if one.name.lower().endswith(s)), None)
        if suffix:
            return f"{one.name} ({_UNREAD[suffix]}) is not read; pass Kineto traces as .json or .json.gz"
    files = [p.name for p in entries if p.is_file() and p.name != FILE_NAME]
    if files:
        return f"found {', '.join(files[:3])}; name traces rank0.json, rank1.json, ..."
    return "record one with `kareus run --collect DIR -- torchrun ...`"


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
