"""Which phase, FSDP unit and submodule each GPU work item belongs to, from where it was launched.

Annotations are CPU intervals on a thread; an item belongs to the innermost one that holds its launch.
FSDP2's own labels name units ("FSDP::pre_forward (blocks.3)"); the collector's label submodules
("kareus::forward blocks.3.mlp"). The root unit has no brackets in its label.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kareus.trace.types import I8, I32, I64, Phase

_FSDP = re.compile(r"^FSDP::(\w+)(?: \((.*)\))?$")
_MODULE = re.compile(r"^kareus::(forward|backward) (.*)$")
_OPTIMIZER = re.compile(r"^Optimizer\.step#")

# Roles: what an item launched inside an FSDP label does for its unit.
ROLE_NONE, ROLE_GATHER, ROLE_COPY_OUT, ROLE_REDUCE = 0, 1, 2, 3
_ROLES = {
    "all_gather": ROLE_GATHER,
    "all_gather_copy_out": ROLE_COPY_OUT,
    "post_backward_reduce": ROLE_REDUCE,
}

Mark = tuple[int, int, int, str]


@dataclass
class Regions:
    """Columns for launches: phase, unit, module, role and the index of the FSDP label (or -1)."""

    phase: I8
    unit: I32
    module: I32
    role: I8
    label: I32
    units: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    has_fsdp: bool = False
    has_ddp: bool = False
    optimizer_marks: list[tuple[int, int]] = field(default_factory=list)


def find_regions(
    launch_ns: I64, launch_thread: I64, marks: list[Mark], autograd_threads: set[int]
) -> Regions:
    """Place every launch.

    Args:
        launch_ns, launch_thread: of each GPU work item, -1 unknown, int64[n].
        marks: annotations (start, end, thread, text), by start.
        autograd_threads: threads autograd's engine ran on.
    """
    count = len(launch_ns)
    regions = Regions(
        phase=np.full(count, Phase.OTHER, np.int8),
        unit=np.full(count, -1, np.int32),
        module=np.full(count, -1, np.int32),
        role=np.zeros(count, np.int8),
        label=np.full(count, -1, np.int32),
    )
    inside = _lookup(launch_ns, launch_thread)
    _phases(regions, launch_ns, launch_thread, marks, autograd_threads, inside)
    _units(regions, marks, inside)
    _modules(regions, marks, inside)
    regions.has_ddp = any(m[3].startswith("DistributedDataParallel.") for m in marks)
    return regions


def _lookup(launch_ns: I64, launch_thread: I64) -> Callable[[int, int, int], I64]:
    """Return a function giving the rows launched on a thread within an interval."""
    order = np.lexsort((launch_ns, launch_thread))
    threads, times = launch_thread[order], launch_ns[order]

    def inside(start_ns: int, end_ns: int, thread: int) -> I64:
        first, last = np.searchsorted(threads, [thread, thread + 1])
        low = first + np.searchsorted(times[first:last], start_ns, side="left")
        high = first + np.searchsorted(times[first:last], end_ns, side="right")
        return order[low:high]

    return inside


def _phases(
    regions: Regions,
    launch_ns: I64,
    launch_thread: I64,
    marks: list[Mark],
    autograd_threads: set[int],
    inside: Callable[[int, int, int], I64],
) -> None:
    """Backward is what autograd's thread launches; the optimizer is labelled; the rest is forward."""
    known = launch_thread != -1
    backward = known & np.isin(launch_thread, list(autograd_threads))
    if backward.any() and (known & ~backward).any():
        regions.phase[known] = Phase.FORWARD
        regions.phase[backward] = Phase.BACKWARD
    for start, end, thread, text in marks:
        if _OPTIMIZER.match(text):
            regions.optimizer_marks.append((start, end))
            regions.phase[inside(start, end, thread)] = Phase.OPTIMIZER


def _units(regions: Regions, marks: list[Mark], inside: Callable[[int, int, int], I64]) -> None:
    index: dict[str, int] = {}
    opened: dict[tuple[str, str], int] = {}
    stretches: list[tuple[int, int, int, str]] = []
    labels: list[tuple[int, int, int, str, str]] = []
    backward: list[tuple[int, int, str]] = []
    for start, end, thread, text in marks:
        match = _FSDP.match(text)
        if not match:
            continue
        regions.has_fsdp = True
        label, unit = match.group(1), match.group(2) or ""
        if label == "pre_forward":
            opened["forward", unit] = start
        elif label == "post_forward" and ("forward", unit) in opened:
            stretches.append((opened.pop(("forward", unit)), end, thread, unit))
        elif label == "pre_backward":
            backward.append((start, thread, unit))
        if label in _ROLES:
            labels.append((start, end, thread, unit, label))
    # A unit's backward runs until the next unit's begins (or the pass ends, which no label marks).
    for number, (start, thread, unit) in enumerate(backward):
        following = [s for s, t, _ in backward[number + 1 : number + 2] if t == thread]
        stretches.append((start, following[0] if following else np.iinfo(np.int64).max, thread, unit))
    for start, end, thread, unit in sorted(stretches, key=lambda s: s[0]):
        rows = inside(start, end, thread)
        regions.unit[rows] = index.setdefault(unit, len(index))
    for number, (start, end, thread, unit, label) in enumerate(labels):
        rows = inside(start, end, thread)
        regions.unit[rows] = index.setdefault(unit, len(index))
        regions.role[rows] = _ROLES[label]
        regions.label[rows] = number
    regions.units = list(index)


def _modules(regions: Regions, marks: list[Mark], inside: Callable[[int, int, int], I64]) -> None:
    index: dict[str, int] = {}
    for start, end, thread, text in marks:  # by start, so inner labels overwrite outer ones
        match = _MODULE.match(text)
        if match:
            regions.module[inside(start, end, thread)] = index.setdefault(match.group(2), len(index))
    regions.modules = list(index)
