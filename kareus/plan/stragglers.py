"""What the ranks that wait for a slower one could do with the time: run at a lower clock.

What collectives do must be the same on all ranks; clocks need not be. So the use of slack becomes clock
regions of single ranks (`Schedule.rank_clocks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from kareus.errors import InputError
from kareus.model.cost import CostModel
from kareus.model.simulate import Simulation, simulate
from kareus.schedule import ClockRegion, RankClocks, Schedule
from kareus.trace.identity import fingerprint
from kareus.trace.intervals import intersection_ns, length, union
from kareus.trace.ranks import Alignment
from kareus.trace.types import OpKind, StepGraph, Trace

LEVELS = 12  # clocks tried between half the settled clock and the settled clock
USABLE = 0.8  # share of the measured wait that may be used: steps vary, and who is late changes


@dataclass(frozen=True, kw_only=True, slots=True)
class SlackUse:
    """What one rank could do with its slack.

    Attributes:
        rank: global rank. wait_us: waited for others in one step, measured.
        sm_clock_mhz: lowest-energy clock that stays within the slack, None where the settled clock is best.
        slower_us: predicted lengthening of its own work. saved_j: predicted saving a step.
    """

    rank: int
    wait_us: float
    sm_clock_mhz: int | None
    slower_us: float
    saved_j: float


def idle_wait_us(trace: Trace, alignment: Alignment) -> float:
    """Return how long a rank computed nothing because another rank had not arrived, us in a step.

    Waiting beside compute is no slack: the collective is late, the rank is not idle.

    Args:
        trace: one rank's. alignment: of its job; `wait_ns` counts until the last rank arrived.
    """
    rows = [
        (int(m.start_ns[i]), int(m.start_ns[i] + m.wait_ns[i]))
        for m in alignment.collectives
        for i in np.flatnonzero(m.ranks == trace.rank)
    ]
    if not rows or not trace.steps:
        return 0.0
    starts, ends = np.array(rows, np.int64).T - alignment.offset_ns.get(trace.rank, 0)
    ops = trace.ops
    compute = ops.kind != OpKind.COLLECTIVE
    waits, busy = union(starts, ends), union(ops.start_ns[compute], ops.end_ns[compute])
    return (length(waits) - intersection_ns(waits, busy)) / len(trace.steps) / 1e3


def use_slack(graph: StepGraph, wait_us: float, cost: CostModel) -> SlackUse:
    """Find the clock of one waiting rank.

    Args:
        graph: its step. wait_us: how long it waited for other ranks in a step. cost: fitted or assumed.

    Returns:
        The use; energy is compared over the same step time, since everybody leaves the step together.

    Raises:
        InputError: a negative wait.
    """
    if wait_us < 0:
        raise InputError(f"rank {graph.rank}: expected a wait of 0 us or more, found {wait_us:g}")
    stock = simulate([graph], None, cost)
    best = SlackUse(rank=graph.rank, wait_us=wait_us, sm_clock_mhz=None, slower_us=0.0, saved_j=0.0)
    for clock in _levels(stock.sm_clock_mhz, cost["min_clock_mhz"]):
        region = ClockRegion(sm_clock_mhz=clock)
        slower = simulate(
            [graph], Schedule(fingerprint=fingerprint(graph), decisions=(), clocks=(region,)), cost
        )
        added_us = slower.time_us - stock.time_us
        if added_us > USABLE * wait_us:
            break
        saved_j = _dynamic_j(stock) - _dynamic_j(slower)
        if saved_j > best.saved_j:
            best = SlackUse(
                rank=graph.rank, wait_us=wait_us, sm_clock_mhz=clock, slower_us=added_us, saved_j=saved_j
            )
    return best


def with_slack_used(schedule: Schedule, uses: Sequence[SlackUse]) -> Schedule:
    """Return the schedule in which ranks with slack run no faster than their slack asks for.

    Args:
        schedule: its own regions, where it has some, are capped rather than replaced.
        uses: of the ranks that wait; those without a clock change nothing.
    """
    by_regions: dict[tuple[ClockRegion, ...], list[int]] = {}
    for use in uses:
        if use.sm_clock_mhz is not None:
            capped = _capped(schedule.clocks, use.sm_clock_mhz)
            if capped != schedule.clocks:
                by_regions.setdefault(capped, []).append(use.rank)
    parts = tuple(
        RankClocks(ranks=tuple(sorted(ranks)), clocks=clocks) for clocks, ranks in by_regions.items()
    )
    saved_j = sum(use.saved_j for use in uses if any(use.rank in part.ranks for part in parts))
    notes = schedule.notes
    if parts:
        notes = (
            *notes,
            f"{sum(len(p.ranks) for p in parts)} rank(s) that wait for a slower one run at lower clocks of their "
            f"own: {saved_j:.2f} J a step less in all, predicted, beside what `predicted` says of one rank",
        )
    return msgspec.structs.replace(schedule, rank_clocks=parts, notes=notes)


def _capped(regions: tuple[ClockRegion, ...], sm_clock_mhz: int) -> tuple[ClockRegion, ...]:
    """Regions with no SM clock above a cap, from the step's start on."""
    if not regions or regions[0].start is not None:
        regions = (ClockRegion(), *regions)
    return tuple(
        msgspec.structs.replace(region, sm_clock_mhz=min(region.sm_clock_mhz or sm_clock_mhz, sm_clock_mhz))
        for region in regions
    )


def _levels(settled_mhz: float, lowest_mhz: float) -> Sequence[int]:
    low = max(lowest_mhz, settled_mhz / 2)
    return [round(settled_mhz - (settled_mhz - low) * i / LEVELS) for i in range(1, LEVELS + 1)]


def _dynamic_j(simulation: Simulation) -> float:
    """Energy without what is drawn by doing nothing, which the whole job's step time decides."""
    return simulation.energy_j - simulation.region_energy_j.get("static", 0.0)
