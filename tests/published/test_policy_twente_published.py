"""Kernel-level clocks on the 46 kernels published by Twente (Table 1 with Figure 5's absolute figures)."""

import csv
import itertools
import os
from pathlib import Path

import pytest

from kareus.plan.policies.twente import Kernel, KernelOption, select_global, select_local, total
from kareus.plan.policies.twente_switch import Switching, select_switching

SHARED = Path(os.environ.get("KAREUS_SHARED", Path(__file__).parents[3] / "shared"))
DATA = SHARED / "data/published/zeus/twente"
pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"published kernel table not at {DATA}; set KAREUS_SHARED"
)


def clock(text):
    return None if text == "auto" else int(text)


def published():
    """Kernels with two options each, stock and the published choice, and the launches of a step in order."""
    with open(DATA / "twente_table1_fig5.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    kernels = []
    for r in rows:
        time_s, energy_j = float(r["auto_time_ms_fig5"]) * 1e-3, float(r["auto_energy_j_fig5"])
        stock = KernelOption(mem_clock_mhz=None, sm_clock_mhz=None, time_s=time_s, energy_j=energy_j)
        chosen = KernelOption(
            mem_clock_mhz=clock(r["mem_mhz"]),
            sm_clock_mhz=clock(r["core_mhz"]),
            time_s=time_s * (1 + float(r["time_change_pct"]) / 100),
            energy_j=energy_j * (1 + float(r["energy_change_pct"]) / 100),
        )
        options = (stock,) if chosen.clocks == stock.clocks else (stock, chosen)
        kernels.append(Kernel(name=r["kernel"], repeat=int(r["repeat"]), options=options))
    launches = []
    for _, group in itertools.groupby(range(len(rows)), key=lambda i: rows[i]["section"]):
        block = list(group)
        launches += block * kernels[block[0]].repeat
    return kernels, launches


def test_total_of_the_46_kernels_to_two_decimals():
    kernels, launches = published()
    assert len(kernels) == 46
    plan = total(kernels, [len(k.options) - 1 for k in kernels])
    assert f"{plan.time_change_percent:+.2f} {plan.energy_change_percent:+.2f}" == "+0.00 -15.64"
    assert len(launches) == sum(k.repeat for k in kernels) == 897


def test_selectors_on_the_published_options():
    kernels, _ = published()
    best = select_global(kernels)
    assert best.time_change_percent <= 1e-6
    assert best.energy_change_percent == pytest.approx(-15.64, abs=0.01)
    assert best.energy_j - best.bound_j <= 1e-4 * best.energy_j
    local = select_local(kernels)
    assert local.time_change_percent <= 0
    assert best.energy_j < local.energy_j


@pytest.mark.parametrize("start", [0, 9, 17, 30])
def test_selectors_agree_with_brute_force_on_sub_grids(start):
    kernels, _ = published()
    part = kernels[start : start + 12]
    every = [total(part, c) for c in itertools.product(*(range(len(k.options)) for k in part))]
    limit = every[0].stock_time_s * (1 + 1e-9)
    assert select_global(part).energy_j == pytest.approx(min(p.energy_j for p in every if p.time_s <= limit))


@pytest.mark.parametrize("switch_ms", [0.0, 0.1, 0.5, 1.0, 6.0, 20.0, 150.0])
def test_with_a_switching_time_the_plan_is_never_worse_than_not_switching(switch_ms):
    kernels, launches = published()
    plan = select_switching(kernels, launches, Switching(time_s=switch_ms * 1e-3, power_w=339.0))
    assert plan.time_s <= plan.stock_time_s * (1 + 1e-9)
    assert plan.energy_j <= plan.stock_energy_j
    assert plan.energy_j - plan.bound_j <= 2e-3 * plan.energy_j
    if switch_ms == 0:
        assert plan.energy_j == pytest.approx((1 - 0.1564) * plan.stock_energy_j, rel=2e-3)
    if switch_ms >= 6:  # launches are 6 ms apart on average: nothing is left to gain without slowing down
        assert plan.switches == 0
