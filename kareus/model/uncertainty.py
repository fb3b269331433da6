"""How sure a cost model is of the parts of a price."""

from __future__ import annotations

from dataclasses import dataclass

from kareus.model.cost import Z90, CostModel


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncertainty:
    """Relative standard deviations of the parts of a price."""

    time: float
    energy: float
    bandwidth: float
    contention: float
    communication: float


def uncertainty(cost: CostModel) -> Uncertainty:
    """Return relative standard deviations from a model's intervals (half of 90 % over 1.64)."""

    def spread(*names: str) -> float:
        return max(cost.constants[name].relative_halfwidth for name in names) / Z90

    return Uncertainty(
        time=cost["time_residual"],
        energy=cost["energy_residual"],
        bandwidth=spread("all_gather.gb_per_s", "reduce_scatter.gb_per_s"),
        contention=spread("gemm.wave_share", "gemm.sm_share"),
        communication=spread("all_gather.j_per_gb", "all_gather.w_per_cta"),
    )
