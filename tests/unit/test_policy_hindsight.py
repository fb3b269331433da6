"""The bound is exact where arithmetic can follow, and no policy ever stays below it."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.errors import InfeasibleError, UsageError
from kareus.plan.policies.chase import ChaseCost, always, chase, known, run_job, within_deadline
from kareus.plan.policies.choose import Point
from kareus.plan.policies.hindsight import least_footprint
from kareus.plan.policies.series import Series

FAST = Point(label="fast", time_s=1.0, energy_j=300.0)
SLOW = Point(label="slow", time_s=1.5, energy_j=240.0)


def hourly(*values):
    return Series(
        start_s=tuple(3600.0 * i for i in range(len(values))), value=tuple(values), interval_s=3600.0
    )


def test_without_room_the_fastest_point_is_all_there_is():
    fixed = run_job(7200.0, hourly(100.0, 900.0), 0.0, always(FAST))
    assert least_footprint([FAST, SLOW], hourly(100.0, 900.0), 0.0, 7200.0, 7200.0) == pytest.approx(
        fixed.footprint
    )


def test_room_is_spent_in_the_dirty_hour():
    # 6,000 units in two hours: fast through the clean hour (3,600), slow through the dirty one (2,400).
    series = hourly(100.0, 900.0)
    expected = (3600 * 300 * 100 + 2400 * 240 * 900) / 3.6e6
    assert least_footprint([FAST, SLOW], series, 0.0, 6000.0, 7200.0) == pytest.approx(expected)


def test_a_pause_costs_nothing():
    assert least_footprint([FAST], hourly(900.0, 100.0), 0.0, 3600.0, 7200.0) == pytest.approx(
        3600 * 300 * 100 / 3.6e6
    )


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(0, 1000), min_size=1, max_size=8),
    points=st.lists(st.tuples(st.floats(0.5, 3.0), st.floats(50, 500)), min_size=1, max_size=4),
    room=st.floats(1.0, 1.6),
)
def test_no_plan_made_of_whole_intervals_is_below_it(values, points, room):
    made = [Point(label=str(i), time_s=t, energy_j=e) for i, (t, e) in enumerate(points)]
    series = hourly(*values)
    work = 2.5 * 3600 / max(p.time_s for p in made)
    deadline = work * min(p.time_s for p in made) * room
    bound = least_footprint(made, series, 0.0, work, deadline)
    for plan in itertools.product(made, repeat=4):
        result = run_job(work, series, 0.0, lambda ci, left, at, plan=plan: plan[min(int(at // 3600), 3)])
        if result.time_s <= deadline:
            assert result.footprint >= bound * (1 - 1e-9) - 1e-9
    for decide in (
        chase(made, ChaseCost(max_power_w=500, max_intensity=1000)),
        within_deadline(made, deadline, lambda at: series),
    ):
        result = run_job(work, series, 0.0, decide, foresee=known)
        if result.time_s <= deadline:
            assert result.footprint >= bound * (1 - 1e-9) - 1e-9


def test_what_cannot_be_done_is_refused():
    with pytest.raises(InfeasibleError, match="take at least 7200 s"):
        least_footprint([FAST], hourly(1.0), 0.0, 7200.0, 7000.0)
    with pytest.raises(UsageError, match="some work"):
        least_footprint([FAST], hourly(1.0), 0.0, 0.0, 7000.0)
