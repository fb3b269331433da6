"""One step before and after as a picture of its own, for a README or a slide."""

from __future__ import annotations

from kareus.report.data import SliceClass, Timeline, Track
from kareus.report.lanes import coalesce, pack, waiting
from kareus.report.markup import el, text
from kareus.report.numbers import ms
from kareus.report.scale import Scale
from kareus.report.style import THEMES, fills
from kareus.report.timeline import CLASS_NAMES, css_class, duration_words

_WIDTH, _MARGIN, _LABELS = 960, 24, 172
_PLOT = _WIDTH - 2 * _MARGIN - _LABELS
_UNITS = 24_000  # drawing units over the longer step, squeezed into _PLOT
_LANE, _WAIT, _GAP = 22, 8, 4
_MAX_TICKS = 8
_CHARACTER = 7.2  # mean width of a 12 px letter, to place the key
_TEXT = (
    "text{font:12px ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,"
    "sans-serif;fill:var(--soft);font-variant-numeric:tabular-nums}"
    ".head{font-size:14px;fill:var(--ink)}.head .strong,.title{font-weight:600}"
    ".title{font-size:17px;fill:var(--ink)}"
    ".paper{fill:var(--paper);stroke:var(--rule)}.tick{stroke:var(--rule)}"
)


def step_picture(before: Timeline, after: Timeline, *, title: str, baseline: Timeline | None = None) -> str:
    """Return a stand-alone SVG: streams before and after on one time axis, with a key.

    The picture carries its own background and a dark theme, so it reads on any page.

    Args:
        before, after: the same rank's step; their `source` is written beside their durations.
        title: one line above. baseline: what the change is counted from, the recorded step by default;
            give the simulated stock step where `after` is simulated.
    """
    scale = Scale(max(before.duration_ns, after.duration_ns), _UNITS)
    top = _MARGIN + 16
    parts = [el("text", text(title), x=_MARGIN, y=top, class_="title")]
    top += 30
    axis_top = top
    for name, timeline in (("Before", before), ("After", after)):
        against = (baseline or before) if timeline is after else None
        words = f"{duration_words(timeline, against)}, {timeline.source}"
        drawn, top = _half(words, name, timeline, scale, top)
        parts += drawn
        top += 16
    parts[1:1] = _axis(scale, axis_top, top)
    top += 26
    keys, top = _keys((before, after), top)
    parts += keys
    height = top + _MARGIN - 10
    frame = el("rect", x="0.5", y="0.5", width=_WIDTH - 1, height=height - 1, rx=10, class_="paper")
    style = el("style", THEMES + _TEXT + "".join(fills()))
    summary = (
        f"{title}: {ms(before.duration_ns / 1e3)} before, {before.source}, and "
        f"{ms(after.duration_ns / 1e3)} after, {after.source}"
    )
    return (
        el(
            "svg", el("title", text(summary)), style, frame, *parts,
            xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {_WIDTH} {height}", width=_WIDTH, height=height,
            role="img",
        )
        + "\n"
    )  # fmt: skip


def _half(words: str, name: str, timeline: Timeline, scale: Scale, top: int) -> tuple[list[str], int]:
    strong = el("tspan", text(name), class_="strong")
    parts = [el("text", strong, text(f"  {words}"), x=_MARGIN, y=top + 12, class_="head")]
    top += 22
    for track in timeline.tracks:
        for lane in pack(track.slices):
            drawn = _lane(Track(name=track.name, slices=tuple(lane)), timeline.duration_ns, scale, top)
            parts += drawn
            top += _LANE + _GAP
    exposed, idle = waiting(timeline)
    parts.append(_label("GPU waits", top + 8))
    parts.append(_path("k-track", scale.bars([(0, timeline.duration_ns)], top=top, height=_WAIT)))
    parts.append(_path("k-idle", scale.bars(idle, top=top, height=_WAIT)))
    parts.append(_path("k-exposed", scale.bars(exposed, top=top, height=_WAIT)))
    return parts, top + _WAIT


def _lane(track: Track, duration_ns: int, scale: Scale, top: int) -> list[str]:
    parts = [_label(track.name, top + 15)]
    parts.append(_path("k-track", scale.bars([(0, duration_ns)], top=top, height=_LANE)))
    for kind, runs in coalesce(track.slices, scale.grain_ns).items():
        parts.append(_path(css_class(kind), scale.bars(runs, top=top, height=_LANE)))
    return parts


def _path(style: str, data: str) -> str:
    squeeze = f"translate({_MARGIN + _LABELS} 0) scale({_PLOT / _UNITS:.6f} 1)"
    return el("path", d=data, class_=style, transform=squeeze) if data else ""


def _label(name: str, baseline: int) -> str:
    return el("text", text(name), x=_MARGIN, y=baseline)


def _axis(scale: Scale, top: int, bottom: int) -> list[str]:
    """Hair lines behind the lanes, their times below."""
    parts = []
    for at_ns, label in scale.ticks(_MAX_TICKS):
        x = _MARGIN + _LABELS + round(scale.units(at_ns) * _PLOT / _UNITS)
        parts.append(el("line", x1=x, x2=x, y1=top + 20, y2=bottom, class_="tick"))
        if x < _WIDTH - _MARGIN - 20:
            parts.append(el("text", text(label), x=x + 4, y=bottom + 2))
    return parts


def _keys(timelines: tuple[Timeline, Timeline], top: int) -> tuple[list[str], int]:
    present: set[SliceClass] = {
        piece.kind for timeline in timelines for track in timeline.tracks for piece in track.slices
    }
    keys = [(css_class(kind), name) for kind, name in CLASS_NAMES.items() if kind in present]
    keys += [("k-exposed", "exposed communication"), ("k-idle", "idle")]
    parts = []
    x = float(_MARGIN)
    for style, name in keys:
        wide = 17 + len(name) * _CHARACTER + 18
        if x + wide > _WIDTH - _MARGIN and x > _MARGIN:
            x, top = float(_MARGIN), top + 20
        parts.append(el("rect", x=f"{x:.0f}", y=top, width=11, height=11, rx=2, class_=style))
        parts.append(el("text", text(name), x=f"{x + 17:.0f}", y=top + 10))
        x += wide
    return parts, top + 20
