"""Which setting comes next, and when it is enough."""

import math

import pytest

pytest.importorskip("torch")
from kareus.collect.choose import half_width, is_settled, next_setting


def test_half_width_is_student_s_interval_of_the_mean() -> None:
    # values 1, 3: mean 2, deviation sqrt(2), one degree of freedom: 12.706 * sqrt(2) / sqrt(2)
    assert half_width([1.0, 3.0]) == pytest.approx(12.706)
    assert half_width([1.0]) == math.inf
    assert half_width([5.0] * 4) == 0


def test_a_stock_block_is_never_far() -> None:
    ratios: dict[str, list[float]] = {"a": [], "b": [], "c": []}
    order, since = [], 99
    for _ in range(9):
        label = next_setting(ratios, since)
        assert label is not None
        order.append(label)
        since = 0 if label == "stock" else since + 1
        if label != "stock":
            ratios[label].append(1.0 + 0.1 * len(order))
    assert order == ["stock", "a", "b", "stock", "c", "a", "stock", "b", "c"]


def test_the_widest_interval_goes_on_until_all_are_narrow() -> None:
    ratios = {"sure": [1.0, 1.0001], "unsure": [1.0, 1.2]}
    assert next_setting(ratios, 0) == "unsure"
    ratios["unsure"] = [1.1, 1.1, 1.1]
    assert next_setting(ratios, 0) is None
    assert next_setting({}, 0) is None


def test_a_drifting_block_is_not_settled() -> None:
    assert is_settled([100.0] * 10)
    assert not is_settled([100.0] * 5 + [110.0] * 5)
    assert is_settled([100.0, 300.0])  # too few steps to tell
