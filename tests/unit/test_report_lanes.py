"""Interval arithmetic and lane packing behind every drawing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_samples import piece, timeline

from kareus.report.data import SliceClass, Source
from kareus.report.lanes import breakdown, coalesce, pack, subtract, total, union
from kareus.report.numbers import change, ms, nice_step, percent, signed_percent

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def covered(intervals: list[tuple[int, int]]) -> set[int]:
    return {t for start, end in intervals for t in range(start, end)}


@settings(deadline=None)
@given(PAIRS, PAIRS)
def test_union_and_difference_equal_sets_of_ticks(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    a, b = union(first), union(second)
    assert covered(a) == covered(first)
    assert total(a) == len(covered(first))
    left = subtract(a, b)
    assert covered(left) == covered(first) - covered(second)
    assert total(left) == len(covered(left))


@settings(deadline=None)
@given(PAIRS)
def test_lanes_never_overlap_and_keep_every_slice(pairs: list[tuple[int, int]]) -> None:
    slices = [piece(s, s + max(0, e - s), SliceClass.GEMM) for s, e in pairs]
    lanes = pack(slices)
    assert sorted(map(repr, (p for lane in lanes for p in lane))) == sorted(map(repr, slices))
    for lane in lanes:
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(lane))
    at_once = [sum(p is q or p.start_ns <= q.start_ns < p.end_ns for p in slices) for q in slices]
    assert len(lanes) <= max(at_once, default=0)


def test_breakdown_parts_add_up_to_the_step() -> None:
    parts = breakdown(timeline(Source.MEASURED))
    assert parts.span_us == 10_000
    assert parts.overlapped_us == 500


def test_coalescing_joins_one_class_but_never_across_another() -> None:
    slices = [
        piece(0, 1, SliceClass.GEMM), piece(1, 2, SliceClass.GEMM),
        piece(2, 3, SliceClass.MEMORY), piece(3, 4, SliceClass.GEMM),
    ]  # fmt: skip
    runs = coalesce(slices, grain_ns=10_000)
    assert runs == {SliceClass.GEMM: [(0, 2000), (3000, 4000)], SliceClass.MEMORY: [(2000, 3000)]}


@pytest.mark.parametrize(
    ("span", "most", "step"),
    [(127.2, 8, 20), (8, 8, 1), (9, 8, 2), (0.04, 5, 0.01), (5000, 5, 1000), (3, 8, 0.5)],
)
def test_axis_steps_are_one_two_five(span: float, most: int, step: float) -> None:
    assert nice_step(span, most) == pytest.approx(step)


def test_an_axis_needs_a_span() -> None:
    with pytest.raises(ValueError, match="positive span, found 0"):
        nice_step(0, 5)


def test_figures_carry_true_signs() -> None:
    assert ms(127_204) == "127.20\u00a0ms"
    assert percent(0.0331) == "3.3\u00a0%"
    assert signed_percent(-0.0331) == "\u22123.3\u00a0%"
    assert signed_percent(0.0331) == "+3.3\u00a0%"
    assert signed_percent(-0.00001) == signed_percent(0.00001) == "0.0\u00a0%"
    assert change(0, 5) == 0
