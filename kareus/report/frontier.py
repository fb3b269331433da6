"""The time-energy plot of a frontier: the curve, its proven bound, and the points people look for."""

from __future__ import annotations

from kareus.report.data import FrontierPoint, FrontierView
from kareus.report.markup import el, table, text
from kareus.report.numbers import change, joules, ms, percent, signed_percent
from kareus.report.plotting import Frame, Mark, dots, figure, glyph, layer, steps

_NEAR = 100.0  # percent of the frame from its middle: farther points stay outside
_GLYPHS = {  # shape first, colour second: the points differ without colour
    "chosen": '<circle cx="8" cy="8" r="6"/>',
    "stock": '<rect x="2.5" y="2.5" width="11" height="11"/>',
    "serialised": '<path d="M8 1.5 14.5 13.5H1.5z"/>',
    "knee": '<path d="M8 1 15 8 8 15 1 8z"/>',
    "least energy": '<path d="M1.5 2.5H14.5L8 14.5z"/>',
}


def plot(view: FrontierView) -> str:
    """Return the plot and the table of its marked points."""
    marked = _marked(view)
    if not marked and not view.points:
        return el("p", "No points: the schedule names neither time nor energy.", class_="empty")
    frame = _frame(view, marked)
    described = (
        f"Energy against step time: {len(view.points)} points of the frontier, listed in the table below"
    )
    return figure(frame, marked, _curves(view, frame), described) + _table(view, marked)


def _marked(view: FrontierView) -> list[Mark]:
    """Return the marked points, those that coincide joined under all their names."""
    named = [
        ("chosen", view.chosen), ("stock", view.stock), ("serialised", view.serialised),
        ("knee", view.knee), ("least energy", view.least_energy),
    ]  # fmt: skip
    places: dict[tuple[float, float], tuple[FrontierPoint, list[str]]] = {}
    for name, point in named:
        if point is not None:
            places.setdefault((point.time_us, point.energy_j), (point, []))[1].append(name)
    return [
        Mark(
            names=tuple(names),
            point=point,
            glyph=glyph(_GLYPHS[names[0]], names[0]),
            on_top="chosen" in names,
        )
        for point, names in places.values()
    ]


def _frame(view: FrontierView, marked: list[Mark]) -> Frame:
    """Fit what matters; a serialised step far away stays outside and is named below.

    Bounds are left out too: a point nobody could prove would flatten everything else.
    """
    near = [*view.points, *(m.point for m in marked if "serialised" not in m.names)]
    frame = Frame.around(near) if near else Frame.around([m.point for m in marked])
    far = view.serialised
    if far is None or (abs(frame.x(far.time_us) - 50) < _NEAR and abs(frame.y(far.energy_j) - 50) < _NEAR):
        return Frame.around([*near, *([far] if far is not None else [])])
    return frame if len(near) > 1 else Frame.around([*near, far])


def _curves(view: FrontierView, frame: Frame) -> str:
    """Draw what is attainable and what is excluded, as steps.

    Between two points the best known plan is the faster one's, so the frontier falls at the slower point.
    A bound proven for the slower point's time limit holds for every tighter limit, and nothing higher is
    proven there, so the bound falls at the faster point.
    """
    if not view.points:
        return ""
    drawn = [el("path", d=steps([(p.time_us, p.energy_j) for p in view.points], frame), class_="front")]
    bounds = [(p.time_us, p.bound_j) for p in view.points if p.bound_j is not None]
    if bounds:
        line = steps(bounds, frame, fall_first=True)
        floor = f"{line}V100H{frame.x(bounds[0][0]):.3f}z"
        drawn.insert(0, el("path", d=floor, class_="below"))
        drawn.append(el("path", d=line, class_="bound-line"))
    return layer(*drawn) + dots(view.points, frame)


def _table(view: FrontierView, marked: list[Mark]) -> str:
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
        rows.append(
            [
                mark.glyph + text(mark.label),
                ms(point.time_us),
                text(against[0]),
                joules(point.energy_j),
                text(against[1]),
                text(proof),
            ]
        )
    head = ["point", "time", "against stock", "energy", "against stock", "proven bound"]
    return table("Marked points of the frontier, all predicted", head, rows, numeric=frozenset(range(1, 6)))
