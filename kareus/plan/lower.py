"""Turns a solution back into a Schedule: choices of options into decisions about collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from kareus.plan.problem import StepProblem
from kareus.schedule import ClockRegion, Decision, Effect, LaunchPoint, Path, Proof, Schedule
from kareus.trace.identity import collective_key, fingerprint
from kareus.trace.types import Phase, SpanCollective


@dataclass(frozen=True, kw_only=True, slots=True)
class Effects:
    """Figures written into a schedule; see Schedule."""

    stock: Effect
    predicted: Effect
    bound: Effect | None
    proof: Proof | None = None


def lower(
    step: StepProblem,
    choices: tuple[int, ...],
    effects: Effects,
    *,
    conditions: dict[str, str] | None = None,
    notes: tuple[str, ...] = (),
) -> Schedule:
    """Return the schedule of a plan.

    Args:
        step: the problem. choices: option index of each span.
        effects: what the schedule claims.
        conditions: versions and hardware of the recording, for warnings at attach.
        notes: sentences for people.
    """
    rows = tuple(
        int(step.tables[kind].row[choice]) for kind, choice in zip(step.problem.chain, choices, strict=True)
    )
    return Schedule(
        fingerprint=fingerprint(step.graph, conditions),
        decisions=decisions_of(step, rows),
        clocks=_clock_regions(step, choices),
        stock=effects.stock,
        predicted=effects.predicted,
        bound=effects.bound,
        proof=effects.proof,
        verified=step.cost.verified,
        notes=notes,
    )


def decisions_of(step: StepProblem, rows: tuple[int, ...]) -> tuple[Decision, ...]:
    """Return what differs from stock, in issue order.

    Args:
        step: the problem. rows: setting of each span, a row of its table's `settings`.
    """
    decisions: list[Decision] = []
    for span, kind, row in zip(step.spans, step.problem.chain, rows, strict=True):
        table = step.tables[kind]
        for slot, member in enumerate(span.collectives):
            decision = _decision(
                step,
                member,
                num_ctas=int(table.settings.num_ctas[row, slot]),
                stock_ctas=int(table.settings.num_ctas[table.stock_row, slot]),
                position=int(table.settings.position[row, slot]),
                serialise=bool(table.settings.serialise[row]),
            )
            if decision is not None and not decision.is_stock:
                decisions.append(decision)
    return tuple(decisions)


def _decision(
    step: StepProblem,
    member: SpanCollective,
    *,
    num_ctas: int,
    stock_ctas: int,
    position: int,
    serialise: bool,
) -> Decision | None:
    key = collective_key(step.graph.collectives[member.row])
    if key is None:
        return None
    return Decision(
        collective=key,
        num_ctas=num_ctas if num_ctas not in (0, stock_ctas) else None,
        path=Path.COPY_ENGINE if num_ctas == 0 else Path.NCCL,
        launch=_launch_point(member, position),
        serialise=serialise,
    )


def _launch_point(member: SpanCollective, position: int) -> LaunchPoint | None:
    """The hook point of a position; None where it is stock's own."""
    text = dict(zip(member.positions, member.points, strict=True)).get(position, "")
    if position == member.stock or not text:
        return None
    side, module, phase = text.split("|")
    return LaunchPoint(
        module=module,
        phase=cast("Literal['forward', 'backward']", phase),
        side=cast("Literal['before', 'after']", side),
    )


def _clock_regions(step: StepProblem, choices: tuple[int, ...]) -> tuple[ClockRegion, ...]:
    """Runs of spans at one clock, named by the first unit of each run; none where clocks are not chosen.

    The optimizer begins after the root's backward. What lies in no phase has no hook to begin a region at and
    keeps the clock of what came before.
    """
    if step.problem.uniform_clock:
        return ()
    clocks = [
        step.problem.clocks_mhz[step.tables[kind].kind.options[choice].clock]
        for kind, choice in zip(step.problem.chain, choices, strict=True)
    ]
    if len(set(clocks)) == 1:
        return (ClockRegion(sm_clock_mhz=clocks[0]),)
    regions = []
    previous = clocks[-1]  # the step repeats: what the last step ended with
    for span, clock in zip(step.spans, clocks, strict=True):
        if span.phase == Phase.OTHER:
            continue
        if clock != previous:
            phase: Literal["forward", "backward"] = "forward" if span.phase == Phase.FORWARD else "backward"
            side: Literal["before", "after"] = (
                "before" if span.phase in (Phase.FORWARD, Phase.BACKWARD) else "after"
            )
            unit = span.unit if side == "before" else ""
            regions.append(
                ClockRegion(start=LaunchPoint(module=unit, phase=phase, side=side), sm_clock_mhz=clock)
            )
        previous = clock
    return tuple(regions)
