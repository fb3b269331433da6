"""Bounded non-linear least squares with priors (Levenberg-Marquardt), in numpy alone.

A prior on every parameter makes the fit well-posed whatever the data hold; a parameter whose posterior is
hardly narrower than its prior was not identified, and callers say so instead of reporting a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kareus.trace.types import F64

REFRESH = 8  # steps between Jacobians by differences; rank-one updates in between


@dataclass(frozen=True, kw_only=True, slots=True)
class Prior:
    """Belief about p parameters before the data: normals inside bounds, float[p] each.

    Attributes:
        mean, sd, lower, upper: of each parameter.
        correlation: between parameters, float[p, p]; None is independent. What the data say about one
            parameter then also moves those believed to be alike.
    """

    mean: F64
    sd: F64
    lower: F64
    upper: F64
    correlation: F64 | None = None

    @property
    def precision(self) -> F64:
        """Inverse of the covariance, float[p, p]."""
        if self.correlation is None:
            return np.diag(self.sd**-2)
        return np.asarray(np.linalg.inv(self.correlation * np.outer(self.sd, self.sd)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Result of `least_squares`.

    Attributes:
        x: parameters, float[p]. sd: posterior standard deviations, float[p].
        residuals: of the data rows at x, float[r]. identified: posterior sd below `0.7` prior sd, bool[p].
        iterations: accepted steps. scale: residual standard deviation, in units of the assumed one.
    """

    x: F64
    sd: F64
    residuals: F64
    identified: np.ndarray
    iterations: int
    scale: float


def least_squares(
    residuals: Callable[[F64], F64],
    prior: Prior,
    *,
    start: F64 | None = None,
    max_iterations: int = 40,
    tolerance: float = 2e-3,
    robust: float = 4.0,
    slopes: F64 | None = None,
) -> Fit:
    """Minimise the sum of squares of data residuals and prior residuals inside bounds.

    Args:
        residuals: maps float[p] to float[r], each divided by its standard deviation.
        prior: of the parameters. start: first guess; the prior's mean where missing.
        max_iterations: steps at most. tolerance: relative decrease that ends the search.
        slopes: Jacobian at the first guess where the caller has it, float[r, p].
        robust: residuals beyond this many standard deviations count linearly (Huber).

    Returns:
        The fit; where the search ended for lack of iterations it is the best point seen.
    """
    x = np.clip(prior.mean if start is None else start, prior.lower, prior.upper).astype(float)
    precision = prior.precision
    rows = residuals(x)
    value = _value(rows, x - prior.mean, precision, robust)
    damping, accepted, age = 1e-2, 0, 0
    jacobian = _jacobian(residuals, x, rows, prior) if slopes is None else slopes
    for _ in range(max_iterations):
        weight = _weights(rows, robust)
        normal = jacobian.T @ (weight[:, None] * jacobian) + precision
        slope = jacobian.T @ (weight * rows) + precision @ (x - prior.mean)
        improved = False
        for _ in range(8):
            proposal = _step(x, normal, slope, damping, prior)
            new_rows = residuals(proposal)
            new_value = _value(new_rows, proposal - prior.mean, precision, robust)
            if new_value < value:
                improved = True
                break
            damping *= 5
        if not improved:
            if age == 0 and slopes is None:
                break
            jacobian, age, slopes, damping = _jacobian(residuals, x, rows, prior), 0, None, 1e-2
            continue
        decrease = (value - new_value) / max(value, 1e-12)
        move = proposal - x
        jacobian = jacobian + np.outer(new_rows - rows - jacobian @ move, move) / float(move @ move)
        x, rows, value, damping, accepted = (
            proposal,
            new_rows,
            new_value,
            max(damping / 5, 1e-6),
            accepted + 1,
        )
        age += 1
        if decrease < tolerance and age == 1:
            break
        if decrease < tolerance or age >= REFRESH:
            jacobian, age, slopes = _jacobian(residuals, x, rows, prior), 0, None
    weight = _weights(rows, robust)
    freedom = max(len(rows) - min(len(x), len(rows) - 1), 1)
    scale = max(float(np.sqrt((weight * rows**2).sum() / freedom)), 1e-9) if len(rows) else 1.0
    widen = max(scale, 1.0) ** 2
    normal = jacobian.T @ (weight[:, None] * jacobian) / widen + precision
    sd = np.sqrt(np.diag(np.linalg.inv(normal)))
    return Fit(x=x, sd=sd, residuals=rows, identified=sd < 0.7 * prior.sd, iterations=accepted, scale=scale)


def _value(rows: F64, moved: F64, precision: F64, robust: float) -> float:
    size = np.abs(rows)
    loss = np.where(size <= robust, rows**2, 2 * robust * size - robust**2).sum()
    return float(loss + moved @ precision @ moved)


def _weights(rows: F64, robust: float) -> F64:
    return np.asarray(np.minimum(1.0, robust / np.maximum(np.abs(rows), 1e-12)))


def _jacobian(residuals: Callable[[F64], F64], x: F64, rows: F64, prior: Prior) -> F64:
    jacobian = np.zeros((len(rows), len(x)))
    for column in range(len(x)):
        step = 1e-2 * prior.sd[column]
        if x[column] + step > prior.upper[column]:
            step = -step
        moved = x.copy()
        moved[column] += step
        jacobian[:, column] = (residuals(moved) - rows) / step
    return jacobian


def _step(x: F64, normal: F64, slope: F64, damping: float, prior: Prior) -> F64:
    """One damped step; parameters pushed against a bound are held there and the rest solved again."""
    free = np.ones(len(x), bool)
    proposal = x.copy()
    for _ in range(len(x) + 1):
        index = np.flatnonzero(free)
        if not len(index):
            break
        system = normal[np.ix_(index, index)]
        system = system + damping * np.diag(np.diag(system))
        held = np.flatnonzero(~free)
        right = -slope[index] - normal[np.ix_(index, held)] @ (proposal[held] - x[held])
        moved = x[index] + np.linalg.solve(system, right)
        outside = (moved < prior.lower[index]) | (moved > prior.upper[index])
        proposal[index] = np.clip(moved, prior.lower[index], prior.upper[index])
        if not outside.any():
            break
        free[index[outside]] = False
    return proposal
