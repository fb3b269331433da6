"""The settings a sweep tries: what the runtime can vary without touching the model.

DDP's bucket sizes are fixed when the wrapper is built, so a sweep cannot vary them; a job built with other
buckets adds its own samples to the same profile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kareus.collect.launch import Points
from kareus.model.profile import KindName, StepSetting
from kareus.schedule import CollectiveKey, Decision, Fingerprint, Path, Schedule

BUDGETS = (4, 8, 16)  # thread blocks; with stock's own they span the curve, each costs a communicator
PAIRED = (8, 16)  # budgets tried for both kinds at once
LAUNCH_SHARES = (0.3, 0.6)  # of the compute a gather may run beside


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One way to run every step; the defaults are stock.

    Attributes:
        label: for people. num_ctas: thread blocks by kind, 0 is the copy engine. serialise: kinds waited
            for at once. separate: reduce-scatters on a communicator of their own.
        launch: gathers start no earlier than at this share of the compute they may run beside; None: stock.
    """

    label: str
    num_ctas: tuple[tuple[KindName, int], ...] = ()
    serialise: tuple[KindName, ...] = ()
    separate: bool = False
    launch: float | None = None

    def as_step(self, workload: str) -> StepSetting:
        """Return it as a profile's sample names it."""
        return StepSetting(
            workload=workload,
            num_ctas=dict(self.num_ctas),
            serialise=self.serialise,
            separate=self.separate,
            launch=self.launch,
        )

    def numbers(self, kinds: Sequence[KindName], default_ctas: int) -> tuple[float, ...]:
        """Return it as coordinates, near where settings are alike: equally many for every setting of a job.

        Args:
            kinds: the job's kinds of collective. default_ctas: thread blocks where nobody says otherwise.
        """
        ctas = dict(self.num_ctas)
        found = [0.0 if self.launch is None else self.launch, float(self.separate)]
        for kind in kinds:
            budget = ctas.get(kind, default_ctas)
            copies = budget == 0
            found += [
                math.log2(default_ctas if copies else budget),
                float(copies),
                float(kind in self.serialise),
            ]
        return tuple(found)


STOCK = Setting(label="stock")


def kinds_of(wrapper: str) -> tuple[KindName, ...]:
    """Return the kinds of collective of a wrapper's steps."""
    return ("all_reduce",) if wrapper == "ddp" else ("all_gather", "reduce_scatter")


def default_settings(
    wrapper: str, capabilities: Mapping[str, Any], *, launch_points: bool = False
) -> tuple[Setting, ...]:
    """Return the grid of settings, those that span it first; stock is not among them.

    Args:
        wrapper: "fsdp2" or "ddp". capabilities: of `kareus.collect.facts.capabilities`.
        launch_points: points inside of what gathers run beside are known.
    """
    kinds = kinds_of(wrapper)
    budgets, copies = bool(capabilities.get("cta_budgets")), bool(capabilities.get("copy_engine"))
    found = [Setting(label="serialised", serialise=kinds)]
    if copies:
        found.append(Setting(label=f"{kinds[0]} by copy engine", num_ctas=((kinds[0], 0),)))
    if budgets:
        found += [_budget(kind, BUDGETS[0]) for kind in kinds]
    if launch_points and len(kinds) > 1:
        found += [Setting(label=f"gathers launched at {s:.0%}", launch=s) for s in reversed(LAUNCH_SHARES)]
    if len(kinds) > 1:
        found += [Setting(label=f"{kind} serialised", serialise=(kind,)) for kind in kinds]
        found.append(Setting(label="separate reduce-scatter group", separate=True))
    if budgets:
        found += [_budget(kind, budget) for budget in BUDGETS[1:] for kind in kinds]
    if budgets and len(kinds) > 1:
        gathers = (*PAIRED, 0) if copies else PAIRED
        found += [
            Setting(label=f"{_words(kinds[0], one)}, {_words(kinds[1], two)}",
                    num_ctas=((kinds[0], one), (kinds[1], two)))
            for one in gathers
            for two in PAIRED
        ]  # fmt: skip
    return tuple(found)


def _budget(kind: KindName, budget: int) -> Setting:
    return Setting(label=_words(kind, budget), num_ctas=((kind, budget),))


def _words(kind: KindName, budget: int) -> str:
    return f"{kind} {budget} CTAs" if budget else f"{kind} by copy engine"


def schedule_for(
    setting: Setting, job: Fingerprint, observed: Sequence[CollectiveKey], points: Points | None = None
) -> Schedule:
    """Return the schedule that gives every collective of a job this setting.

    Args:
        job: its fingerprint. observed: collectives of one of its stock steps, in issue order.
        points: launch points of gathers by share, where the setting moves them.
    """
    ctas = dict(setting.num_ctas)
    moved = {} if setting.launch is None or points is None else points.get(setting.launch, {})
    decisions = []
    for key in observed:
        budget = ctas.get(key.kind)
        decision = Decision(
            collective=key,
            num_ctas=budget or None,
            path=Path.COPY_ENGINE if budget == 0 else Path.NCCL,
            launch=moved.get(key),
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
