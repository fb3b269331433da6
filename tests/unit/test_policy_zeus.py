import logging
import math

import numpy as np
import pytest

from kareus.errors import InputError, UsageError
from kareus.plan.policies.batch_size import BatchSizeSearch
from kareus.plan.policies.zeus import (
    CostRule,
    LimitCost,
    MaxSlowdownRule,
    PowerLimitSearch,
    least_energy,
    least_time,
    power_limits,
)


def cost(limit, time_s, energy_j):
    return LimitCost(power_limit_w=limit, time_s=time_s, energy_j=energy_j)


TABLE = [cost(300, 10.0, 2500.0), cost(250, 10.4, 2300.0), cost(200, 11.5, 2100.0), cost(150, 15.0, 2150.0)]


class TableMachine:
    """A meter and limiter whose steps cost what a table says; counts what it was asked."""

    def __init__(self, table):
        self.table = {c.power_limit_w: c for c in table}
        self.limits, self.cancelled, self.windows = [], 0, 0

    def set_limit(self, watts):
        self.limits.append(watts)

    def begin(self):
        self.windows += 1

    def end(self):
        now = self.table[self.limits[-1]]
        return now.time_s, now.energy_j

    def cancel(self):
        self.cancelled += 1


def search_on(machine, rule, **settings):
    return PowerLimitSearch(
        [c.power_limit_w for c in machine.table.values()], rule, machine, machine.set_limit, **settings
    )


def test_rules_pick_what_they_say():
    assert least_energy(TABLE).power_limit_w == 200
    assert least_time(TABLE).power_limit_w == 300
    assert MaxSlowdownRule(factor=1.05)(TABLE).power_limit_w == 250
    assert MaxSlowdownRule(factor=1.0)(TABLE).power_limit_w == 300
    assert CostRule(max_power_w=300, world_size=1, eta=1.0)(TABLE).power_limit_w == 200
    assert CostRule(max_power_w=300, world_size=1, eta=0.0)(TABLE).power_limit_w == 300
    # 0.5 * 2300 + 0.5 * 300 * 10.4 = 2710 is less than 2750, 2775 and 3325.
    assert CostRule(max_power_w=300, world_size=1)(TABLE).power_limit_w == 250


def test_the_true_world_size_keeps_the_choice_where_one_gpus_count_would_shift_it():
    # On eight ranks the energy of the job is eight times one GPU's, the time stays.
    job = [cost(c.power_limit_w, c.time_s, 8 * c.energy_j) for c in TABLE]
    assert CostRule(max_power_w=300, world_size=8)(job) == job[1]
    assert CostRule(max_power_w=300, world_size=1)(job) == job[2]


@pytest.mark.parametrize("make", [
    lambda: CostRule(max_power_w=300, world_size=0), lambda: CostRule(max_power_w=300, world_size=1, eta=1.5),
    lambda: MaxSlowdownRule(factor=0.9), lambda: power_limits(300, 200), lambda: power_limits(100, 200, 0.5),
    lambda: PowerLimitSearch([], least_energy, TableMachine(TABLE), print),
])  # fmt: skip
def test_senseless_settings_are_refused(make):
    with pytest.raises(UsageError, match="expected"):
        make()


def test_limits_go_down_in_steps():
    assert power_limits(100, 300, 50) == (300, 250, 200, 150, 100)
    assert power_limits(110, 299.9, 75) == (299, 224, 149)


def test_search_measures_every_limit_from_the_top_and_settles():
    machine = TableMachine(TABLE)
    search = search_on(machine, least_energy, wait_steps=1, warm_up_steps=2, measure_steps=3)
    steps = 0
    while not search.done:
        search.on_step_begin()
        steps += 1
    assert machine.limits == [300, 250, 200, 150, 200]
    assert search.chosen_w == 200
    assert search.costs == TABLE
    assert steps == 1 + 4 * (2 + 3) + 1
    search.on_step_begin()
    assert len(machine.limits) == 5


def test_end_of_epoch_drops_the_window_and_tries_the_limit_again():
    machine = TableMachine(TABLE)
    search = search_on(machine, least_energy, wait_steps=0, warm_up_steps=1, measure_steps=2)
    for _ in range(6):  # 300 W is measured, 250 W is being measured
        search.on_step_begin()
    assert [c.power_limit_w for c in search.costs] == [300]
    search.on_epoch_end()
    assert machine.cancelled + (machine.limits[-1] == 300) >= 1
    assert machine.limits[-1] == 300
    while not search.done:
        search.on_step_begin()
    assert search.costs == TABLE
    search.on_epoch_end()
    assert machine.limits[-1] == 200


def test_trouble_on_one_rank_stops_every_rank_at_the_same_step(caplog):
    machines = [TableMachine(TABLE), TableMachine(TABLE)]

    def broken(watts):
        raise PermissionError("no")

    box = {}

    def run(rank, limiter):
        # The first pass only records; the reduction of two ranks is replayed from both records.
        seen = []
        search = PowerLimitSearch(
            [300, 250], least_energy, machines[rank], limiter, wait_steps=0, warm_up_steps=0, measure_steps=1,
            reduce=lambda t, e: seen.append((t, e)) or box.get(len(seen), (t, e)),
        )  # fmt: skip
        steps = 0
        while not search.done:
            search.on_step_begin()
            steps += 1
        return search, steps, seen

    with caplog.at_level(logging.WARNING):
        first, first_steps, seen = run(0, broken)
        assert math.isnan(seen[0][1])
        box[1] = (10.0, math.nan)  # what a sum over ranks gives
        second, second_steps, _ = run(1, machines[1].set_limit)
    assert first_steps == second_steps
    assert first.failure == "PermissionError: no"
    assert second.failure is not None
    assert first.chosen_w is None
    assert machines[1].limits[-1] == 300
    assert "training goes on" in caplog.text


def test_profile_is_saved_and_spares_the_search(tmp_path):
    machine = TableMachine(TABLE)
    search = search_on(machine, least_energy, wait_steps=0, warm_up_steps=0, measure_steps=1)
    while not search.done:
        search.on_step_begin()
    search.save(tmp_path / "power.json")
    again_on = TableMachine(TABLE)
    again = search_on(again_on, MaxSlowdownRule(factor=1.05))
    again.load(tmp_path / "power.json")
    assert again.done
    assert again_on.limits == [250]
    other = PowerLimitSearch([90], least_energy, again_on, print)
    with pytest.raises(InputError, match="measure again"):
        other.load(tmp_path / "power.json")


def run_jobs(search, expected, count, seed=0, failing=()):
    generator = np.random.default_rng(seed)
    chosen = []
    for _ in range(count):
        size = search.next()
        price = expected[size] * generator.uniform(0.9, 1.1)
        reached = size not in failing and not search.should_stop(price)
        search.report(size, min(price, search.cost_bound * 1.01), reached)
        chosen.append(size)
    return chosen


def test_pruning_walks_down_then_up_twice_and_drops_what_fails():
    expected = {8: 500.0, 16: 150.0, 32: 100.0, 64: 120.0, 128: 400.0, 256: 50.0}
    search = BatchSizeSearch(expected, 32)
    first = run_jobs(search, expected, 5, failing={256})
    assert first == [32, 16, 8, 64, 128]  # 8 and 128 pass twice the least cost; 256 is never reached
    assert search.survivors == (16, 32, 64)
    assert run_jobs(search, expected, 3, seed=1)[0] == search.default
    assert not search.pruning


def test_sampling_settles_on_the_cheapest():
    expected = {8: 130.0, 16: 118.0, 32: 100.0, 64: 125.0}
    search = BatchSizeSearch(expected, 64, seed=3)
    chosen = run_jobs(search, expected, 60)
    assert search.best == 32
    assert chosen[-20:].count(32) >= 15


def test_concurrent_runs_use_the_cheapest_known_and_do_not_confuse_the_walk():
    search = BatchSizeSearch([8, 16, 32], 16)
    assert search.next() == 16
    assert search.next() == 16
    search.report(16, 100.0, True)
    search.report(16, 101.0, True)
    assert search.next() in (8, 32)


def test_a_default_that_never_converges_leaves_the_search_usable():
    search = BatchSizeSearch([8, 16], 16, rounds=1)
    for _ in range(3):
        size = search.next()
        search.report(size, 10.0, False)
    assert search.next() == 16


def test_batch_size_misuse_is_refused():
    with pytest.raises(UsageError, match="default among"):
        BatchSizeSearch([8, 16], 32)
    search = BatchSizeSearch([8, 16], 16)
    with pytest.raises(UsageError, match="positive cost"):
        search.report(16, float("nan"), True)
    assert not search.should_stop(1e12)
