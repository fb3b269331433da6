"""Which knobs a job really has: a knob exists in the problem only if the job can turn it.

What `kareus doctor` found where the trace was recorded travels in the manifest, so that a laptop knows
what the cluster can do. A foreign trace without a manifest gets the knobs that need nothing: CTA
budgets, launch points and serialising.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kareus.errors import UsageError

CTA_LADDER = (
    1,
    2,
    4,
    8,
    12,
    16,
    20,
    24,
    32,
)  # NCCL accepts 1..32; the steps a link's bandwidth can tell apart

ClockMode = Literal["off", "advise", "apply"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Knobs:
    """Settings `options` may enumerate.

    Attributes:
        ctas: SM budgets a communicator may be given.
        cta_budgets: communicators with a budget can be made (NCCL config, not overridden by environment).
        copy_engine: all-gathers may travel by the copy engine (capability recorded), inside a host only.
        copy_engine_hosts: the ranks on each host, empty where all share one.
        launch_points: hook points of submodules or units are usable.
        ddp_buckets: the job asks `kareus.ddp_kwargs` for its bucket size when it wraps the model.
        early_gathers: how many of the next step's first all-gathers may start inside the optimizer.
        clocks: "off" leaves clocks to the GPU; "advise" and "apply" let the solver choose one per region.
        switch_time_us, min_dwell_us: of a clock change, from measurement or assumed.
        reasons: knob -> why it is missing, for people.
    """

    ctas: tuple[int, ...] = CTA_LADDER
    cta_budgets: bool = True
    copy_engine: bool = False
    copy_engine_hosts: tuple[tuple[int, ...], ...] = ()
    launch_points: bool = True
    ddp_buckets: bool = False
    early_gathers: int = 0
    clocks: ClockMode = "off"
    switch_time_us: int = 10_000
    min_dwell_us: int = 1_000_000
    reasons: tuple[tuple[str, str], ...] = ()

    def copies(self, group: tuple[int, ...]) -> bool:
        """Whether collectives of a group may travel by the copy engine: its ranks share a host."""
        hosts = self.copy_engine_hosts
        return self.copy_engine and (not hosts or any(set(group) <= set(ranks) for ranks in hosts))


def knobs_from(
    capabilities: Mapping[str, Any], *, clocks: ClockMode = "off", early_gathers: int = 0
) -> Knobs:
    """Return the knobs a manifest's capabilities allow.

    Args:
        capabilities: `Manifest.capabilities`; unknown keys are ignored, missing ones mean "needs nothing
            special, so yes" for budgets and launch points and "not shown to work" for the copy engine.
        clocks, early_gathers: what the caller asked for.

    Raises:
        UsageError: clocks were asked for on a machine that is known to refuse them.
    """
    reasons = []
    if not capabilities.get("cta_budgets", True):
        reasons.append(
            ("cta_budgets", str(capabilities.get("cta_budgets_reason", "not available where recorded")))
        )
    if not capabilities.get("copy_engine", False):
        reasons.append(
            ("copy_engine", str(capabilities.get("copy_engine_reason", "not shown to work where recorded")))
        )
    if clocks == "apply" and capabilities.get("set_clocks") is False:
        raise UsageError(
            'clocks="apply": the machine that recorded this trace may not set clocks '
            f"({capabilities.get('set_clocks_reason', 'no permission')}); use --clocks advise to see what they would bring"
        )
    return Knobs(
        cta_budgets=bool(capabilities.get("cta_budgets", True)),
        copy_engine=bool(capabilities.get("copy_engine", False)),
        copy_engine_hosts=tuple(tuple(ranks) for ranks in capabilities.get("copy_engine_hosts", ())),
        launch_points=bool(capabilities.get("launch_points", True)),
        ddp_buckets=bool(capabilities.get("ddp_buckets", False)),
        early_gathers=early_gathers,
        clocks=clocks,
        switch_time_us=int(float(capabilities.get("clock_switch_ms", 10.0)) * 1000),
        min_dwell_us=int(float(capabilities.get("clock_min_dwell_ms", 1000.0)) * 1000),
        reasons=tuple(reasons),
    )
