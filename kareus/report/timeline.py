"""The step, stream by stream, before and after on one time axis (HTML fragment, no script).

Bars live in an SVG stretched to the page width; names and ticks are HTML laid over it, so text keeps
its size on a phone and the drawing scales to any zoom.
"""

from __future__ import annotations

from collections.abc import Iterable

from kareus.report.data import RankView, Slice, SliceClass, Source, Timeline
from kareus.report.lanes import Intervals, coalesce, pack, total, waiting
from kareus.report.markup import el, source_tag, text
from kareus.report.numbers import change, ms, signed_percent
from kareus.report.scale import Scale

CLASS_NAMES = {
    SliceClass.GEMM: "matrix products",
    SliceClass.ATTENTION: "attention",
    SliceClass.MEMORY: "memory-bound",
    SliceClass.OPTIMIZER: "optimizer",
    SliceClass.COPY: "copies",
    SliceClass.MEMSET: "memset",
    SliceClass.OTHER: "other kernels",
    SliceClass.ALL_GATHER: "all-gather",
    SliceClass.REDUCE_SCATTER: "reduce-scatter",
    SliceClass.ALL_REDUCE: "all-reduce",
    SliceClass.COMMUNICATION: "other communication",
}
ZOOMS = (1, 4, 16)
MAX_TICKS = 8
_WIDTH = 24_000  # drawing units over the longer step: 1.5 units a CSS pixel at the largest zoom
_HEIGHT = 20


def css_class(kind: SliceClass) -> str:
    """Return the style class of a slice class ("k-all-gather")."""
    return "k-" + kind.name.lower().replace("_", "-")


def rank_figure(view: RankView) -> str:
    """Return the timelines of one rank on a shared axis."""
    scale = Scale(max(timeline.duration_ns for _, timeline in view.sides), _WIDTH)
    parts, said = [_axis(scale)], []
    for name, timeline in view.sides:
        words = duration_words(timeline, view.baseline if timeline is view.after else None)
        parts.append(_half(name, timeline, scale, words))
        said.append(f"{name.lower()} {words}")
    summary = f"Rank {view.rank}, timelines of the step: {', '.join(said)}"
    return el(
        "div",
        el("div", *parts, class_="canvas"),
        class_="scroller", tabindex=0, role="group", aria_label=summary,
    )  # fmt: skip


def duration_words(timeline: Timeline, baseline: Timeline | None) -> str:
    """Return "123.00 ms", with the change against a baseline where there is one."""
    words = ms(timeline.duration_ns / 1e3)
    if baseline is None:
        return words
    against = "recorded" if baseline.source is Source.MEASURED else "simulated"
    shown = signed_percent(change(baseline.duration_ns, timeline.duration_ns))
    return f"{words} ({shown} against stock as {against})"


def legend(views: Iterable[RankView]) -> str:
    """Return the key to the colours, only those that occur."""
    present = {
        piece.kind
        for view in views
        for _, timeline in view.sides
        for track in timeline.tracks
        for piece in track.slices
    }
    entries = [_key(css_class(kind), name) for kind, name in CLASS_NAMES.items() if kind in present]
    entries += [_key("k-exposed", "exposed communication"), _key("k-idle", "idle")]
    return el("ul", *entries, class_="legend")


def _key(style: str, name: str) -> str:
    return el("li", el("span", class_=f"swatch {style}"), text(name))


def _axis(scale: Scale) -> str:
    ticks = [
        el("span", text(label), style=f"left:{scale.percent(at_ns)}")
        for at_ns, label in scale.ticks(MAX_TICKS)
        if at_ns <= scale.span_ns * 0.97  # a label past the right edge would widen the scroller
    ]
    return el("div", el("div", *ticks, class_="ticks"), class_="lane axis", aria_hidden="true")


def _half(name: str, timeline: Timeline, scale: Scale, duration: str) -> str:
    head = el("div", el("b", name), " ", text(duration), " ", source_tag(timeline.source), class_="half-head")
    lanes = [
        _lane(track.name, lane, timeline.duration_ns, scale)
        for track in timeline.tracks
        for lane in pack(track.slices)
    ]
    exposed, idle = waiting(timeline)
    bars = [
        _path("k-idle", idle, scale, f"idle, {ms(total(idle) / 1e3)} in all"),
        _path("k-exposed", exposed, scale, f"exposed communication, {ms(total(exposed) / 1e3)} in all"),
    ]
    lanes.append(_row("GPU waits", _svg([_ground(timeline.duration_ns, scale), *bars]), "wait"))
    return el("section", head, *lanes, class_="half", aria_label=f"{name}, {duration}, {timeline.source}")


def _lane(name: str, lane: list[Slice], duration_ns: int, scale: Scale) -> str:
    """Compute is drawn run by run; each collective is a bar of its own that can be pointed at."""
    compute = [piece for piece in lane if not piece.kind.is_communication]
    communication = [piece for piece in lane if piece.kind.is_communication]
    bars = []
    for kind, runs in coalesce(compute, scale.grain_ns).items():
        spent = sum(p.end_ns - p.start_ns for p in compute if p.kind is kind) / 1e3
        bars.append(_path(css_class(kind), runs, scale, f"{CLASS_NAMES[kind]}, {ms(spent)} in all"))
    for piece in communication:
        words = f"{piece.label}: {ms((piece.end_ns - piece.start_ns) / 1e3)} from {ms(piece.start_ns / 1e3)}"
        hint = f"{words}, {piece.detail}" if piece.detail else words
        bars.append(_path(css_class(piece.kind), [(piece.start_ns, piece.end_ns)], scale, hint))
    return _row(name, _svg([_ground(duration_ns, scale), *bars]), "work")


def _path(style: str, intervals: Intervals, scale: Scale, hint: str) -> str:
    if not intervals:
        return ""
    return el("path", el("title", text(hint)), d=scale.bars(intervals, height=_HEIGHT), class_=style)


def _ground(duration_ns: int, scale: Scale) -> str:
    """The lane's background ends where the step ends: what is saved stays empty."""
    return el("path", d=scale.bars([(0, duration_ns)], height=_HEIGHT), class_="k-track")


def _svg(bars: Iterable[str]) -> str:
    return el(
        "svg", *bars,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}", preserveAspectRatio="none", role="img", aria_hidden="true",
    )  # fmt: skip


def _row(name: str, drawing: str, style: str) -> str:
    return el("div", el("span", text(name), class_="lane-name"), drawing, class_=f"lane {style}")
