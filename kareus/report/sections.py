"""The sections of the page below its headline, each from its part of the data."""

from __future__ import annotations

from kareus.report.data import Breakdown, Effect, ReportData, Source
from kareus.report.frontier import plot
from kareus.report.markup import el, source_tag, table, text
from kareus.report.numbers import change, ms, signed_percent
from kareus.report.policies import policy_plot, policy_table
from kareus.report.timeline import ZOOMS, legend, rank_figure

_SHARES = (  # attribute of Breakdown, colour, words
    ("compute_alone_us", "k-gemm", "compute alone"),
    ("overlapped_us", "k-both", "compute with communication beside it"),
    ("exposed_us", "k-exposed", "exposed communication"),
    ("idle_us", "k-idle", "idle"),
)


def sections(report: ReportData) -> list[str]:
    """Return the sections in reading order; those without data say so or are left out."""
    return [
        _time_part(report), _timeline_part(report), _frontier_part(report), _decision_part(report),
        _policy_part(report), _scaling_part(report), _trust_part(report), _replay_part(report),
    ]  # fmt: skip


def energy_change(before: Effect, after: Effect) -> float | None:
    """Return the relative change of energy, None where either is unknown."""
    if before.energy_j is None or after.energy_j is None:
        return None
    return change(before.energy_j, after.energy_j)


def _part(title: str, lead: str, *content: str) -> str:
    return el("section", el("h2", text(title)), el("p", lead, class_="lead"), *content, class_="part")


def _time_part(report: ReportData) -> str:
    sides = [("before", report.before, report.recorded.source)]
    if report.stock_parts is not None:
        sides.append(("stock as simulated", report.stock_parts, report.stock.source))
    sides.append(("after", report.after, report.scheduled.source))
    longest = max(parts.span_us for _, parts, _ in sides)
    bars = [_share_bar(name, parts, longest) for name, parts, _ in sides]
    rows = [
        [f"{name} {source_tag(source)}", ms(parts.span_us)]
        + [ms(_share(parts, attribute)) for attribute, _, _ in _SHARES]
        for name, parts, source in sides
    ]
    entries = [el("li", el("span", class_=f"swatch {style}"), text(words)) for _, style, words in _SHARES]
    head = [
        f"rank {report.ranks[0].rank}" if report.ranks else "",
        "step",
        *(words for _, _, words in _SHARES),
    ]
    lead = "Exposed communication is time in which a collective runs and no computation does."
    numbers = table("Where the time of a step goes", head, rows, numeric=frozenset(range(1, 6)))
    return _part("Where the time goes", lead, *bars, el("ul", *entries, class_="legend"), "<br/>", numbers)


def _share(parts: Breakdown, attribute: str) -> float:
    if attribute == "compute_alone_us":
        return parts.compute_us - parts.overlapped_us
    value: float = getattr(parts, attribute)
    return value


def _share_bar(name: str, parts: Breakdown, longest_us: float) -> str:
    pieces = [
        el("i", class_=style, style=f"width:{100 * _share(parts, attribute) / longest_us:.3f}%",
           title=f"{words}: {ms(_share(parts, attribute))}")
        for attribute, style, words in _SHARES
        if longest_us > 0
    ]  # fmt: skip
    return el(
        "div", el("span", name), el("div", *pieces, class_="share-bar"), class_="share", aria_hidden="true"
    )


def _timeline_part(report: ReportData) -> str:
    if not report.ranks:
        return _part("The step, stream by stream", "No timeline: the trace holds no GPU events.")
    ranks = _choice("Rank", "rank", [(str(i), str(v.rank)) for i, v in enumerate(report.ranks)])
    zooms = _choice("Zoom", "zoom", [(str(z), f"{z}\u00d7") for z in ZOOMS])
    figures = [el("div", rank_figure(v), class_=f"rank r{i}") for i, v in enumerate(report.ranks)]
    lead = "All share one time axis. Point at a bar for its figures; zoom in and scroll sideways."
    controls = el("div", ranks if len(report.ranks) > 1 else "", zooms, class_="controls")
    return _part("The step, stream by stream", lead, controls, *figures, legend(report.ranks))


def _choice(name: str, group: str, options: list[tuple[str, str]]) -> str:
    parts = [el("legend", text(name))]
    for index, (value, label) in enumerate(options):
        identifier = f"{group}-{value}"
        parts.append(
            el("input", type="radio", name=group, id=identifier, checked="" if index == 0 else None)
            + el("label", text(label), for_=identifier)
        )
    return el("fieldset", *parts)


def _frontier_part(report: ReportData) -> str:
    if report.frontier is None:
        lead = "No frontier: nothing is known about energy, or the page was made without it."
        return _part("Time against energy", lead)
    lead = (
        "The line is the least energy the model finds within each step time; nothing of this model lies in "
        f"the shaded area under the dotted bound. All points {source_tag(Source.PREDICTED)}"
    )
    if not report.frontier.points:
        lead = (
            "Single plans only: the line between them comes with the file of "
            f"<code>kareus solve --frontier</code>. All points {source_tag(Source.PREDICTED)}"
        )
    return _part("Time against energy", lead, plot(report.frontier))


def _decision_part(report: ReportData) -> str:
    lead = (
        "Everything else stays as PyTorch does it. In a row for many layers, n is the collective's own layer."
    )
    settings = (
        el("ul", *(el("li", text(s)) for s in report.settings), class_="plain") if report.settings else ""
    )
    if not report.decisions:
        nothing = "" if report.settings else el("p", "Nothing changes.", class_="empty")
        return _part("What changes", lead, settings, nothing)
    rows = [[text(row.what), str(row.count), text(row.change), text(row.effect)] for row in report.decisions]
    head = ["collective", "count", "change", "effect (predicted)"]
    return _part("What changes", lead, table("Decisions", head, rows, numeric=frozenset({1})), settings)


def _policy_part(report: ReportData) -> str:
    if not report.policies:
        return ""
    lead = (
        f"Published policies on the same step, against {text(report.policies[0].name)}. Each point is the "
        "least energy without being slower; time at equal energy is that of the fastest plan with no more "
        "energy. Hollow points need what this machine does not allow and are simulated all the same."
    )
    chart = policy_plot(report.policies, report.frontier)
    return _part("Other policies", lead, chart, policy_table(report.policies))


def _scaling_part(report: ReportData) -> str:
    if not report.scaling:
        return ""
    rows = []
    for row in report.scaling:
        saved = signed_percent(change(row.stock.time_us, row.scheduled.time_us))
        cells = [str(row.num_ranks), ms(row.stock.time_us), ms(row.scheduled.time_us), text(saved)]
        rows.append([text(row.label), *cells, source_tag(row.scheduled.source)])
    head = ["links", "ranks", "stock", "scheduled", "change", "source"]
    lead = "The recorded step scaled by the cost model; nothing here was run on such a cluster."
    return _part("On a larger cluster", lead, table("Scaling", head, rows, numeric=frozenset(range(1, 5))))


def _trust_part(report: ReportData) -> str:
    error = signed_percent(report.composition_error)
    facts = [f"The model simulates the recorded stock step with an error of {error}."]
    if report.parts_error is not None:
        facts.append(
            f"The simulated step differs from the sum of its separately simulated spans by "
            f"{signed_percent(report.parts_error)}."
        )
    margin = abs(change(report.stock.time_us, report.scheduled.time_us))
    if abs(report.composition_error) > margin and (report.decisions or report.settings):
        facts.append("That error is larger than the predicted change: only a measurement can tell.")
    listed = [*facts, *report.assumptions, *report.notes]
    lead = "The change compares a simulated step with a simulated step, so errors common to both cancel."
    return _part(
        "How far to trust this",
        text(lead),
        el("ul", *(el("li", text(_sentence(s))) for s in listed), class_="plain"),
    )


def _sentence(words: str) -> str:
    """Notes come from many places; they read alike with a capital and a full stop."""
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) else ".")


def _replay_part(report: ReportData) -> str:
    facts = [el("dt", text(k)) + el("dd", text(v)) for k, v in report.provenance]
    commands = [el("pre", el("code", text(line)), tabindex=0) for line in report.commands]
    lead = "The files behind this page, and the commands that use the schedule."
    return _part("Files and commands", lead, el("dl", *facts, class_="facts") if facts else "", *commands)
