import msgspec
import numpy as np
import pytest

from kareus.errors import InputError
from kareus.model.constants import NAMES, Constant
from kareus.model.cost import CostModel
from kareus.model.profile import Beside, Conditions, Piece, Profile, Sample


def small_profile(gpu: str = "NVIDIA H200", label: str = "gemm") -> Profile:
    return Profile(
        gpu=gpu,
        num_sms=132,
        conditions=(Conditions(host_gpu=gpu, num_sms=132, link="nvlink", world_size=2),),
        samples=(
            Sample(
                label=label,
                compute=(Piece(kernel_class="gemm", alone_us=1000.0),),
                time_us=1000.0,
                energy_j=0.6,
            ),
        ),
    )


@pytest.mark.parametrize(
    ("gpu", "sms"), [("NVIDIA H200", 132), ("NVIDIA A100-SXM4-80GB", 108), ("", 0), ("New", 200)]
)
def test_assumed_model_has_every_constant_with_unit_and_interval(gpu: str, sms: int) -> None:
    cost = CostModel.assumed(gpu, sms)
    assert cost.constants.keys() == NAMES.keys()
    assert not cost.verified
    for name, constant in cost.constants.items():
        assert constant.unit == NAMES[name][0]
        assert constant.low <= constant.value <= constant.high
        assert constant.source == "assumed"
    assert np.all(cost.coefficients.power_w > 0)


def test_a_constant_outside_its_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="interval"):
        Constant(value=3.0, low=0.0, high=2.0, unit="W", source="assumed")


@pytest.mark.parametrize("factor", [0.001, 0.5, 3.0])
def test_with_values_keeps_the_interval_s_relative_width(factor: float) -> None:
    cost = CostModel.assumed("NVIDIA H200", 132)
    old = cost.constants["all_gather.gb_per_s"]
    new = cost.with_values({"all_gather.gb_per_s": old.value * factor}).constants["all_gather.gb_per_s"]
    assert new.value == pytest.approx(old.value * factor)
    assert new.low == pytest.approx(old.low * factor)
    assert new.high == pytest.approx(old.high * factor)
    assert new.source == old.source


def test_with_values_keeps_the_absolute_width_where_there_is_no_relative_one() -> None:
    cost = CostModel.assumed("NVIDIA H200", 132)
    old = cost.constants["all_gather.gb_per_s"]
    new = cost.with_values({"all_gather.gb_per_s": 0.0}).constants["all_gather.gb_per_s"]
    assert (new.low, new.high) == (old.low - old.value, old.high - old.value)


def test_profile_round_trip_and_merge(tmp_path) -> None:
    profile = small_profile()
    path = tmp_path / "p.json"
    profile.save(path)
    assert path.read_bytes().startswith(b'{\n "schema": "kareus.profile/1"')
    assert Profile.load(path) == profile
    both = profile.merge(small_profile(label="other"))
    assert [s.conditions for s in both.samples] == [0, 1]
    with pytest.raises(InputError, match="cannot merge"):
        profile.merge(small_profile(gpu="NVIDIA A100"))


def test_a_bad_sample_names_the_file(tmp_path) -> None:
    document = msgspec.to_builtins(small_profile())
    document["samples"][0]["time_us"] = -1
    path = tmp_path / "bad.json"
    path.write_bytes(msgspec.json.encode(document))
    with pytest.raises(InputError, match=r"bad\.json.*time_us"):
        Profile.load(path)


def test_an_empty_profile_cannot_be_fitted() -> None:
    profile = Profile(gpu="NVIDIA H200", num_sms=132, conditions=(), samples=())
    with pytest.raises(InputError, match="no samples"):
        CostModel.from_profile(profile)


def test_fit_recovers_a_link_and_says_what_it_cannot_know() -> None:
    truth = {"all_gather.gb_per_s_per_cta": 20.0, "all_gather.gb_per_s": 300.0}
    cost = CostModel.assumed("NVIDIA H200", 132).with_values(truth)
    base = small_profile()
    bare = [
        Sample(
            label=f"ag {c}",
            collective=Beside(kind="all_gather", num_bytes=400_000_000, group_size=2, num_ctas=c),
            time_us=1.0,
        )
        for c in (1, 4, 8, 16, 24)
    ]
    from kareus.model.predict import predict

    found = predict(base, bare, cost)
    samples = tuple(
        msgspec.structs.replace(s, time_us=float(t)) for s, t in zip(bare, found.time_us, strict=True)
    )
    fitted = CostModel.from_profile(msgspec.structs.replace(base, samples=samples))
    assert fitted.verified
    assert fitted["all_gather.gb_per_s_per_cta"] == pytest.approx(20.0, rel=0.02)
    assert fitted["all_gather.gb_per_s"] == pytest.approx(300.0, rel=0.05)
    assert fitted.constants["all_gather.gb_per_s_per_cta"].source == "fitted"
    assert any("not identified" in note for note in fitted.notes)
    assert fitted.constants["reduce_scatter.gb_per_s"].source == "assumed"
