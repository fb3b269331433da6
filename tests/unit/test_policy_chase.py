import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.errors import InfeasibleError, InputError, UsageError
from kareus.plan.policies.chase import ChaseCost, always, chase, known, run_job, within_deadline
from kareus.plan.policies.choose import Point
from kareus.plan.policies.series import Series, forecast, make_series, read_electricity_maps, read_series_csv

FAST = Point(label="fast", time_s=1.0, energy_j=300.0)
SLOW = Point(label="slow", time_s=1.2, energy_j=240.0)
HOURLY = Series(start_s=(0.0, 3600.0, 7200.0), value=(100.0, 900.0, 100.0), interval_s=3600.0)


def test_a_steady_job_costs_what_arithmetic_says():
    result = run_job(5400.0, HOURLY, 0.0, always(FAST), foresee=known)
    assert result.time_s == pytest.approx(5400)
    assert result.energy_j == pytest.approx(300 * 5400)
    assert result.footprint == pytest.approx((3600 * 300 * 100 + 1800 * 300 * 900) / 3.6e6)
    assert (result.swaps, result.labels) == (0, ("fast", "fast"))


def test_chase_slows_down_only_where_energy_is_dirty():
    # Break-even intensity: eta * 60 J * ci = (1 - eta) * 300 W * 900 * 0.2 s at eta 0.6 is 600.
    cost = ChaseCost(max_power_w=300, max_intensity=900, eta=0.6)
    result = run_job(9000.0, HOURLY, 0.0, chase([FAST, SLOW], cost), foresee=known)
    assert result.labels == ("fast", "slow", "fast")
    assert result.swaps == 2
    fixed = run_job(9000.0, HOURLY, 0.0, always(FAST), foresee=known)
    assert result.footprint < fixed.footprint
    assert result.time_s > fixed.time_s


def test_money_is_reported_beside_carbon_and_joules_under_its_own_steps():
    price = Series(start_s=(0.0, 1800.0), value=(0.2, 0.4), interval_s=1800.0)
    result = run_job(3600.0, HOURLY, 0.0, always(FAST), foresee=known, bill={"eur": price})
    assert result.bills == {"eur": pytest.approx(300 * 3600 / 3.6e6 * 0.3)}
    assert result.footprint == pytest.approx(300 * 3600 / 3.6e6 * 100)


def test_swaps_cost_time_and_energy():
    cost = ChaseCost(max_power_w=300, max_intensity=900, eta=0.6)
    free = run_job(9000.0, HOURLY, 0.0, chase([FAST, SLOW], cost), foresee=known)
    paid = run_job(9000.0, HOURLY, 0.0, chase([FAST, SLOW], cost), foresee=known, swap_s=30.0, swap_j=9000.0)
    assert free.time_s < paid.time_s <= free.time_s + 60.0 * 1.2
    assert paid.energy_j == pytest.approx(free.energy_j + 2 * 9000, rel=0.01)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(10, 1000), min_size=1, max_size=12),
    st.floats(0, 20_000),
    st.floats(100, 30_000),
    st.floats(0.05, 0.95),
)
def test_all_work_is_done_and_hindsight_never_loses_to_a_fixed_choice(values, start, work, eta):
    series = Series(
        start_s=tuple(1800.0 * i for i in range(len(values))), value=tuple(values), interval_s=1800.0
    )
    cost = ChaseCost(max_power_w=300, max_intensity=1000, eta=eta)
    result = run_job(work, series, start, chase([FAST, SLOW], cost), foresee=known)
    slow_work = (result.time_s - work) / 0.2
    assert -1e-6 * work <= slow_work <= work * (1 + 1e-9)
    assert result.energy_j == pytest.approx(300 * work - 60 * slow_work, rel=1e-6)


def test_deadline_rule_puts_the_slow_intervals_where_it_is_dirty():
    decide = within_deadline([FAST, SLOW], 9000 * 1.05, lambda elapsed_s: HOURLY)
    result = run_job(9000.0, HOURLY, 0.0, decide, foresee=known)
    assert result.time_s <= 9000 * 1.05 * (1 + 1e-9)
    assert result.labels[0] == "fast"
    loose = within_deadline([FAST, SLOW], 9000 * 1.3, lambda elapsed_s: HOURLY)
    assert set(run_job(9000.0, HOURLY, 0.0, loose, foresee=known).labels) == {"slow"}
    with pytest.raises(InfeasibleError, match="take at least"):
        run_job(9000.0, HOURLY, 0.0, within_deadline([FAST, SLOW], 8000, lambda elapsed_s: HOURLY))


def test_forecast_knows_only_the_past():
    times = [1800.0 * i for i in range(100)]
    values = [500 + 100 * np.sin(2 * np.pi * t / 86_400) for t in times]
    changed = values[:60] + [1.0] * 40
    first = forecast(make_series(times, values, "a"), times[59], 6)
    second = forecast(make_series(times, changed, "b"), times[59], 6)
    assert (first == second).all()


def test_forecast_of_a_daily_cycle_beats_persistence_hours_ahead():
    times = [1800.0 * i for i in range(200)]
    values = [500 + 100 * np.sin(2 * np.pi * t / 86_400) for t in times]
    series = make_series(times, values, "cycle")
    errors, persistence = [], []
    for i in range(60, 180):
        errors.append(abs(forecast(series, times[i], 12)[-1] - values[i + 12]))
        persistence.append(abs(values[i] - values[i + 12]))
    assert np.mean(errors) < 0.5 * np.mean(persistence)


def test_little_history_repeats_the_last_value():
    assert forecast(HOURLY, 3700.0, 3).tolist() == [900.0] * 3
    with pytest.raises(UsageError, match="at least one value"):
        forecast(HOURLY, 0.0, 0)


def test_series_hold_from_their_start_and_beyond_their_end():
    assert (HOURLY.at(-5), HOURLY.at(3599), HOURLY.at(3600), HOURLY.at(1e6)) == (100, 100, 900, 100)
    assert HOURLY.next_change_s(10.0) == 3600.0
    assert HOURLY.next_change_s(7200.0) == 10800.0
    assert HOURLY.next_change_s(10800.0) == 14400.0


def test_readers_take_csv_and_electricity_maps(tmp_path):
    table = tmp_path / "price.csv"
    table.write_text("timestamp,price\n2024-01-01T01:00:00Z,0.3\n2024-01-01T00:00:00+00:00,0.2\n")
    series = read_series_csv(table, column="price")
    assert series.value == (0.2, 0.3)
    assert series.interval_s == 3600.0
    document = tmp_path / "maps.json"
    document.write_text(json.dumps({"zone": "X", "history": [
        {"datetime": "2024-11-30T06:00:00.000Z", "carbonIntensity": 501},
        {"datetime": "2024-11-30T07:00:00.000Z", "carbonIntensity": None},
        {"datetime": "2024-11-30T08:00:00.000Z", "carbonIntensity": 419},
    ]}))  # fmt: skip
    assert read_electricity_maps(document).value == (501.0, 419.0)


def test_readers_say_what_is_wrong_and_where(tmp_path):
    bad = tmp_path / "bad.csv"
    bad.write_text("timestamp,value\nyesterday,3\n")
    with pytest.raises(InputError, match=r"bad\.csv, row 1: expected an ISO time"):
        read_series_csv(bad)
    bad.write_text("timestamp,value\n2024-01-01T00:00:00Z,3\n")
    with pytest.raises(InputError, match="'hist'"):
        read_series_csv(bad, column="hist")
    bad.write_text("timestamp,value\n2024-01-01T00:00:00Z,-3\n")
    with pytest.raises(InputError, match=r"of 0 to 1e\+09 at 2024"):
        read_series_csv(bad)
    bad.write_text("timestamp,value\n2024-01-01T00:00:00Z,3\n2024-01-01T00:00:00Z,3\n")
    with pytest.raises(InputError, match="occurs twice"):
        read_series_csv(bad)
    bad.write_text("timestamp,value\n")
    with pytest.raises(InputError, match="no rows"):
        read_series_csv(bad)
    bad.write_text('{"items": []}')
    with pytest.raises(InputError, match="another document"):
        read_electricity_maps(bad)
    bad.write_text('{"history": [{"datetime": "2024-01-01T00:00:00Z"}]}')
    with pytest.raises(InputError, match="entry 0"):
        read_electricity_maps(bad)
    bad.write_text("{")
    with pytest.raises(InputError, match="cannot read"):
        read_electricity_maps(bad)
    with pytest.raises(InputError, match="cannot read"):
        read_series_csv(tmp_path / "absent.csv")


def test_senseless_costs_are_refused():
    with pytest.raises(UsageError, match="eta in 0"):
        ChaseCost(max_power_w=300, max_intensity=750, eta=2.0)
    with pytest.raises(UsageError, match="some work"):
        run_job(0.0, HOURLY, 0.0, always(FAST))
