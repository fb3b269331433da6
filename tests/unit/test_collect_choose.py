"""Which setting comes next, and when it is enough."""

import math

import numpy as np
import pytest

pytest.importorskip("torch")
from kareus.collect.choose import ENOUGH, FIRST, half_widths, is_settled, next_setting

BUDGETS = (2, 3, 4, 6, 8, 12, 16, 24)
GRID = {f"{ag} {rs}": (math.log2(ag), math.log2(rs)) for ag in BUDGETS for rs in BUDGETS}
CORNERS = ("2 2", "2 24", "24 2", "24 24", "6 6", "12 12")
GRID = {label: GRID[label] for label in (*CORNERS, *GRID)}


def step_time(label: str) -> float:
    """Ratio to stock: flat beyond 8 thread blocks, growing below."""
    return 1 + sum(0.3 * max(3 - x, 0) ** 2 / 4 for x in GRID[label])


def sweep(noise: float, most: int, ratios: dict[str, list[float]] | None = None) -> tuple[list[str], dict]:
    """Play a sweep; the blocks measured in order, and what they gave."""
    rng = np.random.default_rng(0)
    ratios = {} if ratios is None else ratios
    order: list[str] = []
    since = 99
    while len(order) < most:
        choice = next_setting(GRID, ratios, since)
        if choice.label is None:
            assert choice.widest <= ENOUGH
            break
        order.append(choice.label)
        since = 0 if choice.label == "stock" else since + 1
        if choice.label != "stock":
            value = step_time(choice.label) * (1 + noise * rng.standard_normal())
            ratios.setdefault(choice.label, []).append(value)
    return order, ratios


def test_a_stock_block_is_never_far() -> None:
    order, _ = sweep(0.003, 30)
    assert order[0] == "stock"
    assert all("stock" in order[i : i + 3] for i in range(len(order) - 2))


def test_the_first_settings_are_measured_twice_before_anything_else() -> None:
    order, _ = sweep(0.003, 30)
    measured = [label for label in order if label != "stock"]
    assert measured[: 2 * FIRST] == [*CORNERS, *CORNERS]
    assert measured[2 * FIRST] not in CORNERS  # where nothing was measured it is known worst


def test_it_stops_once_the_whole_grid_is_known_and_is_right_about_it() -> None:
    order, ratios = sweep(0.002, 150)
    assert len(order) < 150
    assert len(ratios) < len(GRID)  # settings nobody measured are known too
    assert max(half_widths(GRID, ratios).values()) <= ENOUGH
    assert next_setting(GRID, ratios, 0).label is None


def test_noise_makes_it_go_on_and_what_was_measured_before_counts() -> None:
    quiet, ratios = sweep(0.002, 150)
    noisy, _ = sweep(0.05, 150)
    assert len(noisy) > len(quiet)
    again, _ = sweep(0.002, 150, ratios)  # resumed: nothing is left to do
    assert again == []


def test_nothing_to_try_is_the_end() -> None:
    assert next_setting({}, {}, 0).label is None


def test_a_drifting_block_is_not_settled() -> None:
    assert is_settled([100.0] * 10)
    assert not is_settled([100.0] * 5 + [110.0] * 5)
    assert is_settled([100.0, 300.0])  # too few steps to tell
