"""The settings a sweep tries: what the runtime can vary without touching the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kareus.model.profile import KindName, StepSetting
from kareus.schedule import CollectiveKey, Decision, Fingerprint, Path, Schedule

BUDGETS = (4, 8, 16)  # thread blocks; with stock's own they span the curve, each costs a communicator


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One way to run every step; the defaults are stock.

    Attributes:
        label: for people. num_ctas: thread blocks by kind, 0 is the copy engine. serialise: kinds waited
            for at once. separate: reduce-scatters on a communicator of their own.
    """

    label: str
    num_ctas: tuple[tuple[KindName, int], ...] = ()
    serialise: tuple[KindName, ...] = ()
    separate: bool = False

    def as_step(self, workload: str) -> StepSetting:
        """Return it as a profile's sample names it."""
        return StepSetting(
            workload=workload,
            num_ctas=dict(self.num_ctas),
            serialise=self.serialise,
            separate=self.separate,
        )


STOCK = Setting(label="stock")


def default_settings(wrapper: str, capabilities: Mapping[str, Any]) -> tuple[Setting, ...]:
    """Return what to try, most telling first; stock is not among them.

    Args:
        wrapper: "fsdp2" or "ddp". capabilities: of `kareus.collect.facts.capabilities`.
    """
    kinds: tuple[KindName, ...] = ("all_reduce",) if wrapper == "ddp" else ("all_gather", "reduce_scatter")
    found = [Setting(label="serialised", serialise=kinds)]
    if capabilities.get("copy_engine"):
        found.append(Setting(label=f"{kinds[0]} by copy engine", num_ctas=((kinds[0], 0),)))
    if capabilities.get("cta_budgets"):
        found += [
            Setting(label=f"{kind} {budget} CTAs", num_ctas=((kind, budget),))
            for budget in BUDGETS
            for kind in kinds
        ]
    if len(kinds) > 1:
        found += [Setting(label=f"{kind} serialised", serialise=(kind,)) for kind in kinds]
        found.append(Setting(label="separate reduce-scatter group", separate=True))
    return tuple(found)


def schedule_for(setting: Setting, job: Fingerprint, observed: Sequence[CollectiveKey]) -> Schedule:
    """Return the schedule that gives every collective of a job this setting.

    Args:
        job: its fingerprint. observed: collectives of one of its stock steps, in issue order.
    """
    ctas = dict(setting.num_ctas)
    decisions = []
    for key in observed:
        budget = ctas.get(key.kind)
        decision = Decision(
            collective=key,
            num_ctas=budget or None,
            path=Path.COPY_ENGINE if budget == 0 else Path.NCCL,
            serialise=key.kind in setting.serialise,
        )
        if not decision.is_stock:
            decisions.append(decision)
    return Schedule(
        fingerprint=job,
        decisions=tuple(decisions),
        separate_reduce_scatter_group=setting.separate,
        notes=(f"profiling: {setting.label}",),
    )
