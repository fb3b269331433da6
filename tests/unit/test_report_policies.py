"""The policies' chart: one mark a place, hollow where nothing there can run, far points named below."""

from __future__ import annotations

import re

import pytest

from kareus.report.data import Effect, FrontierPoint, FrontierView, PolicyRow, Source
from kareus.report.policies import policy_plot, policy_table


def row(name, time_us, energy_j, **more):
    effect = Effect(time_us=time_us, energy_j=energy_j, source=Source.PREDICTED)
    return PolicyRow(name=name, effect=effect, **more)


ROWS = (
    row("stock", 100e3, 70.0, equal_energy_time_us=100e3),
    row("one clock", 100e3, 70.0, runnable=False),
    row("zeus", 101e3, 66.0, runnable=False, needs=("root",)),
    row("kareus", 97e3, 65.0, bound_j=64.9, equal_energy_time_us=95e3),
)


def mark_names(page):
    return re.findall(r'class="mark-name">([^<]*)<', page)


def test_policies_of_one_plan_share_a_mark_and_only_impossible_ones_are_hollow():
    page = policy_plot(ROWS, None)
    assert mark_names(page) == ["stock, one clock", "zeus", "kareus"]
    assert page.count('class="hollow"') == 1
    assert 'class="front"' not in page


def test_marks_lie_where_their_figures_say():
    page = policy_plot(ROWS, None)
    places = [tuple(map(float, p)) for p in re.findall(r"left:([\d.]+)%;top:([\d.]+)%;z-index", page)]
    # Frame: 97..101 ms and 65..70 J with 8 % around.
    expected = [
        ((t - 96.68) / 4.64 * 100, (70.4 - e) / 5.8 * 100) for t, e in ((100, 70), (101, 66), (97, 65))
    ]
    for place, (x, y) in zip(places, expected, strict=True):
        assert place == pytest.approx((x, y), abs=0.01)


def test_the_frontier_is_drawn_and_lies_inside():
    points = tuple(
        FrontierPoint(time_us=t, energy_j=e) for t, e in ((90e3, 67.0), (96e3, 65.5), (104e3, 60.0))
    )
    page = policy_plot(ROWS, FrontierView(points=points))
    assert 'class="front"' in page
    assert page.count('class="dot"') == 3


def test_a_step_far_away_is_named_below():
    page = policy_plot((*ROWS, row("serialised", 160e3, 80.0)), None)
    assert "Off this scale: serialised, 160.00" in page
    assert "serialised" not in mark_names(page)


def test_no_chart_of_a_single_point_or_without_energy():
    assert policy_plot(ROWS[:1], None) == ""
    assert policy_plot((row("stock", 1e5, None), row("kareus", 9e4, None)), None) == ""


def test_table_shows_what_each_row_is_worth():
    cells = re.sub(r"<[^>]*>", "|", policy_table(ROWS)).replace("\u00a0", " ").replace("\u2212", "-")
    kareus = cells[cells.index("|kareus|") :]
    for shown in ("97.00 ms", "65.00 J", "+7.1 %", "-5.0 %", "670 W", "64.90 J", "nothing"):
        assert f"|{shown}|" in kareus
    zeus = cells[cells.index("|zeus") : cells.index("|kareus|")]
    assert "not possible here" in zeus
    assert "|-|" in zeus  # slower than stock: nothing is saved at equal time


def test_columns_are_named_for_what_they_compare_and_notes_follow_the_table():
    page = policy_table((*ROWS, row("kareus '26", 98e3, 66.0, note="searched 3 < 9 settings")))
    heads = re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', page)
    assert heads == [
        "policy", "time", "energy", "saved at equal time", "time at equal energy", "average power", "bound",
        "source", "needs",
    ]  # fmt: skip
    assert "searched 3 &lt; 9 settings." in page[page.index("</table>") :]
    assert page.count("<li>") == 1
    assert "<ul" not in policy_table(ROWS)


def test_a_policy_without_a_plan_stays_in_the_table_with_its_reason():
    none = PolicyRow(name="perseus", effect=None, runnable=False, note="no plan within 100.00 ms")
    assert policy_plot((*ROWS, none), None) == policy_plot(ROWS, None)
    cells = re.sub(r"<[^>]*>", "|", policy_table((*ROWS, none)))
    perseus = cells[cells.index("|perseus|") :]
    assert re.sub(r"\|+", "|", perseus).startswith("|perseus| not possible here|-|-|-|-|-|-|-|nothing|")
    assert "no plan within 100.00 ms." in perseus
