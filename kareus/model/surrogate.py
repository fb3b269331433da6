"""A response surface over measured settings, where no physics links the knobs: Gaussian-process regression.

Settings are rows of numbers (log thread blocks, launch position, clock, ...). The logarithm of the response
is smooth in them, with one length scale a column found by the marginal likelihood. The surface answers what
a search needs: what an unmeasured setting would give, and how sure that is. Numpy alone; meant for tens to
a few hundred measured settings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kareus.trace.types import F64

_SCALES = (0.15, 0.3, 0.6, 1.2, 2.5, 5.0, 12.0)  # length scales tried, in units of a column's range
NOISES = (0.01, 0.03, 0.1)  # noise standard deviations tried, in units of the response's
_SWEEPS = 2  # times the columns' length scales are gone through
_JITTER = 1e-8


@dataclass(frozen=True, kw_only=True, slots=True)
class Surface:
    """A fitted response surface; see `fit_surface`.

    Attributes:
        settings: measured ones in units of each column's range, float[n, d].
        scales: length scale of each column, float[d]. noise: of one measurement, in units of `spread`.
        middle, spread: mean and standard deviation of the log response.
    """

    settings: F64
    scales: F64
    noise: float
    middle: float
    spread: float
    low: F64
    width: F64
    _weights: F64
    _factor: F64

    def predict(self, settings: F64) -> tuple[F64, F64]:
        """Return the log response of settings and its standard deviation, float[m] each.

        Args:
            settings: float[m, d], in the units given to `fit_surface`.
        """
        rows = (settings - self.low) / self.width
        between = _kernel(rows, self.settings, self.scales)
        mean = self.middle + self.spread * (between @ self._weights)
        part = np.linalg.solve(self._factor, between.T)
        variance = np.maximum(1.0 - (part**2).sum(axis=0), 0.0)
        return mean, self.spread * np.sqrt(variance)


def fit_surface(
    settings: F64,
    response: F64,
    *,
    bounds: tuple[F64, F64] | None = None,
    scales: F64 | None = None,
    noises: Sequence[float] = NOISES,
) -> Surface:
    """Fit a surface to measured settings.

    Args:
        settings: float[n, d], n at least 2. response: positive, float[n].
        bounds: lowest and highest value of each column over all candidates; of `settings` where missing.
        scales: length scales to keep (from an earlier fit); found by the marginal likelihood where missing.
        noises: noise standard deviations to try, in units of the response's.

    Raises:
        ValueError: fewer than two settings, or a response that is not positive.
    """
    if len(settings) < 2 or len(settings) != len(response) or np.any(response <= 0):
        raise ValueError(
            f"expected at least two settings with positive responses, found {len(settings)} settings and "
            f"{len(response)} responses, lowest {np.min(response, initial=math.inf):g}"
        )
    low, high = bounds if bounds is not None else (settings.min(axis=0), settings.max(axis=0))
    width = np.where(high > low, high - low, 1.0)
    rows = (settings - low) / width
    log = np.log(response)
    middle, spread = float(log.mean()), max(float(log.std()), 1e-6)
    target = (log - middle) / spread
    noise = noises[len(noises) // 2]
    if scales is None:
        scales, noise = _likeliest(rows, target, noises)
    factor = _factor(rows, scales, noise)
    weights = np.linalg.solve(factor.T, np.linalg.solve(factor, target))
    return Surface(
        settings=rows,
        scales=scales,
        noise=noise,
        middle=middle,
        spread=spread,
        low=low,
        width=width,
        _weights=weights,
        _factor=factor,
    )


def most_promising(surface: Surface, candidates: F64, best: float) -> int:
    """Return the row of the candidate with the largest expected improvement over the best response so far.

    Args:
        surface: fitted. candidates: float[m, d]. best: least response measured.
    """
    mean, deviation = surface.predict(candidates)
    deviation = np.maximum(deviation, 1e-9)
    gain = (math.log(best) - mean) / deviation
    density = np.exp(-0.5 * gain**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.array([math.erf(g / math.sqrt(2)) for g in gain]))
    return int(np.argmax(deviation * (gain * below + density)))


def _kernel(a: F64, b: F64, scales: F64) -> F64:
    """Matern 5/2: a response has kinks where what bounds it changes."""
    squares = (((a[:, None, :] - b[None, :, :]) / scales) ** 2).sum(axis=2)
    distance = np.sqrt(5 * squares)
    return np.asarray((1 + distance + distance**2 / 3) * np.exp(-distance))


def _factor(rows: F64, scales: F64, noise: float) -> F64:
    matrix = _kernel(rows, rows, scales)
    matrix[np.diag_indices(len(rows))] += noise**2 + _JITTER
    return np.asarray(np.linalg.cholesky(matrix))


def _likeliest(rows: F64, target: F64, noises: Sequence[float]) -> tuple[F64, float]:
    """Coordinate search for the length scales and noise of the largest marginal likelihood."""
    scales, noise = np.full(rows.shape[1], 1.2), noises[len(noises) // 2]
    best = _likelihood(rows, target, scales, noise)
    for _ in range(_SWEEPS):
        for column in range(rows.shape[1]):
            for scale in _SCALES:
                trial = scales.copy()
                trial[column] = scale
                value = _likelihood(rows, target, trial, noise)
                if value > best:
                    best, scales = value, trial
        for level in noises:
            value = _likelihood(rows, target, scales, level)
            if value > best:
                best, noise = value, level
    return scales, noise


def _likelihood(rows: F64, target: F64, scales: F64, noise: float) -> float:
    factor = _factor(rows, scales, noise)
    whitened = np.linalg.solve(factor, target)
    # A weak belief in long scales keeps columns that few measurements vary from explaining noise.
    belief = float((np.log(scales / 1.2) ** 2).sum()) / 8
    return float(-0.5 * whitened @ whitened - np.log(np.diag(factor)).sum()) - belief
