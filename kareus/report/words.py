"""Decisions in words: what changes for each collective, equal changes of many layers in one row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kareus.report.data import DecisionRow
from kareus.report.numbers import ARROW, MINUS, ms
from kareus.schedule import ClockRegion, Decision, LaunchPoint, Path, Schedule

_KINDS = {"all_gather": "all-gather", "reduce_scatter": "reduce-scatter", "all_reduce": "all-reduce"}
_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")  # a path component that is a number


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveEffect:
    """How one collective fares: durations and exposed parts in microseconds, before and after."""

    duration_us: tuple[float, float]
    exposed_us: tuple[float, float]


def decision_rows(
    decisions: Sequence[Decision], effects: Sequence[CollectiveEffect | None] | None = None
) -> tuple[DecisionRow, ...]:
    """Return one row for each group of collectives that change alike, in order of first appearance.

    Collectives are alike when kind, phase and change are equal and their units differ in one layer number
    only; launch points are compared relative to that number.

    Args:
        decisions: of a schedule; those equal to stock are left out.
        effects: for each decision, what the simulation says, None unknown. Rows add them up.
    """
    known = effects if effects is not None else [None] * len(decisions)
    groups: dict[tuple[str, str, str, str], list[tuple[Decision, CollectiveEffect | None]]] = {}
    for decision, effect in zip(decisions, known, strict=True):
        if decision.is_stock:
            continue
        key = decision.collective
        group = (key.kind, key.phase, _template(key.unit), _change(decision, absolute=False))
        groups.setdefault(group, []).append((decision, effect))
    return tuple(
        DecisionRow(
            what=f"{_KINDS[kind]}, {phase}, {_units([d.collective.unit for d, _ in members])}",
            count=len(members),
            change=change if len(members) > 1 else _change(members[0][0], absolute=True),
            effect=_effect([e for _, e in members if e is not None], len(members)),
        )
        for (kind, phase, _, change), members in groups.items()
    )


def setting_sentences(schedule: Schedule) -> tuple[str, ...]:
    """Return one sentence for each change that concerns the whole step."""
    found = []
    for name, depth in (("forward", schedule.forward_prefetch), ("backward", schedule.backward_prefetch)):
        if depth is not None:
            found.append(f"Gathers {_count(depth, 'unit')} ahead in the {name} pass.")
    if schedule.early_gathers:
        found.append(
            f"Gathers the first {_count(schedule.early_gathers, 'unit')} of the next step inside the optimizer's step."
        )
    if schedule.reduce_scatter_deferral:
        found.append(f"Issues reduce-scatters {_count(schedule.reduce_scatter_deferral, 'unit')} late.")
    if schedule.separate_reduce_scatter_group:
        found.append("Gives reduce-scatters a communicator of their own.")
    if schedule.ddp_bucket_cap_mb is not None:
        found.append(f"Sets DDP's bucket size to {schedule.ddp_bucket_cap_mb:g} MB.")
    if schedule.ddp_bucket_cap_mb_list:
        sizes = ", ".join(f"{size:g}" for size in schedule.ddp_bucket_cap_mb_list)
        found.append(f"Sets DDP's bucket sizes one by one: {sizes} MB.")
    if schedule.compute_sm_margin:
        found.append(f"Keeps {_count(schedule.compute_sm_margin, 'SM')} free of matrix products.")
    found += [_clock_sentence(region) for region in schedule.clocks]
    for part in schedule.rank_clocks:
        ranks = f"Rank{'s' if len(part.ranks) > 1 else ''} {', '.join(map(str, part.ranks))}: "
        found += [ranks + _clock_sentence(region) for region in part.clocks] or [ranks + "clocks left alone."]
    return tuple(found)


def _change(decision: Decision, *, absolute: bool) -> str:
    parts = []
    if decision.path is Path.COPY_ENGINE:
        parts.append("travels by copy engine, no SMs")
    if decision.num_ctas is not None:
        parts.append(f"at most {_count(decision.num_ctas, 'CTA')}")
    if decision.launch is not None:
        point = str(decision.launch) if absolute else _relative(decision.launch, decision.collective.unit)
        parts.append(f"starts {point}")
    if decision.serialise:
        parts.append("runs alone: compute waits for it at once")
    return "; ".join(parts)


def _template(unit: str) -> str:
    return _INDEX.sub("#", unit, count=1)


def _relative(point: LaunchPoint, unit: str) -> str:
    """Return a launch point in words, its layer number relative to the unit's where both have one."""
    mine, theirs = _INDEX.search(unit), _INDEX.search(point.module)
    module = point.module or "root"
    if mine and theirs and unit[: mine.start()] == point.module[: theirs.start()]:
        offset = int(theirs.group()) - int(mine.group())
        # A true minus sign does not break the line, a hyphen would.
        layer = "n" if offset == 0 else f"n{offset:+d}".replace("-", MINUS)
        module = f"{point.module[: theirs.start()]}({layer}){point.module[theirs.end() :]}"
    return f"{point.side} {module} ({point.phase})"


def _units(units: Iterable[str]) -> str:
    """Return "blocks.1 to blocks.7" for an unbroken run of layers, else the names, some of many."""
    names = list(dict.fromkeys(unit or "root" for unit in units))
    numbers = [int(m.group()) for name in names if (m := _INDEX.search(name))]
    if len(numbers) == len(names) > 2 and sorted(numbers) == list(range(min(numbers), max(numbers) + 1)):
        low, high = numbers.index(min(numbers)), numbers.index(max(numbers))
        return f"{names[low]} to {names[high]}"
    if len(names) > 4:
        return ", ".join(names[:3]) + f" and {len(names) - 3} more"
    return ", ".join(names)


def _effect(effects: list[CollectiveEffect], count: int) -> str:
    if len(effects) != count or not effects:
        return ""
    lasts = [sum(e.duration_us[i] for e in effects) / count for i in (0, 1)]
    exposed = [sum(e.exposed_us[i] for e in effects) for i in (0, 1)]
    each = "lasts" if count == 1 else "lasts on average"
    return f"{each} {_from_to(lasts)}; exposed {'' if count == 1 else 'in all '}{_from_to(exposed)}"


def _from_to(pair: Sequence[float]) -> str:
    return f"{ms(pair[0])} {ARROW} {ms(pair[1])}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _clock_sentence(region: ClockRegion) -> str:
    parts = []
    if region.sm_clock_mhz is not None:
        parts.append(f"SM clock {region.sm_clock_mhz} MHz")
    if region.memory_clock_mhz is not None:
        parts.append(f"memory clock {region.memory_clock_mhz} MHz")
    if region.power_limit_w is not None:
        parts.append(f"power limit {region.power_limit_w:g} W")
    where = f"from {region.start} on" if region.start is not None else "for the whole run"
    return f'Asks for {", ".join(parts) or "default clocks"} {where}; carried out only with clocks="apply".'
