"""The page is well-formed, self-contained, complete, and shows only figures that the data hold."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import pytest
from report_samples import report, timeline

from kareus.report.data import Breakdown, FrontierPoint, FrontierView, RankView, Source
from kareus.report.html import render


class Page(HTMLParser):
    """Checks nesting and gathers visible text, ids, label targets and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "title", "svg"} & set(self.open):
            self.text.append(data)

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name == "id":
                self.ids.append(value or "")
            if name == "for":
                self.targets.append(value or "")

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).replace("\u00a0", " ").split())


def test_is_balanced_and_labels_point_at_controls() -> None:
    page = Page(render(report()))
    assert len(page.ids) == len(set(page.ids))
    assert sorted(page.targets) == sorted(page.ids)
    assert ("html", "lang", "en") in page.attributes


def test_loads_nothing_from_anywhere() -> None:
    text = render(report())
    assert re.search(r"https?://|url\(|@import|<script|<link|<img|src=", text) is None


def test_escapes_what_comes_from_files() -> None:
    text = render(report(title="<script>alert(1)</script>", provenance=(("trace", 'a"b&<c>'),)))
    assert "<script>" not in text
    assert 'a"b&amp;&lt;c&gt;' in text


def test_headline_names_both_figures_and_their_source() -> None:
    words = Page(render(report())).words
    assert "a step should take 9.00 ms instead of 9.95 ms , \u22129.5 %" in words
    assert "6.30 J instead of 6.90 J per GPU, \u22128.7 %" in words
    assert "Recorded step measured 10.00 ms energy was not recorded" in words
    assert "Bound bound 6.29 J no plan of this model needs less energy" in words
    assert "Solver status optimal in 0.42 s, confirmed by dynamic programme, gap 0.16 %" in words


def test_a_measured_replay_takes_the_headline() -> None:
    replayed = dataclasses.replace(report().scheduled, time_us=9_100, source=Source.MEASURED)
    words = Page(render(report(replayed=replayed))).words
    assert "a step took 9.10 ms instead of 9.95 ms" in words
    assert "Before predicted after measured" in words


@pytest.mark.parametrize(("verified", "said"), [(True, "Verified constants:"), (False, "Unverified:")])
def test_says_whether_constants_are_verified(verified: bool, said: str) -> None:
    assert said in Page(render(report(verified=verified))).words


def test_breakdown_adds_up_and_is_listed() -> None:
    parts = report().before
    assert parts == Breakdown(compute_us=7500, comm_us=2500, exposed_us=2000, idle_us=500)
    words = Page(render(report())).words
    assert "before measured 10.00 ms 7.00 ms 0.50 ms 2.00 ms 0.50 ms" in words


def test_every_number_in_the_text_comes_from_the_data() -> None:
    """Every figure is a datum, a ratio of two data, a tick of an axis, a zoom, or in a given sentence."""
    data = report()
    page = Page(render(data))
    allowed = {"1", "4", "16"}  # zoom factors
    allowed |= set(re.findall(r"\d+(?:\.\d+)?", repr(data)))
    times = _floats(data, "time_us") | {t / 1e3 for t in _floats(data, "duration_ns")}
    for parts in (data.before, data.after):
        times |= {parts.span_us, parts.compute_us - parts.overlapped_us, parts.overlapped_us}
        times |= {parts.exposed_us, parts.idle_us}
    energies = _floats(data, "energy_j") | _floats(data, "bound_j")
    allowed |= {f"{t / 1e3:.2f}" for t in times} | {f"{e:.2f}" for e in energies}
    for values in (times, energies):
        allowed |= {f"{abs(b - a) / a * 100:.1f}" for a in values for b in values if a}
    allowed |= {
        f"{p.effect.energy_j / p.effect.time_us * 1e6:.0f}"
        for p in data.policies
        if p.effect.energy_j is not None
    }  # average power
    shares = {data.composition_error, data.parts_error, *_floats(data, "gap")}
    allowed |= {f"{abs(s) * 100:.{digits}f}" for s in shares if s is not None for digits in (1, 2)}
    ticks = {f"{n / 2:g}" for n in range(40)}
    found = set(re.findall(r"\d+(?:\.\d+)?", page.words))
    assert found - allowed - ticks == set()
    assert len(found) > 25


def _floats(value: object, name: str) -> set[float]:
    """Collect a field's numbers from nested dataclasses."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found: set[float] = set()
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            if field.name == name and isinstance(inner, int | float):
                found.add(float(inner))
            found |= _floats(inner, name)
        return found
    if isinstance(value, tuple):
        return set().union(*(_floats(item, name) for item in value)) if value else set()
    return set()


def test_says_what_is_missing_instead_of_hiding_it() -> None:
    bare = report(
        frontier=None, bound=None, solver=None, ranks=(), decisions=(), settings=(), policies=(), scaling=()
    )
    words = Page(render(bare)).words
    assert "No timeline: the trace holds no GPU events." in words
    assert "No frontier" in words
    assert "Bound none no proof came with this schedule" in words
    assert "This schedule changes nothing" in words
    assert "Other policies" not in words


def test_warns_when_the_error_is_larger_than_the_change() -> None:
    said = "That error is larger than the predicted change"
    assert said in Page(render(report(composition_error=0.2))).words
    assert said not in Page(render(report(composition_error=0.001))).words


def test_points_that_coincide_share_one_mark() -> None:
    point = FrontierPoint(time_us=9000, energy_j=6.3)
    view = FrontierView(points=(), chosen=point, knee=point, least_energy=point)
    text = render(report(frontier=view, policies=()))
    assert "Single plans only" in text
    assert text.count('class="mark ') == 1
    assert "chosen, knee, least energy" in Page(text).words


def test_a_serialised_step_far_away_is_named_below_the_plot() -> None:
    points = (FrontierPoint(time_us=9000, energy_j=6.3), FrontierPoint(time_us=9100, energy_j=6.2))
    far = FrontierPoint(time_us=12_000, energy_j=7.0)
    view = FrontierView(points=points, chosen=points[0], serialised=far)
    text = render(report(frontier=view, policies=()))
    assert "Single plans only" not in text
    assert "Off this scale: serialised, 12.00 ms and 7.00 J." in Page(text).words
    assert text.count('class="mark ') == 1


def test_after_is_compared_with_stock_of_its_own_kind() -> None:
    before, after = timeline(Source.MEASURED), timeline(Source.PREDICTED, 0.9)
    view = RankView(rank=3, before=before, after=after, stock=timeline(Source.PREDICTED, 0.95))
    words = Page(render(report(ranks=(view,)))).words
    assert "Before 10.00 ms measured" in words
    assert "Stock as simulated 9.50 ms predicted" in words
    assert "After 9.00 ms (\u22125.3 % against stock as simulated) predicted" in words
    assert "against stock as recorded" in Page(render(report())).words


def test_the_shaded_area_is_only_what_is_proven() -> None:
    """Between two proven points only the later, lower bound holds, so the line falls first."""
    text = render(report())
    path = re.search(r'<path d="([^"]*)" class="bound-line"', text)
    assert path is not None
    assert re.fullmatch(r"M[\d. ]+(V[\d.]+H[\d.]+)+", path.group(1))
