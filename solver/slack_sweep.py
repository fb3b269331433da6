"""Plans at the corners of the frontier, and plans that run one corner's options first and the next one's after.

At a vertex of the relaxed frontier most operations have a real option, so rounding costs little there; between
two of them it costs much, because all equal operations share one fraction. A plan that crosses over from one
vertex's options to the other's at some moment of the step has real options throughout: every path crosses
once, so its length errs by one operation's step at most, however long it is.

Some vertices are themselves fractional throughout. So the ends are chosen by what the rounded plans come to:
the convex hull of their times and energies.
"""

from __future__ import annotations

import itertools

import numpy as np

from solver.slack_exchange import exchange_steps
from solver.slack_round import Choices, Floats, Ints, convex_hull
from solver.slack_search import SearchSpace

_CORNER_ROUNDS = 6
_SWEEP_ROUNDS, _FEW_SWEEP_ROUNDS = 4, 2  # few above so many operations, where a round takes seconds:
_LARGE = 1000


def corner_plans(space: SearchSpace, duration_us: Floats, start_us: Floats) -> Choices:
    """Return int16[n, q]: relaxed plans [n, q] rounded down, the time over exchanged between neighbours."""
    choices = np.empty(duration_us.shape, np.int16)
    for v, kind in enumerate(space.table_of):
        choices[v] = np.searchsorted(space.times[kind], duration_us[v] + 1e-3, side="right") - 1
    end_us: Floats = (start_us + duration_us).max(axis=0)
    return exchange_steps(space, choices, end_us, rounds=_CORNER_ROUNDS, start_us=start_us, jointly=False)


def swept_plans(space: SearchSpace, corners: Choices, points: int) -> Choices:
    """Return int16[n, q]: plans between the corners that pay, about `points` of them.

    Args:
        space: what is planned. corners: int16[n, c], rounded plans in any order. points: deadlines wanted.
    """
    makespan, energy = space.makespan(corners), space.energy(corners)
    kept = _hull(makespan, energy)
    corners, makespan, energy = corners[:, kept], makespan[kept], energy[kept]
    start = space.graph.starts(space.durations(corners))
    spread, drop = np.diff(makespan), -np.diff(energy)
    share = spread / max(spread.sum(), 1e-9) + drop / max(drop.sum(), 1e-9)
    plans = [corners]
    for i, (fast, slow) in enumerate(itertools.pairwise(corners.T)):
        count = round(points / 4 * share[i]) + 1
        moment = start[:, i] / max(makespan[i], 1.0) + start[:, i + 1] / max(makespan[i + 1], 1.0)
        cuts = np.unique(moment)
        cuts = cuts[np.unique(np.linspace(0, len(cuts) - 1, count).round().astype(int))]
        early = moment[:, None] < cuts[None, :]
        plans += [
            np.where(early, slow[:, None], fast[:, None]),
            np.where(early, fast[:, None], slow[:, None]),
        ]
    choices = np.concatenate(plans, axis=1)
    rounds = _SWEEP_ROUNDS if space.graph.size <= _LARGE else _FEW_SWEEP_ROUNDS
    return exchange_steps(space, choices, space.makespan(choices), rounds=rounds)


def _hull(makespan: Floats, energy: Floats) -> Ints:
    """Plans on the lower convex hull, fastest first."""
    order = np.lexsort((energy, makespan))
    best = np.append(np.inf, np.minimum.accumulate(energy[order])[:-1])
    order = order[energy[order] < best]
    return order[convex_hull(makespan[order], energy[order])]
