"""A fit kept in the profile it was made from, so that planning need not repeat it.

Fitting takes tens of seconds and depends on nothing but the profile. A stored fit is used only while the
digest of everything it was made from, and the version of the model, are still the same.
"""

from __future__ import annotations

import hashlib

import msgspec

from kareus.model.cost import CostModel
from kareus.model.fit_profile import fit_profile
from kareus.model.profile import Profile, StoredFit

# Raise when a change to the model or its fit moves constants: stored fits are then made anew.
MODEL_VERSION = 3


def fit_digest(profile: Profile) -> str:
    """Return the SHA-256 of the measurements of a profile and of the model's version, as hexadecimal."""
    bare = msgspec.structs.replace(profile, fit=None)
    return hashlib.sha256(msgspec.json.encode([MODEL_VERSION, bare], order="deterministic")).hexdigest()


def with_fit(profile: Profile) -> Profile:
    """Return the profile with a fit of its own stored in it.

    Raises:
        InputError: the profile has no samples, or samples of several links.
    """
    cost = fit_profile(profile)
    constants = {
        name: msgspec.structs.replace(c, value=float(c.value), low=float(c.low), high=float(c.high))
        for name, c in cost.constants.items()
    }  # NumPy's floats cannot be written
    stored = StoredFit(digest=fit_digest(profile), constants=constants, notes=cost.notes)
    return msgspec.structs.replace(profile, fit=stored)


def stored_model(profile: Profile) -> CostModel | None:
    """Return the model stored in a profile; None where there is none, or it is of other measurements."""
    fit = profile.fit
    if fit is None or fit.digest != fit_digest(profile):
        return None
    return CostModel(
        gpu=profile.gpu, num_sms=profile.num_sms, constants=fit.constants, verified=True, notes=fit.notes
    )
