import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.errors import UsageError
from kareus.plan.policies.twente import (
    Kernel,
    KernelOption,
    remeasure,
    select_edp,
    select_global,
    select_local,
    total,
)
from kareus.plan.policies.twente_switch import Switching, select_switching, simulate

CLOCKS = [(None, None), (5001, None), (9501, 1050), (None, 630)]


def option(clocks, time_s, energy_j):
    return KernelOption(mem_clock_mhz=clocks[0], sm_clock_mhz=clocks[1], time_s=time_s, energy_j=energy_j)


ONE = Kernel(name="x", repeat=1, options=(option(CLOCKS[0], 1, 1),))
figure = st.integers(1, 50)


@st.composite
def kernel_lists(draw, most=4, repeats=(1, 2, 5)):
    kernels = []
    for name in range(draw(st.integers(1, most))):
        clocks = CLOCKS[: draw(st.integers(1, len(CLOCKS)))]
        kernels.append(
            Kernel(
                name=str(name),
                repeat=draw(st.sampled_from(repeats)),
                options=tuple(option(c, draw(figure) / 10, draw(figure) / 1) for c in clocks),
            )
        )
    return kernels


def every_choice(kernels):
    return itertools.product(*(range(len(k.options)) for k in kernels))


@settings(max_examples=100, deadline=None)
@given(kernel_lists(), st.sampled_from([0.0, 0.01, 0.1, 0.5]))
def test_global_selector_agrees_with_brute_force(kernels, tolerance):
    plan = select_global(kernels, tolerance)
    limit = (1 + tolerance) * plan.stock_time_s * (1 + 1e-9)
    best = min(p.energy_j for p in (total(kernels, c) for c in every_choice(kernels)) if p.time_s <= limit)
    assert plan.time_s <= limit
    assert plan.energy_j == pytest.approx(best, rel=1e-9)
    assert plan.bound_j <= best * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(kernel_lists(), st.sampled_from([0.0, 0.01, 0.1, 0.5]))
def test_local_selector_agrees_with_brute_force_and_never_beats_global(kernels, tolerance):
    plan = select_local(kernels, tolerance)
    allowed = [
        total(kernels, c)
        for c in every_choice(kernels)
        if all(
            k.options[i].time_s <= (1 + tolerance) * k.options[k.stock].time_s * (1 + 1e-9)
            for k, i in zip(kernels, c, strict=True)
        )
    ]
    assert plan.energy_j == pytest.approx(min(p.energy_j for p in allowed))
    assert select_global(kernels, tolerance).energy_j <= plan.energy_j * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(kernel_lists())
def test_edp_selectors_agree_with_brute_force(kernels):
    products = [(p.time_s * p.energy_j, p) for p in (total(kernels, c) for c in every_choice(kernels))]
    plan = select_edp(kernels, local=False)
    assert plan.time_s * plan.energy_j == pytest.approx(min(p for p, _ in products))
    each = select_edp(kernels, local=True)
    for kernel, choice in zip(kernels, each.choices, strict=True):
        own = [o.time_s * o.energy_j for o in kernel.options]
        assert own[choice] == min(own)


def test_more_tolerance_never_needs_more_energy_and_a_speed_up_can_be_asked_for():
    kernels = [
        Kernel(name="gemm", repeat=24, options=(option(CLOCKS[0], 14.0, 4.9), option(CLOCKS[1], 13.7, 4.2))),
        Kernel(name="norm", repeat=24, options=(option(CLOCKS[0], 0.4, 0.14), option(CLOCKS[3], 0.44, 0.09))),
    ]
    energies = [select_global(kernels, t).energy_j for t in (-0.02, 0.0, 0.01, 0.1)]
    assert energies == sorted(energies, reverse=True)
    with pytest.raises(UsageError, match="least tolerance possible"):
        select_global(kernels, -0.05)
    assert select_local(kernels, -0.02).choices == (1, 0)


def brute_switching(kernels, launches, switching, limit):
    results = []
    for choices in itertools.product(*(range(len(kernels[k].options)) for k in launches)):
        time_s, energy, _ = simulate(kernels, launches, choices, switching)
        if time_s <= limit:
            results.append(energy)
    return min(results)


@settings(max_examples=60, deadline=None)
@given(
    kernel_lists(most=3, repeats=(1,)),
    st.data(),
    st.sampled_from([0.0, 0.2, 1.0, 10.0]),
    st.sampled_from([0.0, 0.1, 1.0]),
)
def test_switching_plans_hold_their_limit_bound_and_promise(kernels, data, switch_s, tolerance):
    launches = data.draw(st.lists(st.integers(0, len(kernels) - 1), min_size=1, max_size=5))
    switching = Switching(time_s=switch_s, power_w=3.0)
    plan = select_switching(kernels, launches, switching, tolerance=tolerance)
    limit = plan.stock_time_s * (1 + tolerance) * (1 + 1e-9)
    best = brute_switching(kernels, launches, switching, limit)
    assert simulate(kernels, launches, plan.choices, switching) == (plan.time_s, plan.energy_j, plan.switches)
    assert plan.time_s <= limit
    assert plan.bound_j <= best * (1 + 1e-9) <= plan.energy_j * (1 + 2e-9)
    assert plan.energy_j <= plan.stock_energy_j


def test_an_unlimited_switching_plan_is_the_shortest_path():
    rng = np.random.default_rng(5)
    kernels = [
        Kernel(name=str(k), repeat=1, options=tuple(option(c, *rng.uniform(1, 5, 2)) for c in CLOCKS))
        for k in range(3)
    ]
    launches = [0, 1, 1, 2, 0]
    switching = Switching(time_s=0.3, power_w=2.0)
    plan = select_switching(kernels, launches, switching, tolerance=100.0)
    assert plan.energy_j == pytest.approx(brute_switching(kernels, launches, switching, np.inf))


def test_dearer_switching_never_saves_more_and_ends_at_stock():
    kernels = [
        Kernel(name="a", repeat=1, options=(option(CLOCKS[0], 5.0, 50.0), option(CLOCKS[1], 4.8, 40.0))),
        Kernel(name="b", repeat=1, options=(option(CLOCKS[0], 5.0, 50.0), option(CLOCKS[2], 5.0, 45.0))),
    ]
    energies = [
        select_switching(kernels, [0, 1] * 10, Switching(time_s=s, power_w=10.0)).energy_j
        for s in (0.0, 0.05, 0.1, 0.3, 10.0)
    ]
    assert energies == sorted(energies)
    assert energies[0] < energies[-1] == 1000.0


def noisy_search(seed, noise):
    """A grid without any real saving, its noise, and a fresh measurement of it."""
    rng = np.random.default_rng(seed)
    true = [option((5001, 210 * i), 1.0, 100.0) for i in range(60)]
    kernels = [
        Kernel(
            name=str(k),
            repeat=1,
            options=tuple(
                replace(o, energy_j=o.energy_j * (1 + noise * rng.standard_normal())) for o in true
            ),
        )
        for k in range(20)
    ]

    def measure(kernel, chosen):
        return [(1.0, 100.0 * (1 + noise * rng.standard_normal())) for _ in range(10)]

    return kernels, measure


def test_remeasuring_takes_back_what_was_only_noise():
    kernels, measure = noisy_search(1, 0.02)
    promised = select_global(kernels)
    assert promised.energy_change_percent < -3  # the least of 60 noisy figures
    confirmed, fresh = remeasure(kernels, promised, measure)
    assert confirmed.energy_change_percent > -0.5
    assert sum(len(k.options) > 1 for k in fresh) <= 4


def test_remeasuring_keeps_what_is_real():
    rng = np.random.default_rng(2)
    kernels = [
        Kernel(name="a", repeat=3, options=(option(CLOCKS[0], 1.0, 100.0), option(CLOCKS[1], 1.0, 80.0))),
    ]
    confirmed, _ = remeasure(
        kernels,
        select_global(kernels),
        lambda kernel, o: [(o.time_s, o.energy_j * (1 + 0.02 * rng.standard_normal())) for _ in range(5)],
        tolerance=1e-6,
    )
    assert confirmed.energy_change_percent == pytest.approx(-20, abs=3)
    with pytest.raises(UsageError, match="two fresh samples"):
        remeasure(kernels, select_global(kernels), lambda kernel, o: [(1.0, 1.0)])


@pytest.mark.parametrize("make", [
    lambda: select_global([]),
    lambda: select_local([Kernel(name="x", repeat=0, options=(option(CLOCKS[0], 1, 1),))]),
    lambda: select_local([Kernel(name="x", repeat=1, options=(option(CLOCKS[0], 1, 1),), stock=1)]),
    lambda: select_local([Kernel(name="x", repeat=1, options=(option(CLOCKS[0], 0, 1),))]),
    lambda: Switching(time_s=-1, power_w=0),
    lambda: select_switching([ONE], [1], Switching(time_s=0, power_w=0)),
])  # fmt: skip
def test_senseless_inputs_are_refused(make):
    with pytest.raises(UsageError, match="expected"):
        make()
