from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kareus.trace.intervals import intersection_ns, length, overlap_ns, union

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


def columns(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([s for s, _ in spans], np.int64)
    return start, start + np.array([d for _, d in spans], np.int64)


def covered(spans: list[tuple[int, int]]) -> set[int]:
    return {t for start, duration in spans for t in range(start, start + duration)}


@given(SPANS, SPANS)
def test_interval_algebra_agrees_with_counting(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    one, two = union(*columns(first)), union(*columns(second))
    assert length(one) == len(covered(first))
    assert (np.diff(one.ravel()) > 0).all()
    assert intersection_ns(one, two) == len(covered(first) & covered(second))
    each = overlap_ns(*columns(first), *columns(second))
    assert list(each) == [len(covered([span]) & covered(second)) for span in first]
