"""A time-energy chart: frame, axes, curves and named marks (HTML fragments).

Curves live in a stretched SVG whose strokes do not scale; marks and labels are HTML placed in percent, so
a chart is readable at any width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kareus.report.data import FrontierPoint
from kareus.report.markup import el, text
from kareus.report.numbers import joules, ms, nice_step

_PADDING = 0.08  # of the plotted span, on every side
_TICKS = 5
_LETTER, _LINE = 0.85, 6.0  # size of a label's letter and line, percent of the chart


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A named point.

    Attributes:
        names: all that lie there; the label joins them. point: where.
        glyph: its markup, from `glyph`. on_top: drawn over the others.
    """

    names: tuple[str, ...]
    point: FrontierPoint
    glyph: str
    on_top: bool = False

    @property
    def label(self) -> str:
        """All names in one line."""
        return ", ".join(self.names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """The plotted rectangle in data units."""

    left_us: float
    right_us: float
    low_j: float
    high_j: float

    @classmethod
    def around(cls, points: Sequence[FrontierPoint]) -> Frame:
        """Fit points, with a margin."""
        times, energies = [p.time_us for p in points], [p.energy_j for p in points]
        # One point, or points in a line, still need a rectangle: take 1 % of the value.
        wide = (max(times) - min(times)) or max(times) * 0.01 or 1.0
        tall = (max(energies) - min(energies)) or max(energies) * 0.01 or 1.0
        return cls(
            left_us=min(times) - wide * _PADDING, right_us=max(times) + wide * _PADDING,
            low_j=min(energies) - tall * _PADDING, high_j=max(energies) + tall * _PADDING,
        )  # fmt: skip

    def holds(self, point: FrontierPoint) -> bool:
        """Whether a point lies inside."""
        return 0 <= self.x(point.time_us) <= 100 and 0 <= self.y(point.energy_j) <= 100

    def x(self, time_us: float) -> float:
        """Percent from the left."""
        return 100 * (time_us - self.left_us) / (self.right_us - self.left_us)

    def y(self, energy_j: float) -> float:
        """Percent from the top."""
        return 100 * (self.high_j - energy_j) / (self.high_j - self.low_j)


def figure(frame: Frame, marks: Sequence[Mark], curves: str, described: str) -> str:
    """Return the chart.

    Args:
        frame: what is shown; marks outside it are named below instead.
        marks: named points. curves: markup inside the area. described: for screen readers.
    """
    area = el("div", _grid(frame), curves, _markers(marks, frame), class_="area")
    return el(
        "div",
        el("div", "energy per step and GPU, J", class_="y-title"),
        el("div", _y_labels(frame), area, class_="plot-body"),
        el("div", _x_labels(frame), class_="x-labels"),
        el("div", el("span", text(_off_scale(marks, frame))), el("span", "step time, ms"), class_="x-title"),
        class_="plot", role="img", aria_label=described,
    )  # fmt: skip


def glyph(shape: str, style: str) -> str:
    """Return a 16 x 16 mark of one SVG shape, coloured by the class `m-<style>`."""
    name = style.replace(" ", "-")
    return el("svg", shape, viewBox="0 0 16 16", class_=f"glyph m-{name}", aria_hidden="true")


def layer(*shapes: str) -> str:
    """Return shapes in percent of the area."""
    return el("svg", *shapes, viewBox="0 0 100 100", preserveAspectRatio="none", aria_hidden="true")


def dots(points: Iterable[FrontierPoint], frame: Frame) -> str:
    """Return a small dot for each point inside the frame."""
    return "".join(
        el("i", class_="dot", style=f"left:{frame.x(p.time_us):.3f}%;top:{frame.y(p.energy_j):.3f}%")
        for p in points
        if frame.holds(p)
    )


def steps(points: Sequence[tuple[float, float]], frame: Frame, *, fall_first: bool = False) -> str:
    """Return path data of a staircase through (time_us, energy_j), falling at the later point by default."""
    (time, energy), *rest = points
    parts = [f"M{frame.x(time):.3f} {frame.y(energy):.3f}"]
    for time, energy in rest:
        across, down = f"H{frame.x(time):.3f}", f"V{frame.y(energy):.3f}"
        parts.append(down + across if fall_first else across + down)
    return "".join(parts)


def _off_scale(marks: Sequence[Mark], frame: Frame) -> str:
    """Name the points that would flatten everything else."""
    far = [
        f"{m.label}, {ms(m.point.time_us)} and {joules(m.point.energy_j)}"
        for m in marks
        if not frame.holds(m.point)
    ]
    return f"Off this scale: {'; '.join(far)}. " if far else ""


def _ticks(low: float, high: float) -> list[float]:
    step = nice_step(high - low, _TICKS)
    first = int(low / step) + (1 if low > 0 else 0)
    count = int((high - first * step) / step) + 1
    return [round((first + i) * step, 9) for i in range(count)]


def _grid(frame: Frame) -> str:
    across = [f"M0 {frame.y(energy):.3f}H100" for energy in _ticks(frame.low_j, frame.high_j)]
    down = [f"M{frame.x(t * 1e3):.3f} 0V100" for t in _ticks(frame.left_us / 1e3, frame.right_us / 1e3)]
    return layer(el("path", d="".join(across + down), class_="grid"))


def _markers(marks: Sequence[Mark], frame: Frame) -> str:
    parts = []
    spots = [(frame.x(m.point.time_us), frame.y(m.point.energy_j)) for m in marks]
    taken = [(x - 1, y - 2.5, x + 1, y + 2.5) for x, y in spots]
    for mark, (x, y) in zip(marks, spots, strict=True):
        if not frame.holds(mark.point):
            continue
        side, box = _free_side(x, y, len(mark.label), taken)
        taken.append(box)
        label = el("span", text(mark.label), class_="mark-name")
        place = f"left:{x:.3f}%;top:{y:.3f}%;z-index:{9 if mark.on_top else 1}"
        parts.append(el("div", mark.glyph, label, class_=f"mark {side}", style=place))
    return "".join(parts)


Box = tuple[float, float, float, float]


def _free_side(x: float, y: float, letters: int, taken: list[Box]) -> tuple[str, Box]:
    """Return the corner of a point where its label covers least of what is there already."""
    wide = letters * _LETTER
    best: tuple[float, str, Box] | None = None
    for side, left, top in (
        ("to-right", x + 1, y - 2 - _LINE), ("to-left", x - 1 - wide, y - 2 - _LINE),
        ("to-right under", x + 1, y + 2), ("to-left under", x - 1 - wide, y + 2),
    ):  # fmt: skip
        box = (left, top, left + wide, top + _LINE)
        outside = max(0.0, -box[0]) + max(0.0, box[2] - 100) + max(0.0, -box[1]) + max(0.0, box[3] - 100)
        covered = sum(_shared(box, other) for other in taken) + outside * _LINE
        if best is None or covered < best[0]:
            best = (covered, side, box)
    assert best is not None  # there are four sides
    return best[1], best[2]


def _shared(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def _y_labels(frame: Frame) -> str:
    ticks = _ticks(frame.low_j, frame.high_j)
    return el(
        "div",
        *(el("span", f"{e:g}", style=f"top:{frame.y(e):.3f}%") for e in ticks),
        class_="y-labels",
    )


def _x_labels(frame: Frame) -> str:
    ticks = _ticks(frame.left_us / 1e3, frame.right_us / 1e3)
    return "".join(el("span", f"{t:g}", style=f"left:{frame.x(t * 1e3):.3f}%") for t in ticks)
