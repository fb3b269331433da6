"""A sweep over the settings of a whole step on the GPU in software: it ends by itself, and it is right."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
from kareus.collect.choose import ENOUGH, half_widths, next_setting
from kareus.collect.settings import STOCK, default_settings, kinds_of
from kareus.model.cost import CostModel
from kareus.model.profile import Profile, Sample
from kareus.model.soft_gpu import SoftGpu

PROFILE = Path(__file__).parents[2] / "traces/profiles/h200-nvlink.json"
BLOCK_S = 3.5  # head, energy window and tail of a block on an H200
BUDGET_S = 300.0


def test_a_sweep_knows_the_whole_grid_within_its_budget() -> None:
    shipped = Profile.load(PROFILE)
    truth = CostModel.from_profile(shipped)
    gpu, exact = SoftGpu(truth, noise=0.003, seed=5), SoftGpu(truth, noise=0.0)
    able = default_settings("fsdp2", {"cta_budgets": True, "copy_engine": True}, launch_points=True)
    settings = {s.label: s for s in able}
    grid = {s.label: s.numbers(kinds_of("fsdp2"), 24) for s in able}

    def measured(gpu: SoftGpu, label: str) -> float:
        setting = STOCK if label == STOCK.label else settings[label]
        return gpu.measure(
            shipped, Sample(label=label, step=setting.as_step("llama8-batch1"), time_us=1.0)
        ).time_us

    ratios: dict[str, list[float]] = {}
    stock, since, blocks = 0.0, 99, 0
    while (choice := next_setting(grid, ratios, since)).label is not None:
        blocks += 1
        time_us = measured(gpu, choice.label)
        if choice.label == STOCK.label:
            stock, since = time_us, 0
        else:
            ratios.setdefault(choice.label, []).append(time_us / stock)
            since += 1
        assert blocks * BLOCK_S < BUDGET_S, f"known to {choice.widest:.1%} only"
    assert max(half_widths(grid, ratios).values()) <= ENOUGH

    base = measured(exact, STOCK.label)
    true = {label: measured(exact, label) / base for label in grid}
    error = [abs(np.mean(values) / true[label] - 1) for label, values in ratios.items()]
    assert max(error) < 0.015
    best = min(ratios, key=lambda label: np.mean(ratios[label]))
    assert true[best] <= min(true.values()) * 1.01
