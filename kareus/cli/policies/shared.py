"""What the policies' subcommands have in common."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from typing import Any

from kareus.errors import InputError, UsageError
from kareus.plan.policies.choose import Point, check_points
from kareus.plan.policies.tables import read_points
from kareus.report.frontier_file import read_frontier
from kareus.report.numbers import signed_percent
from kareus.report.tables import console, grid


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")


def load_points(path: str, group: str | None = None) -> tuple[str, tuple[Point, ...]]:
    """Read points from a frontier of `kareus solve --frontier` or a CSV table.

    Returns:
        (group, its points); the group is "" where the file holds only one.

    Raises:
        InputError: unreadable. UsageError: several groups and none chosen, or one that is not there.
    """
    if path.endswith(".json"):
        view = read_frontier(path)
        groups = {
            "": tuple(
                Point(label=f"point {i}", time_s=p.time_us * 1e-6, energy_j=p.energy_j)
                for i, p in enumerate(view.points)
            )
        }
        if not groups[""]:
            raise InputError(f"{path}: expected a frontier with points, found none")
        try:
            check_points(groups[""])
        except UsageError as error:
            raise InputError(
                f"{path}: {error}; make the file again with `kareus solve --frontier`"
            ) from error
    else:
        groups = read_points(path)
    return only(groups, group, path)


def only(groups: dict[str, Any], group: str | None, path: str) -> tuple[str, Any]:
    """The wanted group, or the only one.

    Raises:
        UsageError: several groups and none chosen, or one that is not there.
    """
    if group is None:
        if len(groups) == 1:
            return next(iter(groups.items()))
        raise UsageError(f"{path} holds {len(groups)} jobs; choose one with --job: {_listed(groups)}")
    found = [name for name in groups if group == name] or [name for name in groups if group in name]
    if len(found) != 1:
        raise UsageError(
            f"--job {group!r}: expected one of the jobs in {path}, {len(found)} fit: {_listed(groups)}"
        )
    return found[0], groups[found[0]]


def _listed(groups: dict[str, Any], most: int = 8) -> str:
    names = [repr(name) for name in groups]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def positive(flag: str, value: float | None, *, zero: bool = False) -> None:
    """Refuse a number that is not positive and finite (or, with `zero`, negative).

    Raises:
        UsageError: naming the flag.
    """
    if value is not None and not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
        raise UsageError(
            f"{flag} {value:g}: expected a {'number of at least 0' if zero else 'positive number'}"
        )


def show(document: dict[str, Any], as_json: bool, columns: Sequence[str], rows: Sequence[Sequence[str]],
         facts: Sequence[str] = ()) -> None:  # fmt: skip
    """Print a document, or its table and sentences below it."""
    if as_json:
        print(json.dumps(document, indent=1))
        return
    out = console()
    grid(out, columns, rows)
    for sentence in facts:
        out.print(sentence)


def seconds(value: float) -> str:
    """Seconds in the unit people read them in."""
    if value >= 7200:
        return f"{value / 3600:.2f} h"
    return f"{value:.3f} s" if value >= 1 else f"{value * 1e3:.2f} ms"


def energy(value: float) -> str:
    """Joules, in kWh where there are many."""
    return f"{value / 3.6e6:.3f} kWh" if value >= 3.6e6 else f"{value:.2f} J"


def against(before: float, after: float) -> str:
    """The change as "+3.3 %"."""
    return signed_percent(after / before - 1)
