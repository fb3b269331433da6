"""What collectives take from the link and lose of it."""

import numpy as np
import pytest

from kareus.model import rates
from kareus.model.constants import constant
from kareus.model.cost import CostModel
from kareus.model.fit_profile import fit_profile
from kareus.model.profile import Beside, Conditions, Profile, Sample
from kareus.trace.types import CollectiveKind, KernelClass

COST = CostModel.assumed("NVIDIA H200", 132)
GATHER = rates.Flow(kind=int(CollectiveKind.ALL_GATHER), num_ctas=24)
SCATTER = rates.Flow(kind=int(CollectiveKind.REDUCE_SCATTER), num_ctas=24)
CLOCK = COST["reference_clock_mhz"]


def beside_gemm(cost: CostModel, flow: rates.Flow) -> float:
    """Bandwidth beside a GEMM over that alone."""
    gemm, grid = np.array([KernelClass.GEMM], np.int8), np.array([132], np.int32)
    _, moved = rates.beside(cost.coefficients, (flow,), gemm, grid, CLOCK)
    return float(moved[0, 0] / rates.alone_bytes_per_us(cost.coefficients, flow, CLOCK))


def test_collectives_share_the_link_as_far_as_the_constant_says() -> None:
    for sharing, expected in ((1.0, 0.5), (0.0, 1.0)):
        coef = COST.with_values({"link_sharing": sharing}).coefficients
        both = rates.shared_bytes_per_us(coef, (GATHER, GATHER), CLOCK)
        alone = rates.alone_bytes_per_us(coef, GATHER, CLOCK)
        assert sum(both) / (2 * alone) == pytest.approx(expected, abs=0.02)


def test_a_slow_link_hides_what_thread_blocks_lose_beside_compute() -> None:
    slow = COST.with_values({"all_gather.gb_per_s": 40.0})
    few = rates.Flow(kind=GATHER.kind, num_ctas=1)
    kept = 1 - COST["gemm.link_loss"]
    assert beside_gemm(slow, GATHER) == pytest.approx(1.0, abs=1e-3)
    assert beside_gemm(COST, few) == pytest.approx(kept, abs=1e-3)
    assert kept < beside_gemm(COST, GATHER) < 1


def test_copies_lose_their_share_of_the_whole() -> None:
    copies = rates.Flow(kind=GATHER.kind, num_ctas=rates.COPY_ENGINE)
    lost = COST["gemm.link_loss"] * COST["copy_engine.link_loss_scale"]
    assert beside_gemm(COST, copies) == pytest.approx(1 - lost)


def test_a_known_constant_is_held_by_the_fit() -> None:
    samples = tuple(
        Sample(
            label=f"{ctas} CTAs",
            collective=Beside(kind="all_gather", num_bytes=400_000_000, group_size=2, num_ctas=ctas),
            time_us=200e6 / min(12e3 * ctas, 180e3),
        )
        for ctas in (2, 4, 8, 16, 24)
    )
    profile = Profile(
        gpu="NVIDIA H200",
        num_sms=132,
        conditions=(Conditions(host_gpu="NVIDIA H200", num_sms=132, link="x", world_size=2),),
        samples=samples,
    )
    known = {"all_gather.gb_per_s": constant("all_gather.gb_per_s", 150.0, spread=0.0, source="published")}
    held = fit_profile(profile, known=known)
    assert held.constants["all_gather.gb_per_s"] == known["all_gather.gb_per_s"]
    assert fit_profile(profile)["all_gather.gb_per_s"] == pytest.approx(180, rel=0.05)
    assert held["all_gather.gb_per_s_per_cta"] == pytest.approx(12, rel=0.1)
