"""Reads the frontier that `kareus solve --frontier` writes (kareus.step_frontier/1)."""

from __future__ import annotations

import os

import msgspec

from kareus.errors import InputError
from kareus.report.data import FrontierPoint, FrontierView
from kareus.schema import read_document

SCHEMA = "kareus.step_frontier/1"


class _Point(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    time_us: float
    energy_j: float


class _FrontierPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    time_us: float
    energy_j: float
    status: str
    bound_j: float | None
    gap: float
    certificate: str
    worst_time_us: float | None = None
    worst_energy_j: float | None = None


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: str
    stock: _Point
    serialised: _Point
    chosen: _Point
    knee: int
    least_energy: int
    points: tuple[_FrontierPoint, ...]


def read_frontier(path: str | os.PathLike[str]) -> FrontierView:
    """Return the frontier with its marked points.

    Raises:
        InputError: unreadable, another schema, unknown or missing fields, an index outside the points.
    """
    document = read_document(path, _Document, SCHEMA)
    points = tuple(
        FrontierPoint(time_us=p.time_us, energy_j=p.energy_j, status=p.status, bound_j=p.bound_j, gap=p.gap)
        for p in document.points
    )

    def marked(name: str) -> FrontierPoint | None:
        index: int = getattr(document, name)
        if not -1 <= index < len(points):
            raise InputError(
                f'{path}: expected "{name}" to be -1 or an index of its {len(points)} points, found {index}; '
                "make the file again with `kareus solve --frontier`"
            )
        return points[index] if index >= 0 else None

    return FrontierView(
        points=points,
        stock=_plain(document.stock, points),
        serialised=_plain(document.serialised, points),
        chosen=_plain(document.chosen, points),
        knee=marked("knee"),
        least_energy=marked("least_energy"),
    )


def _plain(point: _Point, points: tuple[FrontierPoint, ...]) -> FrontierPoint:
    """The frontier's own point where it is one, so that its bound is shown too."""
    for known in points:
        if (known.time_us, known.energy_j) == (point.time_us, point.energy_j):
            return known
    return FrontierPoint(time_us=point.time_us, energy_j=point.energy_j)
