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
        el("div", "step time, ms", class_="x-title"),
        class_="plot", role="img", aria_label=described + ", listed in the table below",
    )  # fmt: skip
    return figure + _table(view, marked)


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
    points = [*view.points, *(m.point for m in marked)]
    times = [p.time_us for p in points]
    energies = [p.energy_j for p in points] + [p.bound_j for p in view.points if p.bound_j is not None]
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
    for mark in reversed(marked):  # the chosen point is drawn last, on top
        x, y = frame.x(mark.point.time_us), frame.y(mark.point.energy_j)
        side = "to-left" if x > 60 else "to-right"
        label = el("span", text(", ".join(mark.names)), class_="mark-name")
        parts.append(
            el(
                "div",
                _glyph(mark.names[0]),
                label,
                class_=f"mark {side}",
                style=f"left:{x:.3f}%;top:{y:.3f}%",
            )
        )
    return "".join(parts)


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
