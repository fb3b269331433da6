"""How sure a cost model is of the parts of a price."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kareus.model.constants import kind_name
from kareus.model.cost import Z90, CostModel
from kareus.trace.types import CollectiveKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncertainty:
    """Relative standard deviations of the parts of a price."""

    time: float
    energy: float
    bandwidth: float
    contention: float
    communication: float


def uncertainty(cost: CostModel, kinds: Iterable[CollectiveKind], *, copies: bool = False) -> Uncertainty:
    """Return relative standard deviations from a model's intervals (half of 90 % over 1.64).

    Args:
        cost: the model. kinds: collectives that run by thread blocks; what is not known of others does not matter.
        copies: whether the copy engine carries any.
    """
    names = sorted({kind_name(kind) for kind in kinds})
    engine = ("copy_engine.gb_per_s",) if copies else ()
    engine_energy = ("copy_engine.j_per_gb",) if copies else ()

    def spread(*constants: str) -> float:
        return max((cost.constants[c].relative_halfwidth for c in constants), default=0.0) / Z90

    return Uncertainty(
        time=cost["time_residual"],
        energy=cost["energy_residual"],
        bandwidth=spread(*(f"{name}.gb_per_s" for name in names), *engine),
        contention=spread("gemm.wave_share", "gemm.sm_share"),
        communication=spread(
            *(f"{name}.{q}" for name in names for q in ("j_per_gb", "w_per_cta")), *engine_energy
        ),
    )
