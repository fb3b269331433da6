"""Best prices of a few side limits: the Lagrangian bound of many small choice problems at once.

A case chooses one row for every span of a kind, at a cost, under at most three limits that are sums too:

    minimise sum cost   subject to   sum amount[r] <= limit[r]   for every side limit r

Charging the limits at prices p >= 0 leaves kinds that choose on their own, and whatever the prices,
`sum count * min(cost + p . amount) - p . limit` is a bound. The best prices maximise it; it is concave in
them, and with three of them the ellipsoid method finds the maximum in a few hundred cheap steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.tables import Floats, Ints

SIDES = 3  # time or energy, power, governor; cases with fewer are padded with limits that never bind
_WIDEST = 1024.0  # largest price looked at, in exchanged ranges (cost range over amount range)
_STEPS = 600
_CLOSE = 1e-7  # of the cost's range: what more steps could still gain


@dataclass(frozen=True, kw_only=True, eq=False)
class Cases:
    """Choice problems of one shape, padded to the same number of rows.

    Attributes:
        counts: float64[kinds], spans of each kind. cost: float64[cases, kinds, rows], infinite where a row
            is missing. amount: float64[cases, kinds, rows, SIDES]. limit: float64[cases, SIDES].
    """

    counts: Floats
    cost: Floats
    amount: Floats
    limit: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Priced:
    """What the best prices found prove.

    Attributes:
        bound: float64[cases], infinite where no choice meets the limits. prices: float64[cases, SIDES].
        rows: int64[cases, kinds], the cheapest uniform choice that met the limits on the way (-1: none).
    """

    bound: Floats
    prices: Floats
    rows: Ints


def best_prices(cases: Cases) -> Priced:
    """Maximise the bound of every case over its prices.

    Args:
        cases: at least one; every kind has at least one finite row in every case.
    """
    scaled, cost_range, amount_range = _scaled(cases)
    num = len(cases.cost)
    every = np.arange(num)
    centre = np.full((num, SIDES), 1.0)
    matrix = np.tile(np.eye(SIDES) * (_WIDEST * 2.0) ** 2, (num, 1, 1))
    bound = np.full(num, -np.inf)
    prices = np.zeros((num, SIDES))
    rows = np.full((num, cases.cost.shape[1]), -1, np.int64)
    least = np.full(num, np.inf)
    most = np.einsum("k,nk->n", cases.counts, _largest(scaled.cost))
    for _ in range(_STEPS):
        value, slope, picked, cost = _evaluate(scaled, np.maximum(centre, 0.0))
        better = value > bound
        bound, prices = np.where(better, value, bound), np.where(better[:, None], centre, prices)
        meets = (slope <= 1e-12 * (1.0 + np.abs(scaled.limit))).all(axis=1) & (cost < least)
        rows[meets], least[meets] = picked[meets], cost[meets]
        below = centre < 0
        out = below.any(axis=1)
        slope[out] = 0.0
        slope[every[out], below[out].argmax(axis=1)] = 1.0
        reach = np.sqrt(np.maximum(np.einsum("ni,nij,nj->n", slope, matrix, slope), 0.0))
        settled = (reach <= _CLOSE) & ~out | (bound > most)
        if settled.all():
            break
        step = (
            np.einsum("nij,nj->ni", matrix, slope)
            / np.where(settled, 1.0, np.maximum(reach, 1e-300))[:, None]
        )
        moves = ~settled[:, None]
        centre = np.where(moves, centre + step / (SIDES + 1), centre)
        shrunk = matrix - (2.0 / (SIDES + 1)) * step[:, :, None] * step[:, None, :]
        matrix = np.where(moves[:, :, None], SIDES**2 / (SIDES**2 - 1.0) * shrunk, matrix)
    beyond = bound > most + 1e-9 * np.abs(most)
    return Priced(
        bound=np.where(beyond, np.inf, bound * cost_range),
        prices=np.maximum(prices, 0.0) * (cost_range[:, None] / amount_range),
        rows=rows,
    )


def _scaled(cases: Cases) -> tuple[Cases, Floats, Floats]:
    """The cases with costs and amounts in units of their ranges, and those ranges."""
    there = np.isfinite(cases.cost)
    least = np.where(there, cases.cost, np.inf).min(axis=2)
    cost_range = np.einsum("k,nk->n", cases.counts, _largest(cases.cost) - least)
    cost_range = np.where(cost_range > 0, cost_range, np.maximum(np.abs(least).sum(axis=1), 1.0))
    high = np.where(there[..., None], cases.amount, -np.inf).max(axis=2)
    low = np.where(there[..., None], cases.amount, np.inf).min(axis=2)
    amount_range = np.einsum("k,nkr->nr", cases.counts, high - low)
    amount_range = np.where(amount_range > 0, amount_range, 1.0)
    scaled = Cases(
        counts=cases.counts,
        cost=cases.cost / cost_range[:, None, None],
        amount=cases.amount / amount_range[:, None, None, :],
        limit=cases.limit / amount_range,
    )
    return scaled, cost_range, amount_range


def _largest(cost: Floats) -> Floats:
    largest: Floats = np.where(np.isfinite(cost), cost, -np.inf).max(axis=2)
    return largest


def _evaluate(cases: Cases, prices: Floats) -> tuple[Floats, Floats, Ints, Floats]:
    """(bound, its slope in the prices, rows that attain it, their cost) of every case."""
    charged = cases.cost + np.einsum("nkmr,nr->nkm", cases.amount, prices)
    picked: Ints = charged.argmin(axis=2)
    at = picked[:, :, None]
    value = np.take_along_axis(charged, at, axis=2)[:, :, 0] @ cases.counts
    cost = np.take_along_axis(cases.cost, at, axis=2)[:, :, 0] @ cases.counts
    used = np.take_along_axis(cases.amount, at[..., None], axis=2)[:, :, 0, :]
    slope = np.einsum("nkr,k->nr", used, cases.counts) - cases.limit
    return value - (prices * cases.limit).sum(axis=1), slope, picked, cost


def reduced_costs(cases: Cases, case: int, prices: Floats) -> NDArray[np.float64]:
    """float64[kinds, rows]: what each row costs above its kind's cheapest at the given prices."""
    charged = cases.cost[case] + cases.amount[case] @ prices
    above: Floats = charged - charged.min(axis=1, keepdims=True)
    return above
