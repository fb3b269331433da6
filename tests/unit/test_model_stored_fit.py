"""A stored fit is used only for what it was made from, and the shipped one is what a fit gives today."""

from pathlib import Path

import msgspec
import pytest

from kareus.model import stored_fit
from kareus.model.cost import CostModel
from kareus.model.fit_profile import fit_profile
from kareus.model.profile import Profile

SHIPPED = Path(__file__).parents[2] / "traces/profiles/h200-nvlink.json"


@pytest.fixture(scope="module")
def shipped():
    return Profile.load(SHIPPED)


def test_the_stored_fit_is_taken_as_it_is(shipped, monkeypatch):
    monkeypatch.setattr("kareus.model.fit_profile.fit_profile", lambda profile: pytest.fail("fitted again"))
    cost = CostModel.from_profile(shipped)
    assert cost.verified
    assert cost.constants == shipped.fit.constants


def test_other_measurements_or_another_model_are_fitted_anew(shipped, monkeypatch):
    first, *others = shipped.samples
    slower = msgspec.structs.replace(first, time_us=first.time_us * 1.1)
    assert stored_fit.stored_model(msgspec.structs.replace(shipped, samples=(slower, *others))) is None
    monkeypatch.setattr(stored_fit, "MODEL_VERSION", stored_fit.MODEL_VERSION + 1)
    assert stored_fit.stored_model(shipped) is None


def test_a_merged_profile_is_fitted_anew(shipped):
    assert shipped.merge(shipped).fit is None


def test_the_shipped_fit_is_what_a_fit_gives(shipped):
    # Where this fails the model was changed: raise MODEL_VERSION and run tests/bench/build_h200_profile.py.
    fresh = fit_profile(shipped)
    for name, constant in shipped.fit.constants.items():
        assert fresh[name] == pytest.approx(constant.value, rel=0.02), name
