"""Communicators as lanes: collectives of one lane run one after another, in issue order."""

from __future__ import annotations

import numpy as np

from kareus.model import rates
from kareus.model.span_work import SpanConfigs, SpanWork
from kareus.trace.types import F64, I64


def number_lanes(work: SpanWork, configs: SpanConfigs) -> I64:
    """Number the communicators: stock budgets share their group's, every other budget has its own, int[n, k]."""
    numbers: dict[tuple[int, int, int], int] = {}
    lane = np.zeros(configs.num_ctas.shape, np.int64)
    for j in range(len(work.kind)):
        group, kind, stock = int(work.group[j]), int(work.kind[j]), int(work.stock_ctas[j])
        for ctas in np.unique(configs.num_ctas[:, j]):
            shared = ctas == stock and ctas != rates.COPY_ENGINE
            key = (group, -1, -1) if shared else (group, kind, int(ctas))
            lane[configs.num_ctas[:, j] == ctas, j] = numbers.setdefault(key, len(numbers))
    return lane


def latest_starts(lane: I64, required: F64) -> F64:
    """Last position at which each collective can start without its communicator deadlocking, float[n, k].

    A launch after the wait for its own result, or for that of a later collective behind it on the same
    communicator, cannot happen.
    """
    n, k = lane.shape
    latest = np.empty((n, k))
    bound = np.full((n, int(lane.max(initial=0)) + 1), np.inf)
    rows = np.arange(n)
    for j in reversed(range(k)):
        bound[rows, lane[:, j]] = np.minimum(bound[rows, lane[:, j]], required[:, j])
        latest[:, j] = bound[rows, lane[:, j]]
    return latest


def previous(lane: I64) -> I64:
    """Index of the collective before each one on its communicator, -1 for the first, int[n, k]."""
    n, k = lane.shape
    before = np.full((n, k), -1, np.int64)
    last = np.full((n, int(lane.max(initial=0)) + 1), -1, np.int64)
    rows = np.arange(n)
    for j in range(k):
        before[:, j] = last[rows, lane[:, j]]
        last[rows, lane[:, j]] = j
    return before
