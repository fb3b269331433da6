"""The time-energy plot: frontier, proven bound, and the points people look for (HTML fragment).

Curves live in a stretched SVG whose strokes do not scale; markers and labels are HTML placed in
percent, so the plot is readable at any width.
"""

from __future__ import annotations

from dataclasses import dataclass

from kareus.report.data import FrontierPoint, FrontierView
from kareus.report.markup import el, table, text
from kareus.report.numbers import change, joules, ms, nice_step, percent, signed_percent

_PADDING = 0.08  # of the plotted span, on every side
_TICKS = 5
_NEAR = 100.0  # percent of the frame from its middle: farther points stay outside
_LETTER, _LINE = 0.85, 6.0  # size of a label's letter and line, percent of the plot
_GLYPHS = {  # shape first, colour second: the points differ without colour
    "chosen": '<circle cx="8" cy="8" r="6"/>',
    "stock": '<rect x="2.5" y="2.5" width="11" height="11"/>',
    "serialised": '<path d="M8 1.5 14.5 13.5H1.5z"/>',
    "knee": '<path d="M8 1 15 8 8 15 1 8z"/>',
    "least energy": '<path d="M1.5 2.5H14.5L8 14.5z"/>',
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Marked:
    names: tuple[str, ...]
    point: FrontierPoint


@dataclass(frozen=True, kw_only=True, slots=True)
class _Frame:
    """The plotted rectangle in data units."""

    left_us: float
    right_us: float
    low_j: float
    high_j: float

    def holds(self, point: FrontierPoint) -> bool:
        """Whether a point lies inside."""
        return 0 <= self.x(point.time_us) <= 100 and 0 <= self.y(point.energy_j) <= 100

    def x(self, time_us: float) -> float:
        return 100 * (time_us - self.left_us) / (self.right_us - self.left_us)

    def y(self, energy_j: float) -> float:
        return 100 * (self.high_j - energy_j) / (self.high_j - self.low_j)


def plot(view: FrontierView) -> str:
    """Return the plot and the table of its marked points."""
    marked = _marked(view)
    if not marked and not view.points:
        return el("p", "No points: the schedule names neither time nor energy.", class_="empty")
    frame = _frame(view, marked)
    area = el("div", _grid(frame), _curves(view, frame), _markers(marked, frame), class_="area")
    described = f"Energy against step time: {len(view.points)} points of the frontier"
    figure = el(
        "div",
        el("div", "energy per step and GPU, J", class_="y-title"),
        el("div", _y_labels(frame), area, class_="plot-body"),
        el("div", _x_labels(frame), class_="x-labels"),
        el("div", el("span", text(_off_scale(marked, frame))), el("span", "step time, ms"), class_="x-title"),
        class_="plot", role="img", aria_label=described + ", listed in the table below",
    )  # fmt: skip
    return figure + _table(view, marked)


def _off_scale(marked: list[_Marked], frame: _Frame) -> str:
    """Name the points that would flatten everything else."""
    far = [
        f"{', '.join(m.names)}, {ms(m.point.time_us)} and {joules(m.point.energy_j)}"
        for m in marked
        if not frame.holds(m.point)
    ]
    return f"Off this scale: {'; '.join(far)}. " if far else ""


def _marked(view: FrontierView) -> list[_Marked]:
    """Return the marked points, those that coincide joined under all their names."""
    named = [
        ("chosen", view.chosen), ("stock", view.stock), ("serialised", view.serialised),
        ("knee", view.knee), ("least energy", view.least_energy),
    ]  # fmt: skip
    joined: list[_Marked] = []
    for name, point in named:
        if point is None:
            continue
        for index, other in enumerate(joined):
            if (other.point.time_us, other.point.energy_j) == (point.time_us, point.energy_j):
                joined[index] = _Marked(names=(*other.names, name), point=other.point)
                break
        else:
            joined.append(_Marked(names=(name,), point=point))
    return joined


def _frame(view: FrontierView, marked: list[_Marked]) -> _Frame:
    """Fit what matters; a serialised step far away stays outside and is named below.

    Bounds are left out too: a point nobody could prove would flatten everything else.
    """
    near = [*view.points, *(m.point for m in marked if "serialised" not in m.names)]
    frame = _around(near) if near else _around([m.point for m in marked])
    far = view.serialised
    if far is None or (abs(frame.x(far.time_us) - 50) < _NEAR and abs(frame.y(far.energy_j) - 50) < _NEAR):
        return _around([*near, *([far] if far is not None else [])])
    return frame if len(near) > 1 else _around([*near, far])


def _around(points: list[FrontierPoint]) -> _Frame:
    times, energies = [p.time_us for p in points], [p.energy_j for p in points]
    # One point, or points in a line, still need a rectangle: take 1 % of the value.
    wide = (max(times) - min(times)) or max(times) * 0.01 or 1.0
    tall = (max(energies) - min(energies)) or max(energies) * 0.01 or 1.0
    return _Frame(
        left_us=min(times) - wide * _PADDING, right_us=max(times) + wide * _PADDING,
        low_j=min(energies) - tall * _PADDING, high_j=max(energies) + tall * _PADDING,
    )  # fmt: skip


def _ticks(low: float, high: float) -> list[float]:
    step = nice_step(high - low, _TICKS)
    first = int(low / step) + (1 if low > 0 else 0)
    count = int((high - first * step) / step) + 1
    return [round((first + i) * step, 9) for i in range(count)]


def _grid(frame: _Frame) -> str:
    across = [f"M0 {frame.y(energy):.3f}H100" for energy in _ticks(frame.low_j, frame.high_j)]
    down = [f"M{frame.x(t * 1e3):.3f} 0V100" for t in _ticks(frame.left_us / 1e3, frame.right_us / 1e3)]
    return _layer(el("path", d="".join(across + down), class_="grid"))


def _curves(view: FrontierView, frame: _Frame) -> str:
    """Draw what is attainable and what is excluded, as steps.

    Between two points the best known plan is the faster one's, so the frontier falls at the slower point.
    A bound proven for the slower point's time limit holds for every tighter limit, and nothing higher is
    proven there, so the bound falls at the faster point.
    """
    if not view.points:
        return ""
    drawn = [el("path", d=_steps([(p.time_us, p.energy_j) for p in view.points], frame), class_="front")]
    bounds = [(p.time_us, p.bound_j) for p in view.points if p.bound_j is not None]
    if bounds:
        line = _steps(bounds, frame, fall_first=True)
        floor = f"{line}V100H{frame.x(bounds[0][0]):.3f}z"
        drawn.insert(0, el("path", d=floor, class_="below"))
        drawn.append(el("path", d=line, class_="bound-line"))
    dots = [
        el("i", class_="dot", style=f"left:{frame.x(p.time_us):.3f}%;top:{frame.y(p.energy_j):.3f}%")
        for p in view.points
    ]
    return _layer(*drawn) + "".join(dots)


def _steps(points: list[tuple[float, float]], frame: _Frame, *, fall_first: bool = False) -> str:
    (time, energy), *rest = points
    parts = [f"M{frame.x(time):.3f} {frame.y(energy):.3f}"]
    for time, energy in rest:
        across, down = f"H{frame.x(time):.3f}", f"V{frame.y(energy):.3f}"
        parts.append(down + across if fall_first else across + down)
    return "".join(parts)


def _layer(*shapes: str) -> str:
    return el("svg", *shapes, viewBox="0 0 100 100", preserveAspectRatio="none", aria_hidden="true")


def _glyph(name: str) -> str:
    style = "m-" + name.replace(" ", "-")
    return el("svg", _GLYPHS[name], viewBox="0 0 16 16", class_=f"glyph {style}", aria_hidden="true")


def _markers(marked: list[_Marked], frame: _Frame) -> str:
    parts = []
    spots = [(frame.x(m.point.time_us), frame.y(m.point.energy_j)) for m in marked]
    taken = [(x - 1, y - 2.5, x + 1, y + 2.5) for x, y in spots]
    for mark, (x, y) in zip(marked, spots, strict=True):
        if not frame.holds(mark.point):
            continue
        name = ", ".join(mark.names)
        side, box = _free_side(x, y, len(name), taken)
        taken.append(box)
        label = el("span", text(name), class_="mark-name")
        # The chosen point comes first and lies on top.
        place = f"left:{x:.3f}%;top:{y:.3f}%;z-index:{9 if 'chosen' in mark.names else 1}"
        parts.append(el("div", _glyph(mark.names[0]), label, class_=f"mark {side}", style=place))
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


def _y_labels(frame: _Frame) -> str:
    ticks = _ticks(frame.low_j, frame.high_j)
    return el(
        "div",
        *(el("span", f"{e:g}", style=f"top:{frame.y(e):.3f}%") for e in ticks),
        class_="y-labels",
    )


def _x_labels(frame: _Frame) -> str:
    ticks = _ticks(frame.left_us / 1e3, frame.right_us / 1e3)
    return "".join(el("span", f"{t:g}", style=f"left:{frame.x(t * 1e3):.3f}%") for t in ticks)


def _table(view: FrontierView, marked: list[_Marked]) -> str:
    reference = view.stock
    rows = []
    for mark in marked:
        point = mark.point
        against = ("", "")
        if reference is not None and point is not reference and "stock" not in mark.names:
            against = (
                signed_percent(change(reference.time_us, point.time_us)),
                signed_percent(change(reference.energy_j, point.energy_j)),
            )
        proof = (
            f"{joules(point.bound_j)}, gap {percent(point.gap, 2)}" if point.bound_j is not None else "none"
        )
        glyphs = "".join(_glyph(name) for name in mark.names[:1])
        rows.append(
            [
                glyphs + text(", ".join(mark.names)),
                ms(point.time_us),
                text(against[0]),
                joules(point.energy_j),
                text(against[1]),
                text(proof),
            ]
        )
    head = ["point", "time", "against stock", "energy", "against stock", "proven bound"]
    return table("Marked points of the frontier, all predicted", head, rows, numeric=frozenset(range(1, 6)))
