"""Time and energy of operations over all SM clocks, from a few measured ones.

Work that is bound by the SMs takes 1/clock; what memory or the link binds does not, and where the one takes
over from the other the curve has a knee. Power is linear in the clock while the voltage is at its floor and
rises faster above it. Floor and knee belong to the GPU and the job rather than to one operation, so the
operations of a table share them; everything else is linear and fitted to each operation by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kareus.trace.types import F64

MIN_CLOCKS = 5
_KNEES = np.linspace(0.6, 0.98, 39)  # of the highest clock


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockCurves:
    """Predicted time and energy of k operations at c clocks.

    Attributes:
        sm_clock_mhz: float[c]. time_us, energy_j: float[k, c].
        time_knee, power_knee: shared knees as a share of the highest measured clock; power_knee is None
            where a plain cubic explained the power better.
        time_residual, power_residual: root mean square at the measured clocks, relative, for each degree of
            freedom that the fit left.
    """

    sm_clock_mhz: F64
    time_us: F64
    energy_j: F64
    time_knee: float
    power_knee: float | None
    time_residual: float
    power_residual: float


def clock_curves(measured_mhz: F64, time_us: F64, energy_j: F64, wanted_mhz: F64) -> ClockCurves:
    """Fit the curves of operations measured at the same clocks and read them at others.

    Args:
        measured_mhz: float[m], m at least `MIN_CLOCKS`, lowest and highest among them for best results.
        time_us, energy_j: of each operation at each measured clock, positive, float[k, m].
        wanted_mhz: clocks to predict, float[c].

    Returns:
        The predictions.

    Raises:
        ValueError: too few clocks, shapes that do not belong together, or figures that are not positive.
    """
    if len(measured_mhz) < MIN_CLOCKS or time_us.shape != energy_j.shape or time_us.ndim != 2:
        raise ValueError(
            f"expected [k, m] times and energies at m >= {MIN_CLOCKS} clocks, found {time_us.shape} and "
            f"{energy_j.shape} at {len(measured_mhz)} clocks"
        )
    if time_us.shape[1] != len(measured_mhz) or np.any(time_us <= 0) or np.any(energy_j <= 0):
        raise ValueError(
            f"expected positive times and energies at {len(measured_mhz)} clocks, found shapes "
            f"{time_us.shape} with least {time_us.min():g} us and {energy_j.min():g} J"
        )
    top = float(measured_mhz.max())
    seen, wanted = measured_mhz / top, wanted_mhz / top
    time_error, time_knee, time = _shared_knee(_time_terms, seen, wanted, time_us)
    power_w = energy_j / time_us * 1e6
    power_error, power_knee, power = _shared_knee(_power_terms, seen, wanted, power_w)
    cubic_error, cubic = _fitted(_cubic_terms(seen), _cubic_terms(wanted), power_w)
    with_knee = power_error <= cubic_error
    return ClockCurves(
        sm_clock_mhz=wanted_mhz,
        time_us=time,
        energy_j=time * (power if with_knee else cubic) * 1e-6,
        time_knee=time_knee,
        power_knee=power_knee if with_knee else None,
        time_residual=time_error,
        power_residual=min(power_error, cubic_error),
    )


def spread_clocks(supported_mhz: F64, count: int = MIN_CLOCKS) -> F64:
    """Return the clocks to measure: evenly spread over the supported ones, both ends among them.

    Args:
        supported_mhz: float[c], c at least `count`. count: how many to pick.
    """
    ascending = np.sort(supported_mhz)
    return np.asarray(ascending[np.round(np.linspace(0, len(ascending) - 1, count)).astype(int)])


def _time_terms(clock: F64, knee: float) -> F64:
    return np.stack([np.ones_like(clock), 1 / clock, np.maximum(1 / clock - 1 / knee, 0.0)], axis=1)


def _power_terms(clock: F64, knee: float) -> F64:
    return np.stack([np.ones_like(clock), clock, clock * np.maximum(clock - knee, 0.0)], axis=1)


def _cubic_terms(clock: F64) -> F64:
    return np.stack([clock**power for power in range(4)], axis=1)


def _shared_knee(
    terms: Callable[[F64, float], F64], seen: F64, wanted: F64, values: F64
) -> tuple[float, float, F64]:
    """Residual, knee and predictions of the knee that explains all operations best."""
    fits = []
    for knee in _KNEES.tolist():
        error, predicted = _fitted(terms(seen, knee), terms(wanted, knee), values)
        fits.append((error, knee, predicted))
    return min(fits, key=lambda fit: fit[:2])


def _fitted(seen: F64, wanted: F64, values: F64) -> tuple[float, F64]:
    """Relative least squares of each operation by itself; residual for each free measurement, predictions."""
    squares, predicted = 0.0, np.zeros((len(values), len(wanted)))
    for row, measured in enumerate(values):
        scaled = seen / measured[:, None]
        found = np.linalg.lstsq(scaled, np.ones(len(measured)), rcond=None)[0]
        squares += float(((scaled @ found - 1) ** 2).sum())
        predicted[row] = wanted @ found
    freedom = len(values) * (len(seen) - seen.shape[1])
    return float(np.sqrt(squares / freedom)), predicted
