"""Policies on the same step: their points in the time-energy plane with the frontier, and a table."""

from __future__ import annotations

from collections.abc import Sequence

from kareus.report.data import Effect, FrontierPoint, FrontierView, PolicyRow
from kareus.report.markup import el, source_tag, table, text
from kareus.report.numbers import change, joules, ms, signed_percent
from kareus.report.plotting import Frame, Mark, dots, figure, glyph, layer, steps

_FAR = 3.0  # a point is off the scale beyond this many times the spread of the others
_LEAST_SPREAD = 0.02  # of the step: what counts as spread where all others lie together
_RUNNABLE = '<circle cx="8" cy="8" r="6"/>'
_SIMULATED_ONLY = '<circle cx="8" cy="8" r="5" class="hollow"/>'


def policy_plot(policies: Sequence[PolicyRow], frontier: FrontierView | None) -> str:
    """Return the chart, "" where fewer than two policies have a time and an energy.

    Args:
        policies: rows of a comparison, stock first.
        frontier: its curve is drawn where it has points.
    """
    marks = _marks(policies)
    if sum(len(mark.names) for mark in marks) < 2:
        return ""
    curve = frontier.points if frontier is not None else ()
    frame = Frame.around([*_near([mark.point for mark in marks]), *curve])
    curves = ""
    if curve:
        line = steps([(p.time_us, p.energy_j) for p in curve], frame)
        curves = layer(el("path", d=line, class_="front")) + dots(curve, frame)
    drawn = sum(len(mark.names) for mark in marks)
    described = f"Energy against step time: {drawn} policies, listed in the table below"
    return figure(frame, marks, curves, described)


def policy_table(policies: Sequence[PolicyRow]) -> str:
    """Return one row per policy, changes against the first, and the policies' notes below."""
    head = [
        "policy", "time", "energy", "saved at equal time", "time at equal energy", "average power", "bound",
        "source", "needs",
    ]  # fmt: skip
    rows = [_cells(policy, policies[0].effect) for policy in policies]
    notes = "".join(
        el("li", el("strong", text(policy.name)), text(f": {policy.note}."))
        for policy in policies
        if policy.note
    )
    below = el("ul", notes, class_="plain") if notes else ""
    return table("Policies", head, rows, numeric=frozenset(range(1, 7))) + below


def _cells(policy: PolicyRow, stock: Effect | None) -> list[str]:
    effect = policy.effect
    time, energy, power, saved = "-", "-", "-", "-"
    if effect is not None:
        time, energy, power = ms(effect.time_us), "unknown", ""
        if effect.energy_j is not None:
            energy = joules(effect.energy_j)
            power = f"{effect.energy_j / effect.time_us * 1e6:.0f} W"
            if stock is not None and stock.energy_j is not None and effect.time_us <= stock.time_us:
                saved = signed_percent(0.0 - change(stock.energy_j, effect.energy_j))
    equal = policy.equal_energy_time_us
    later = "-" if equal is None or stock is None else signed_percent(change(stock.time_us, equal))
    tag = "" if policy.runnable else el("span", " not possible here", class_="tag")
    return [
        text(policy.name) + tag,
        time,
        energy,
        text(saved),
        text(later),
        power,
        joules(policy.bound_j) if policy.bound_j is not None else "-",
        source_tag(effect.source) if effect is not None else "-",
        text(", ".join(policy.needs) or "nothing"),
    ]


def _marks(policies: Sequence[PolicyRow]) -> list[Mark]:
    """One mark per place: policies that come to the same plan share it; hollow where none can run here."""
    places: dict[tuple[float, float], list[PolicyRow]] = {}
    for policy in policies:
        if policy.effect is not None and policy.effect.energy_j is not None:
            places.setdefault((policy.effect.time_us, policy.effect.energy_j), []).append(policy)
    return [
        Mark(
            names=tuple(policy.name for policy in here),
            point=FrontierPoint(time_us=time_us, energy_j=energy_j),
            glyph=glyph(_RUNNABLE, "chosen")
            if any(policy.runnable for policy in here)
            else glyph(_SIMULATED_ONLY, "other"),
        )
        for (time_us, energy_j), here in places.items()
    ]


def _near(points: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    """Leave out points that lie so far away in time that the others would fall into one spot."""
    kept = sorted(points, key=lambda p: p.time_us)
    while len(kept) > 2:
        first = kept[0].time_us
        spread = max(kept[-2].time_us - first, _LEAST_SPREAD * first)
        if kept[-1].time_us - first <= _FAR * spread:
            break
        kept.pop()
    return kept
