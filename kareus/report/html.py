"""One self-contained HTML page: no network, no script, light and dark, readable on a phone."""

from __future__ import annotations

from kareus.report.data import Effect, ReportData, Source
from kareus.report.markup import el, source_tag, text
from kareus.report.numbers import change, joules, ms, percent, signed_percent
from kareus.report.sections import energy_change, sections
from kareus.report.style import stylesheet
from kareus.report.timeline import ZOOMS


def render(report: ReportData) -> str:
    """Return the page.

    Every figure comes from `report`; the page only formats, compares and draws.
    """
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width,initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", text(f"Kareus: {report.title}")),
        el("style", stylesheet(len(report.ranks), ZOOMS)),
    )
    body = el("body", _header(report), el("main", *sections(report)), _footer())
    return "<!doctype html>\n" + el("html", head, body, lang="en") + "\n"


def _header(report: ReportData) -> str:
    return el(
        "header",
        el("p", "Kareus step report", class_="brand"),
        el("h1", text(report.title)),
        el("p", text(report.subject), class_="subject"),
        _verdict(report),
        _flag(report),
        _cards(report),
    )


def _verdict(report: ReportData) -> str:
    now = report.replayed or report.scheduled
    time = change(report.stock.time_us, now.time_us)
    energy = energy_change(report.stock, now)
    if not report.decisions and not report.settings:
        words = "This schedule changes nothing: stock is the best plan the model found."
        return el("p", text(words), class_="verdict")
    verb = "took" if report.replayed else "should take"
    said = f"Under this schedule a step {verb} {el('b', ms(now.time_us))} instead of "
    said += f"{el('b', ms(report.stock.time_us))}, {el('b', text(signed_percent(time)))}"
    if energy is not None and now.energy_j is not None and report.stock.energy_j is not None:
        said += f", and {el('b', joules(now.energy_j))} instead of {el('b', joules(report.stock.energy_j))} "
        said += f"per GPU, {el('b', text(signed_percent(energy)))}"
    said += ". " + _both_sources(report.stock.source, now.source)
    return el("p", said, class_="verdict")


def _both_sources(before: Source, after: Source) -> str:
    if before is after:
        return f"Both {source_tag(before)}"
    return f"Before {source_tag(before)} after {source_tag(after)}"


def _flag(report: ReportData) -> str:
    if report.verified:
        words = "the cost model was fitted from a profile of this kind of GPU."
        return el("p", el("b", "Verified constants: "), words, class_="flag verified")
    words = (
        "no profile of this kind of GPU stands behind the prediction, its constants are assumed. "
        "Measure before you rely on it: the runtime's guard returns to stock when a schedule is slower."
    )
    return el("p", el("b", "Unverified: "), words, class_="flag unverified")


def _cards(report: ReportData) -> str:
    stock, plan = report.stock, report.scheduled
    cards = [
        _card("Recorded step", ms(report.recorded.time_us), report.recorded.source, _recorded_note(report)),
        _card("Stock", ms(stock.time_us), stock.source, _energy_note(stock)),
        _card(
            "Scheduled", ms(plan.time_us), plan.source,
            f"{signed_percent(change(stock.time_us, plan.time_us))}, {_energy_note(plan)}",
        ),
    ]  # fmt: skip
    if report.replayed is not None:
        cards.append(
            _card(
                "Replayed", ms(report.replayed.time_us), report.replayed.source, _energy_note(report.replayed)
            )
        )
    cards.append(_bound_card(report))
    if report.solver is not None:
        solver = report.solver
        notes = [f"in {solver.solve_s:.2f} s"] if solver.solve_s is not None else []
        notes += [f"confirmed by {solver.certificate}"] if solver.certificate else []
        notes += [f"gap {percent(solver.gap, 2)}"] if solver.gap is not None else ["no gap without a bound"]
        cards.append(_card("Solver status", solver.status, None, ", ".join(notes)))
    cards.append(
        _card(
            "Composition error", signed_percent(report.composition_error), None,
            "stock as simulated, against the recorded step",
        )
    )  # fmt: skip
    return el("dl", *cards, class_="cards")


def _card(name: str, big: str, source: Source | None, small: str) -> str:
    tag = " " + source_tag(source) if source is not None else ""
    return el(
        "div",
        el("dt", text(name) + tag),
        el("dd", text(big), class_="big"),
        el("dd", text(small), class_="small") if small else "",
        class_="card",
    )


def _recorded_note(report: ReportData) -> str:
    if report.recorded.energy_j is not None:
        return f"{joules(report.recorded.energy_j)} per GPU"
    return "energy was not recorded"


def _energy_note(effect: Effect) -> str:
    return f"{joules(effect.energy_j)} per GPU" if effect.energy_j is not None else "energy unknown"


def _bound_card(report: ReportData) -> str:
    bound = report.bound
    if bound is None:
        return _card("Bound", "none", None, "no proof came with this schedule")
    by_energy = bound.energy_j is not None
    words = "no plan of this model needs less energy in its time" if by_energy else "no plan is faster"
    if report.planned is not None:
        energy = report.planned.energy_j
        shown = joules(energy) if by_energy and energy is not None else ms(report.planned.time_us)
        words = f"the plan by the solver's tables: {shown}; {words}"
    figure = joules(bound.energy_j) if bound.energy_j is not None else ms(bound.time_us)
    return _card("Bound", figure, Source.BOUND, words)


def _footer() -> str:
    words = (
        "Measured: read from a trace or a counter. Predicted: computed by the cost model. Bound: proven "
        "lower limit under the same model. Assumed: a constant nobody measured on this machine."
    )
    return el("footer", text(words))
