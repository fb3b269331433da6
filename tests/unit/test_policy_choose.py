import itertools

import pytest

from kareus.errors import InfeasibleError, UsageError
from kareus.plan.policies import choose
from kareus.plan.policies.choose import Point

A = Point(label="a", time_s=10.0, energy_j=1000.0)
B = Point(label="b", time_s=10.4, energy_j=900.0)
C = Point(label="c", time_s=12.0, energy_j=800.0)
D = Point(label="d", time_s=13.0, energy_j=850.0)
POINTS = [C, A, D, B]


def test_each_rule_picks_what_it_says():
    assert choose.pareto(POINTS) == (A, B, C)
    assert choose.within_slowdown(POINTS, 0) == A
    assert choose.within_slowdown(POINTS, 4) == B
    assert choose.within_slowdown(POINTS, 0, reference_time_s=12.5) == C
    assert choose.deadline(POINTS, 11.0) == B
    assert choose.energy_budget(POINTS, 905.0) == B
    assert choose.power_cap(POINTS, 90.0) == B
    assert choose.energy_delay(POINTS) == B  # 10000, 9360, 9600, 11050
    assert choose.energy_delay(POINTS, 0.0) == C
    assert choose.energy_delay(POINTS, 5.0) == A


def test_carbon_and_money_weigh_time_by_its_price():
    assert choose.carbon(POINTS, 400.0) == C
    assert choose.carbon(POINTS, 400.0, grams_per_hour=1000.0) == A
    assert choose.money(POINTS, 0.3, 0.0) == C
    # B saves 0.1 kJ = 8.3e-6 of 0.3 a kWh and takes 0.4 s = 1.1e-4 h: the break-even is 0.075 an hour.
    assert choose.money([A, B], 0.3, 0.07) == B
    assert choose.money([A, B], 0.3, 0.08) == A


def test_limits_nobody_meets_name_the_least_possible():
    with pytest.raises(InfeasibleError, match="fastest takes 10 s"):
        choose.deadline(POINTS, 9.0)
    with pytest.raises(InfeasibleError, match="least possible is 800 J"):
        choose.energy_budget(POINTS, 799.0)
    with pytest.raises(InfeasibleError, match="W on average"):
        choose.power_cap(POINTS, 10.0)


def test_nothing_to_choose_from_and_senseless_figures_are_refused():
    with pytest.raises(UsageError, match="at least one point"):
        choose.energy_delay([])
    with pytest.raises(UsageError, match="'x': expected a positive"):
        choose.deadline([Point(label="x", time_s=-1.0, energy_j=1.0)], -2)
    with pytest.raises(UsageError, match="prices of at least 0"):
        choose.money(POINTS, -1.0, 0.0)


def test_cluster_cap_agrees_with_trying_everything():
    jobs = [POINTS, [Point(label=f"x{i}", time_s=5.0 + i, energy_j=600.0 - 40 * i) for i in range(4)], [A, C]]
    gpus = [2, 1, 4]
    cap = 620.0
    chosen = choose.cluster_power_cap(jobs, cap, gpus=gpus, resolution=20_000)
    assert sum(g * p.power_w for g, p in zip(gpus, chosen, strict=True)) <= cap

    def slowdown(pick):
        return sum(
            g * (p.time_s / min(q.time_s for q in job) - 1)
            for g, p, job in zip(gpus, pick, jobs, strict=True)
        )

    allowed = [
        pick
        for pick in itertools.product(*jobs)
        if sum(g * p.power_w for g, p in zip(gpus, pick, strict=True)) <= cap
    ]
    assert slowdown(chosen) == pytest.approx(min(map(slowdown, allowed)))
    with pytest.raises(InfeasibleError, match="least the jobs can draw"):
        choose.cluster_power_cap(jobs, 100.0, gpus=gpus)
    with pytest.raises(UsageError, match="GPU count"):
        choose.cluster_power_cap(jobs, 100.0, gpus=[1])
