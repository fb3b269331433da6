"""Fits a CostModel to a Profile: first links, then classes and contention, each against what it explains.

Constants start from the assumed model of the GPU, which also is the prior; the data move those they can
identify. A constant whose posterior is hardly narrower than its prior keeps source "assumed", and the
model's notes name it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kareus.errors import InputError
from kareus.model.constants import KINDS, NAMES, Constant, kind_name
from kareus.model.cost import Z90, CostModel
from kareus.model.fit import Fit, Prior, least_squares
from kareus.model.predict import predict
from kareus.model.profile import Profile, Sample
from kareus.trace.types import F64

_LINK_SD = {"gb_per_s_per_cta": 0.4, "gb_per_s": 0.4, "knee": 0.5}
_BESIDE_SD = {
    "sm_share": 0.6, "wave_share": 0.8, "memory_share": 0.6, "link_loss": 0.8, "power_w": 0.3,
    "clock_share": 0.3, "clock_energy": 0.4,
}  # fmt: skip
_KIND_SD = {"w_per_cta": 0.5, "j_per_gb": 0.6}  # memory traffic cannot be told from memory_share
_COPY_SD = {"gb_per_s": 0.8, "latency_us": 0.5, "j_per_gb": 0.6, "link_loss_scale": 0.5}
_GLOBAL_SD = {"static_power_w": 0.1, "serialise_us": 0.7, "power_limit_w": 0.02, "power_window_us": 0.4}
_LIMITS = {
    "sm_share": 2.0, "wave_share": 1.0, "memory_share": 2.0, "link_loss": 0.9,
    "clock_share": 1.0, "knee": 40.0,
}  # fmt: skip
# How alike a quantity is believed to be over classes or kinds of collective: what one of them shows moves
# those nobody measured. All collectives run on one link by the same library.
_ALIKE = {
    "link_loss": 0.8, "gb_per_s_per_cta": 0.9, "gb_per_s": 0.9, "knee": 0.7, "w_per_cta": 0.7, "j_per_gb": 0.7,
}  # fmt: skip
MIN_TIME_SD, MIN_ENERGY_SD = 0.01, 0.015
CLOCK_SD = 0.03  # of a mean of clock readings; a step's clock also moves within the step


def fit_profile(
    profile: Profile,
    *,
    samples: Sequence[Sample] | None = None,
    known: Mapping[str, Constant] | None = None,
    max_iterations: int = 18,
) -> CostModel:
    """Return the model fitted to a profile.

    Args:
        profile: the measurements. samples: fit to these only (for validation); all where missing.
        known: constants the caller knows (a simulated link, a data sheet); held, not fitted.
        max_iterations: Jacobians of the second stage.

    Raises:
        InputError: there is nothing to fit to.
    """
    chosen = tuple(profile.samples if samples is None else samples)
    if not chosen:
        raise InputError(
            "the profile has no samples to fit; measure with `kareus profile`, or solve without one"
        )
    links = sorted({profile.conditions[s.conditions].link for s in chosen})
    if len(links) > 1:
        raise InputError(
            f"the samples were taken over different links ({', '.join(links)}); a cost model describes one: "
            "fit the samples of one link, or keep them in separate profiles"
        )
    cost = CostModel.assumed(profile.gpu, profile.num_sms)
    if profile.reference_clock_mhz:
        cost = cost.with_constants({"reference_clock_mhz": _exact(cost, profile.reference_clock_mhz)})
    held = known or {}
    cost = cost.with_constants(held)
    bare = [s for s in chosen if s.collective is not None and not s.compute]
    link = {name: sd for name, sd in _link_names(bare).items() if name not in held}
    if link:
        cost, _ = _fit(cost, link, profile, bare, max_iterations=20)
    rest = {name: sd for name, sd in _other_names(cost, chosen).items() if name not in held}
    cost, _ = _fit(cost, rest, profile, chosen, max_iterations=max_iterations)
    return _with_residuals(cost, profile, chosen)


def _exact(cost: CostModel, clock: float) -> Constant:
    return Constant(
        value=clock, low=clock, high=clock, unit="MHz", source="fitted", note="named by the profile"
    )


def _link_names(samples: Sequence[Sample]) -> dict[str, float]:
    kinds = {s.collective.kind for s in samples if s.collective and s.collective.num_ctas > 0}
    return {f"{kind}.{quantity}": sd for kind in sorted(kinds) for quantity, sd in _LINK_SD.items()}


def _other_names(cost: CostModel, samples: Sequence[Sample]) -> dict[str, float]:
    """Constants the samples have something to say about, with the prior's relative standard deviations."""
    classes, kinds, copies = set[str](), set[str](), False
    for sample in samples:
        classes |= {piece.kernel_class for piece in sample.compute}
        if sample.collective is not None:
            kinds.add(sample.collective.kind)
            copies |= sample.collective.num_ctas == 0
        if sample.step is not None:
            classes |= {"gemm", "attention", "memory"}
            kinds |= {kind_name(k) for k in KINDS[:2]} - set(sample.step.absent)
            copies |= 0 in sample.step.num_ctas.values()
    names = dict(_GLOBAL_SD)
    names |= {f"{c}.{q}": sd for c in sorted(classes) for q, sd in _BESIDE_SD.items()}
    names |= {f"{k}.{q}": sd for k in sorted(kinds) for q, sd in (*_KIND_SD.items(), *_LINK_SD.items())}
    if copies:
        names |= {f"copy_engine.{q}": sd for q, sd in _COPY_SD.items()}
    return {name: sd for name, sd in names.items() if cost[name] > 0}


def _fit(
    cost: CostModel,
    names: dict[str, float],
    profile: Profile,
    samples: Sequence[Sample],
    *,
    max_iterations: int,
) -> tuple[CostModel, Fit]:
    """Fit some constants in the logarithm, the rest held."""
    mean = np.log([cost[name] for name in names])
    upper = np.array([np.log(_LIMITS.get(name.rpartition(".")[2], np.inf)) for name in names])
    sd = np.array(list(names.values()))
    prior = Prior(
        mean=mean,
        sd=sd,
        lower=mean - 6 * sd,
        upper=np.minimum(mean + 6 * sd, upper),
        correlation=_correlation(list(names)),
    )

    def residuals(x: F64) -> F64:
        return _residuals(
            cost.with_values(dict(zip(names, np.exp(x).tolist(), strict=True))), profile, samples
        )

    fit = least_squares(residuals, prior, max_iterations=max_iterations)
    changed, lost = {}, []
    for name, x, deviation, known in zip(names, fit.x, fit.sd, fit.identified, strict=True):
        value, factor = float(np.exp(x)), float(np.exp(Z90 * deviation))
        if not known:
            lost.append(name)
        changed[name] = Constant(
            value=value,
            low=value / factor,
            high=value * factor,
            unit=NAMES[name][0],
            source="fitted" if known else "assumed",
            note=f"{len(samples)} samples"
            if known
            else "the samples do not identify it; kept near its assumption",
        )
    notes = (f"not identified by the profile: {', '.join(lost)}",) if lost else ()
    return cost.with_constants(changed, notes=notes), fit


def _correlation(names: Sequence[str]) -> F64:
    """Prior correlation of constants: the same quantity of different classes or kinds is alike."""
    found = np.eye(len(names))
    for i, one in enumerate(names):
        owner, _, quantity = one.rpartition(".")
        for j, two in enumerate(names):
            other, _, same = two.rpartition(".")
            if i != j and quantity == same and "copy_engine" not in (owner, other):
                found[i, j] = _ALIKE.get(quantity, 0.0)
    return found


def _residuals(cost: CostModel, profile: Profile, samples: Sequence[Sample]) -> F64:
    """Log ratios of predicted to measured, in standard deviations: time, then energy and clock where known."""
    found = predict(profile, samples, cost)
    time = np.array([s.time_us for s in samples])
    time_sd = np.maximum([s.time_spread_us / s.time_us for s in samples], MIN_TIME_SD)
    rows = [np.log(found.time_us / time) / time_sd]
    known = [i for i, s in enumerate(samples) if measured_energy_j(s) is not None]
    if known:
        energy = np.array([measured_energy_j(samples[i]) or 0.0 for i in known])
        sd = np.array(
            [max(samples[i].energy_spread_j / e, MIN_ENERGY_SD) for i, e in zip(known, energy, strict=True)]
        )
        rows.append(np.log(found.energy_j[known] / energy) / sd)
    read = [i for i, s in enumerate(samples) if s.sm_clock_mhz > 0]
    if read:
        clock = np.array([samples[i].sm_clock_mhz for i in read])
        rows.append(np.log(found.sm_clock_mhz[read] / clock) / CLOCK_SD)
    return np.concatenate(rows)


def measured_energy_j(sample: Sample) -> float | None:
    """Energy of a sample: integrated, or mean power times time; None where neither was measured."""
    if sample.energy_j is not None:
        return sample.energy_j
    return None if sample.power_w is None else sample.power_w * sample.time_us * 1e-6


def _with_residuals(cost: CostModel, profile: Profile, samples: Sequence[Sample]) -> CostModel:
    found = predict(profile, samples, cost)
    ratio = np.log(found.time_us / np.array([s.time_us for s in samples]))
    changed = {"time_residual": _spread("time_residual", ratio)}
    pairs = [(e, found.energy_j[i]) for i, s in enumerate(samples) if (e := measured_energy_j(s)) is not None]
    if pairs:
        changed["energy_residual"] = _spread("energy_residual", np.log([p / e for e, p in pairs]))
    model = cost.with_constants(changed)
    return CostModel(
        gpu=model.gpu,
        num_sms=model.num_sms,
        constants=model.constants,
        verified=True,
        notes=tuple(n for n in model.notes if not n.startswith("no profile")),
    )


def _spread(name: str, ratio: F64) -> Constant:
    """Root mean square of log ratios, with its chi-square-like interval."""
    value = float(np.sqrt(np.mean(ratio**2)))
    half = Z90 / np.sqrt(2 * len(ratio))
    return Constant(
        value=value,
        low=value * max(1 - half, 0.0),
        high=value * (1 + half),
        unit=NAMES[name][0],
        source="fitted",
        note=f"root mean square over {len(ratio)} samples of the fit",
    )
