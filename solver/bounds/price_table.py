"""What every kind of span costs at least at every clock and price of time, in whole nanojoules.

A price of time is a whole number of nanojoules a microsecond (milliwatts), on top of static power. Everything
is an integer, so what is summed from this table is a proof as it stands, without any allowance for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.plan import Goal
from solver.solution import Objective
from solver.tables import Floats, Ints, Tables

Bools = NDArray[np.bool_]
NJ = 1_000_000  # nanojoules in a millijoule
ABSENT = np.iinfo(np.int64).max
_MOST_PRICES = 1500
_LARGEST = 2**61  # of any sum, so that int64 holds it


@dataclass(frozen=True, kw_only=True, eq=False)
class PriceTable:
    """Cheapest rows of one problem.

    Attributes:
        prices: int64[prices], ascending; negative ones only under a power limit, which makes time worth having.
        cost_nj: int64[kinds, levels, prices], least of energy with static power plus price times time; ABSENT
            where a kind has no option at a level. rows: int64 of that shape, the row that attains it.
        time_us, energy_nj: int64 of that shape, of that row. least_us: int64[kinds, levels], shortest time.
    """

    prices: Ints
    cost_nj: Ints
    rows: Ints
    time_us: Ints
    energy_nj: Ints
    least_us: Ints


def price_table(tables: Tables) -> PriceTable | None:
    """Return the table, or None where its sums could leave 64 bits.

    Args:
        tables: the problem. With free switches all options share one level.
    """
    levels = 1 if tables.free_switches else tables.num_clocks
    static = tables.problem.static_power_mw
    energies = [NJ * t.energy_mj + static * t.time_us for t in tables.kinds]
    at = [np.zeros_like(t.clock) if tables.free_switches else t.clock for t in tables.kinds]
    prices = _prices(tables, energies, at, levels)
    steps = len(tables.chain)  # a switch at most after every span
    most = sum(
        t.count * (int(e.max()) + int(np.abs(prices).max()) * int(t.time_us.max()))
        for t, e in zip(tables.kinds, energies, strict=True)
    )
    most += steps * (NJ * tables.problem.switch_energy_mj + static * tables.problem.switch_time_us)
    most += steps * int(np.abs(prices).max()) * tables.problem.switch_time_us
    if most >= _LARGEST:
        return None
    shape = len(tables.kinds), levels, len(prices)
    cost, time_us, energy_nj = (np.full(shape, ABSENT, np.int64) for _ in range(3))
    rows = np.zeros(shape, np.int64)
    least = np.full(shape[:2], ABSENT, np.int64)
    for k, (table, energy, level) in enumerate(zip(tables.kinds, energies, at, strict=True)):
        for f in range(levels):
            here = np.flatnonzero(level == f)
            if not len(here):
                continue
            charged = energy[here] + prices[:, None] * table.time_us[here]
            best = charged.argmin(axis=1)
            cost[k, f] = charged[np.arange(len(prices)), best]
            rows[k, f] = here[best]
            time_us[k, f], energy_nj[k, f] = table.time_us[here[best]], energy[here[best]]
            least[k, f] = table.time_us[here].min()
    return PriceTable(
        prices=prices, cost_nj=cost, rows=rows, time_us=time_us, energy_nj=energy_nj, least_us=least
    )


def _prices(tables: Tables, energies: list[Ints], at: list[Ints], levels: int) -> Ints:
    """Prices where some kind may change its option, thinned out geometrically, and what limits ask for."""
    slopes = [np.zeros(0)]
    for table, energy, level in zip(tables.kinds, energies, at, strict=True):
        for here in [level == f for f in range(levels)] + [np.ones(len(level), np.bool_)]:
            order = np.lexsort((energy[here], table.time_us[here]))
            time_us, nj = table.time_us[here][order], energy[here][order]
            front = np.flatnonzero(np.minimum.accumulate(nj) == nj)
            dt, de = np.diff(time_us[front]), -np.diff(nj[front])
            slopes.append(de[(dt > 0) & (de > 0)] / dt[(dt > 0) & (de > 0)])
    found = np.concatenate(slopes)
    prices = {0}
    if len(found):
        low, high = max(float(found.min()), 1.0), max(float(found.max()), 1.0)
        grid = np.geomspace(low, high, _MOST_PRICES)
        prices.update(
            np.unique(found.round()).astype(np.int64).tolist() if len(found) <= _MOST_PRICES else ()
        )
        prices.update(grid.round().astype(np.int64).tolist())
        prices.add(int(high) + 1)
    cap = tables.problem.limits.average_power_mw
    if cap is not None:
        prices.update(-round(cap * share / 64) for share in range(1, 65))
    return np.array(sorted(prices), np.int64)


def floors(goal: Goal, prices: Ints, cost_nj: Ints, least_us: Ints) -> Floats:
    """Lower bounds of the goal for sets of plans, in its unit, infinite where a set cannot meet the limits.

    Every plan of a set has `energy + price * time >= cost` at every price. With time at most L that gives
    energy >= cost - price * L; with energy at most X, time >= (cost - X) / price; with average power at most
    P, energy <= P * time closes the circle.

    Args:
        goal: objective and limits. prices: int64[prices], with 0 and, under a power limit, its negative.
        cost_nj: int64[..., prices], ABSENT for an empty set. least_us: int64[...], shortest time of the set.
    """
    by_time = goal.objective is Objective.TIME
    found = np.zeros(least_us.shape)
    empty = cost_nj[..., 0] == ABSENT
    cost = np.where(empty[..., None], 0, cost_nj)
    cap = goal.power_mw
    if by_time:
        found = least_us.astype(np.float64)
        if goal.energy_mj is not None:
            most_nj = min(goal.energy_mj * NJ, _LARGEST)
            some = prices > 0
            over = cost[..., some] - most_nj
            found = np.maximum(found, (-(-over // prices[some])).max(axis=-1, initial=0))
            empty |= cost[..., prices == 0][..., 0] > most_nj
        if cap is not None:
            some = prices > -cap
            found = np.maximum(found, (-(-cost[..., some] // (cap + prices[some]))).max(axis=-1, initial=0))
    else:
        some = prices >= 0
        most_us = 0 if goal.time_us is None else goal.time_us
        if goal.time_us is None:
            some = prices == 0
        else:
            empty |= least_us > most_us
            most_us = min(most_us, _LARGEST // max(int(prices.max()), 1))
        nj = (cost[..., some] - prices[some] * most_us).max(axis=-1)
        found = np.maximum(-(-nj // NJ), 0).astype(np.float64)
        if cap is not None:
            some = (prices > -cap) & (prices < 0)
            power = cost[..., some] * (cap / (cap + prices[some])) / NJ
            found = np.maximum(found, np.ceil(power.max(axis=-1, initial=0) * (1 - 1e-12)))
    if cap is not None:
        empty |= cost[..., prices == -cap][..., 0] > 0
    own = goal.time_us if by_time else goal.energy_mj
    if own is not None:
        empty |= found > own
    return np.where(empty, np.inf, found)
