"""Keeps a trace file within a size: first what readers never use goes, then whole steps from the end."""

from __future__ import annotations

import gzip
import re
from typing import Any

Event = dict[str, Any]

# Operators readers use: collectives with their arguments, autograd's nodes, CPU transfers.
KEPT_OPERATORS = re.compile(r"^(record_param_comms|autograd::engine|gloo:|c10d::|nccl:)")
DROPPED = {"ac2g", "fwdbwd", "python_function", "overhead", "async", "async_nccl", "gpu_user_annotation"}


def compress(data: bytes) -> bytes:
    """Compress reproducibly (no time stamp)."""
    return gzip.compress(data, compresslevel=5, mtime=0)


def is_needed(event: Event) -> bool:
    """Return whether a reader of the trace uses an event."""
    category = event.get("cat")
    if category == "cpu_op":
        return bool(KEPT_OPERATORS.match(str(event.get("name", ""))))
    return category not in DROPPED


def without_last_step(events: list[Event]) -> list[Event] | None:
    """Drop everything from the last profiler step on; None where only one step is left."""
    steps = sorted(
        float(e["ts"])
        for e in events
        if e.get("cat") == "user_annotation" and str(e.get("name", "")).startswith("ProfilerStep#")
    )
    if len(steps) < 2:
        return None
    return [e for e in events if "ts" not in e or float(e["ts"]) < steps[-1]]
