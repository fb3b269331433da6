import itertools

import numpy as np
import pytest

from kareus.errors import UsageError
from kareus.plan.policies.kareus26 import PUBLISHED_SHARE, Budget, budget_for, search

CLOCKS = list(range(900, 1411, 30))
SMS = list(range(3, 31, 3))
LAUNCH = [0, 1, 2, 3]
SPACE = list(itertools.product(CLOCKS, SMS, LAUNCH))


def partition(row):
    """A toy partition: more SMs shorten communication, slow compute; late launches expose communication."""
    clock, sms, launch = SPACE[row]
    compute = 3.0e-3 * 1410 / clock * 108 / (108 - sms)
    communication = 1.5e-3 * (0.4 + 5 / sms) + 0.25 * launch * compute
    time_s = max(compute, communication) + 1e-4 * (3 - launch)
    return time_s, compute * 250 * (clock / 1410) ** 2.4 + 0.01 * sms * 1e-1


def best_total(rows, limit_s):
    return min(e + 85 * t for t, e in map(partition, rows) if t <= limit_s)


def test_search_spends_its_budget_once_per_setting_and_is_reproducible():
    calls = []
    budget = Budget(initial=96, batch=32, rounds=4, growth=-1.0, seed=7)
    result = search(SPACE, lambda row: calls.append(row) or partition(row), static_power_w=85, budget=budget)
    assert len(calls) == len(set(calls)) == 224
    assert result.rounds == 4
    again = search(SPACE, partition, static_power_w=85, budget=budget)
    assert (again.rows == result.rows).all()


def test_surrogate_finds_better_plans_than_random_sampling_with_the_same_budget():
    fastest = min(t for t, _ in map(partition, range(len(SPACE))))
    limits = [fastest * s for s in (1.02, 1.05, 1.1, 1.2)]
    ours, random = [], []
    for seed in range(6):
        result = search(
            SPACE, partition, static_power_w=85, budget=Budget(initial=48, batch=16, rounds=3, seed=seed)
        )
        picked = np.random.default_rng(seed).permutation(len(SPACE))[: len(result.rows)]
        for limit in limits:
            optimum = best_total(range(len(SPACE)), limit)
            for regret, rows in ((ours, result.rows), (random, picked)):
                met = [r for r in rows if partition(r)[0] <= limit]
                regret.append(best_total(met, limit) / optimum - 1 if met else 1.0)
    assert np.mean(ours) < 0.5 * np.mean(random)
    assert np.mean(ours) < 0.02


def test_front_holds_exactly_what_nothing_evaluated_beats():
    result = search(SPACE, partition, static_power_w=85, budget=Budget(initial=60, rounds=0))
    points = list(zip(result.time_s, result.total_j, strict=True))
    expected = {
        i
        for i, (t, e) in enumerate(points)
        if not any((u <= t and f < e) or (u < t and f <= e) for u, f in points)
    }
    assert set(result.front.tolist()) == expected
    assert result.total_j == pytest.approx(result.dynamic_j + 85 * result.time_s)


def test_search_stops_when_the_area_no_longer_grows_or_the_space_is_used_up():
    flat = search(
        SPACE, lambda row: (1.0, 100.0), static_power_w=0, budget=Budget(initial=10, batch=5, rounds=50)
    )
    assert flat.rounds == 2
    small = search(
        SPACE[:6], partition, static_power_w=85, budget=Budget(initial=4, batch=4, rounds=9, growth=-1)
    )
    assert sorted(small.rows.tolist()) == list(range(6))


def test_budget_is_the_published_share_of_the_space():
    budget = budget_for(720)
    assert budget.initial + 4 * budget.batch == round(720 * PUBLISHED_SHARE) == 224
    assert (budget.initial, budget.batch) == (96, 32)
    assert budget_for(3).initial >= 1


def test_senseless_spaces_and_evaluations_are_refused():
    with pytest.raises(UsageError, match="at least one setting"):
        search([], partition, static_power_w=0, budget=Budget())
    with pytest.raises(UsageError, match="same features"):
        search([[1], [1, 2]], partition, static_power_w=0, budget=Budget())
    with pytest.raises(UsageError, match="positive time"):
        search(SPACE, lambda row: (0.0, 1.0), static_power_w=0, budget=Budget())
