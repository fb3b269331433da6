"""What one rank writes: its trace, bounded in size, and its NVML samples.

Every file appears whole or not at all. A disk that fills up costs this rank's file, never the training
and never the files of other ranks.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kareus.collect.cpu_timeline import add_work_items
from kareus.collect.slim import compress, is_needed, without_last_step
from kareus.errors import InputError
from kareus.schema import write_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """One rank's result.

    Attributes:
        trace: file name in the directory, "" where there is none. num_bytes: its size.
        samples: file name of the NVML samples, "" where none were taken.
        problem: why the trace is missing or thinner than recorded, "" where it is whole.
    """

    trace: str = ""
    num_bytes: int = 0
    samples: str = ""
    problem: str = ""


def trace_name(rank: int) -> str:
    """Return a rank's file name, which readers find the rank in."""
    return f"rank{rank}.json.gz"


def samples_name(rank: int) -> str:
    """Return the name of a rank's NVML samples."""
    return f"rank{rank}.samples.json"


def write_trace(
    directory: Path,
    rank: int,
    export: Callable[[str], None],
    *,
    max_mb: float,
    world_size: int,
    cpu_name: str | None,
) -> Written:
    """Write one rank's trace through a temporary file.

    Args:
        export: writes the profiler's JSON to the path it is given.
        max_mb: largest file, megabytes compressed.
        cpu_name: device name of a job without GPU, whose operators become work items; None on GPUs.

    Returns:
        What was written; a failure is its `problem`, never an exception.
    """
    target = directory / trace_name(rank)
    try:
        with tempfile.TemporaryDirectory(prefix=f".rank{rank}-", dir=directory) as scratch:
            raw = Path(scratch) / "trace.json.gz"
            export(str(raw))
            if cpu_name is None and raw.stat().st_size <= max_mb * 1e6:
                os.replace(raw, target)
                return Written(trace=target.name, num_bytes=target.stat().st_size)
            data, note = _fitted(gzip.decompress(raw.read_bytes()), max_mb, world_size, cpu_name)
        if not data:
            return Written(problem=note)
        write_bytes(target, data)
    except (OSError, RuntimeError, ValueError, InputError) as error:
        return Written(
            problem=f"rank {rank}: no trace in {directory}: {error}; free space or choose another directory"
        )
    return Written(trace=target.name, num_bytes=len(data), problem=f"rank {rank}: {note}" if note else "")


def _fitted(raw: bytes, max_mb: float, world_size: int, cpu_name: str | None) -> tuple[bytes, str]:
    """Return the file's bytes within the limit and what was left out; empty bytes where nothing fits."""
    # torch escapes neither backslashes nor control characters in names before mid-2026
    document: dict[str, Any] = json.loads(raw, strict=False)
    if cpu_name is not None:
        add_work_items(document, device_name=cpu_name, world_size=world_size)
    limit = int(max_mb * 1e6)
    data = _packed(document)
    if len(data) <= limit:
        return data, ""
    document["traceEvents"] = [e for e in document["traceEvents"] if is_needed(e)]
    note = "operators without communication were left out to stay within --max-mb"
    data = _packed(document)
    while len(data) > limit:
        fewer = without_last_step(document["traceEvents"])
        if fewer is None:
            return b"", f"one step takes {len(data) / 1e6:.1f} MB, over --max-mb {max_mb:g}; allow more"
        document["traceEvents"] = fewer
        note = "operators and the last steps were left out to stay within --max-mb"
        data = _packed(document)
    return data, note


def _packed(document: dict[str, Any]) -> bytes:
    return compress(json.dumps(document, separators=(",", ":")).encode())
