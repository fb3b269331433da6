"""Kareus '26: a budgeted search over clock, SMs and launch point for time and energy at once.

A share of the space is sampled at random; then batches are picked by a surrogate: most of a batch where the
dominated area would grow most in (time, total energy), some where it would grow in (time, dynamic energy),
some where time is least and some where the surrogate knows least. The search ends when the dominated area
has stopped growing or the budget is spent (OSDI'26). The surrogate here is a Gaussian process instead of
boosted trees, and draws are seeded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.errors import UsageError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SHARES = (0.4, 0.2, 0.2, 0.2)  # total-energy area, dynamic-energy area, least time, least known
PUBLISHED_SHARE = 224 / 720  # evaluations of a tensor-parallel partition: 96 + 4 x 32 of 720 settings
_REFERENCE = 1.1  # of the worst seen: corner of the dominated area
_NOISE = 1e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How much may be evaluated.

    Attributes:
        initial: random settings. batch: settings per round. rounds: at most.
        patience: rounds of mean growth below `growth` after which the search ends. seed: of the draws.
    """

    initial: int = 96
    batch: int = 32
    rounds: int = 4
    patience: int = 2
    growth: float = 1e-3
    seed: int = 0

    @property
    def most(self) -> int:
        """Settings that may be evaluated in all."""
        return self.initial + self.rounds * self.batch


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SearchResult:
    """What was evaluated.

    Attributes:
        rows: int64[n] settings in the order evaluated. time_s, dynamic_j, total_j: float64[n].
        front: int64[k] positions in `rows` that nothing evaluated beats in time and total energy.
        rounds: run after the initial sample.
    """

    rows: Ints
    time_s: Floats
    dynamic_j: Floats
    total_j: Floats
    front: Ints
    rounds: int


def budget_for(space: int, seed: int = 0) -> Budget:
    """Return a budget of the published share of a space: three parts random, four batches of one part."""
    total = max(math.ceil(space * PUBLISHED_SHARE), min(space, 8))
    batch = max(total // 7, 1)
    return Budget(initial=max(total - 4 * batch, 1), batch=batch, seed=seed)


def search(
    settings: Sequence[Sequence[float]],
    evaluate: Callable[[int], tuple[float, float]],
    *,
    static_power_w: float,
    budget: Budget,
) -> SearchResult:
    """Search a finite space.

    Args:
        settings: features of each setting (clock, SMs, launch point, ...), all of one length.
        evaluate: row -> (seconds, dynamic joules); measured or simulated.
        static_power_w: total energy is dynamic energy plus this power over the time.
        budget: how much may be evaluated.

    Raises:
        UsageError: an empty or ragged space, or an evaluation that is not positive.
    """
    if not settings or len({len(s) for s in settings}) != 1:
        raise UsageError(f"expected at least one setting, all with the same features, found {len(settings)}")
    features = _scaled(np.array(settings, np.float64))
    generator = np.random.default_rng(budget.seed)
    rows: list[int] = []
    results: list[tuple[float, float]] = []

    def run(batch: Sequence[int]) -> None:
        for row in batch:
            time_s, dynamic_j = evaluate(int(row))
            if not (0 < time_s < math.inf and 0 <= dynamic_j < math.inf):
                raise UsageError(
                    f"setting {row}: expected a positive time and energy, found {time_s} s, {dynamic_j} J"
                )
            rows.append(int(row))
            results.append((time_s, dynamic_j))

    run(generator.permutation(len(settings))[: budget.initial].tolist())
    areas = [_area(*_objectives(results, static_power_w))]
    done = 0
    while done < budget.rounds and len(rows) < len(settings) and not _settled(areas, budget):
        run(_pick(features, rows, results, static_power_w, budget))
        areas.append(_area(*_objectives(results, static_power_w)))
        done += 1
    time_s, total_j = _objectives(results, static_power_w)
    return SearchResult(
        rows=np.array(rows, np.int64),
        time_s=time_s,
        dynamic_j=np.array([e for _, e in results]),
        total_j=total_j,
        front=_front(time_s, total_j),
        rounds=done,
    )


def _objectives(results: list[tuple[float, float]], static_w: float) -> tuple[Floats, Floats]:
    time_s = np.array([t for t, _ in results])
    return time_s, np.array([e for _, e in results]) + static_w * time_s


def _settled(areas: list[float], budget: Budget) -> bool:
    """Whether the moving average of relative growth has fallen below the threshold."""
    if len(areas) <= budget.patience:
        return False
    recent = areas[-budget.patience - 1 :]
    growth = [(b - a) / max(a, 1e-300) for a, b in itertools.pairwise(recent)]
    return float(np.mean(growth)) < budget.growth


def _pick(
    features: Floats, rows: list[int], results: list[tuple[float, float]], static_w: float, budget: Budget
) -> list[int]:
    """The next batch: the four passes in turn, none taking what an earlier one took."""
    left = np.setdiff1d(np.arange(len(features)), rows)
    time_s = np.array([t for t, _ in results])
    dynamic_j = np.array([e for _, e in results])
    known = features[rows]
    time_mean, time_spread = _predict(known, np.log(time_s), features[left])
    energy_mean, energy_spread = _predict(known, np.log(dynamic_j + 1e-12), features[left])
    foreseen_s, foreseen_j = np.exp(time_mean), np.exp(energy_mean)
    scores = (
        _growth(time_s, dynamic_j + static_w * time_s, foreseen_s, foreseen_j + static_w * foreseen_s),
        _growth(time_s, dynamic_j, foreseen_s, foreseen_j),
        -foreseen_s,
        time_spread + energy_spread,
    )
    size = min(budget.batch, len(left))
    counts = [round(share * size) for share in SHARES[1:]]
    counts = [size - sum(counts), *counts]
    picked: list[int] = []
    for score, count in zip(scores, counts, strict=True):
        order = [i for i in np.argsort(-score, kind="stable").tolist() if i not in picked]
        picked += order[: max(count, 0)]
    return [int(left[i]) for i in picked[:size]]


def _predict(known: Floats, values: Floats, unknown: Floats) -> tuple[Floats, Floats]:
    """Mean and spread of a Gaussian process with a squared-exponential kernel of the median distance."""
    mean, scale = float(values.mean()), float(values.std()) or 1.0
    distance = _distances(known, known)
    positive = distance[distance > 0]
    length = float(np.median(positive)) if len(positive) else 1.0
    kernel = np.exp(-distance / length) + _NOISE * np.eye(len(known))
    cross = np.exp(-_distances(unknown, known) / length)
    factor = np.linalg.cholesky(kernel)
    weights = np.linalg.solve(factor.T, np.linalg.solve(factor, (values - mean) / scale))
    half = np.linalg.solve(factor, cross.T)
    spread = np.sqrt(np.maximum(1.0 - (half**2).sum(axis=0), 0.0))
    return mean + scale * (cross @ weights), scale * spread


def _distances(a: Floats, b: Floats) -> Floats:
    squared: Floats = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
    return squared


def _scaled(features: Floats) -> Floats:
    width = np.ptp(features, axis=0)
    scaled: Floats = (features - features.min(axis=0)) / np.where(width > 0, width, 1.0)
    return scaled


def _front(time_s: Floats, energy_j: Floats) -> Ints:
    kept, best = [], math.inf
    for i in np.lexsort((energy_j, time_s)).tolist():
        if energy_j[i] < best:
            kept.append(i)
            best = float(energy_j[i])
    return np.array(kept, np.int64)


def _area(time_s: Floats, energy_j: Floats, corner: tuple[float, float] | None = None) -> float:
    """Area dominated, in units of the corner (by default 1.1 times the worst seen)."""
    far_s, far_j = corner or (_REFERENCE * float(time_s.max()), _REFERENCE * float(energy_j.max()))
    front = _front(time_s, energy_j)
    times, energies = time_s[front] / far_s, energy_j[front] / far_j
    ends = np.append(times[1:], 1.0)
    return float((np.maximum(ends - times, 0) * np.maximum(1 - energies, 0)).sum())


def _growth(time_s: Floats, energy_j: Floats, new_s: Floats, new_j: Floats) -> Floats:
    """How much each foreseen point would add to the area dominated so far."""
    corner = (_REFERENCE * float(time_s.max()), _REFERENCE * float(energy_j.max()))
    front = _front(time_s, energy_j)
    base_s, base_j = time_s[front], energy_j[front]
    now = _area(base_s, base_j, corner)
    grown = [
        _area(np.append(base_s, t), np.append(base_j, e), corner) - now
        if t < corner[0] and e < corner[1]
        else 0.0
        for t, e in zip(new_s, new_j, strict=True)
    ]
    return np.array(grown)
