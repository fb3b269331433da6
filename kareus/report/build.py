"""Assembles a report from recorded steps, a schedule and two simulations of each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kareus.report.data import (
    Effect,
    FrontierPoint,
    FrontierView,
    RankView,
    ReportData,
    SolverFacts,
    Source,
)
from kareus.report.lanes import breakdown
from kareus.report.numbers import change
from kareus.report.tracks import collective_effects, recorded, simulated
from kareus.report.words import CollectiveEffect, decision_rows, setting_sentences
from kareus.schedule import Schedule
from kareus.trace.identity import collective_key
from kareus.trace.types import I64, PowerSamples, StepGraph


class Simulated(Protocol):
    """What is used of a `kareus.model.simulate.Simulation` of one rank."""

    @property
    def time_us(self) -> float:
        """The predicted step."""

    @property
    def energy_j(self) -> float:
        """Its energy on one GPU."""

    @property
    def op_start_ns(self) -> Sequence[I64]:
        """Start of each op relative to the step's start, one array a rank."""

    @property
    def op_end_ns(self) -> Sequence[I64]:
        """End of each op, likewise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankInput:
    """One rank: its recorded step, and that step simulated as stock and under the schedule.

    Attributes:
        graph: the step. planned_graph: what the schedule was simulated on: the same step, or the step with
            other DDP buckets. stock, scheduled: simulations of this rank by itself, of one graph each.
        power: samples beside the recording, None where none were taken.
    """

    graph: StepGraph
    planned_graph: StepGraph
    stock: Simulated
    scheduled: Simulated
    power: PowerSamples | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What the page says about the job and the model; plain text, for people.

    Attributes:
        subject: the line under the title. verified: the cost model was fitted for this GPU.
        assumptions: what the prediction assumes. notes: about the trace.
        provenance: (what, value) rows. commands: to replay.
        serialised: the step with every collective serialised, None unknown.
        recorded_energy_j: energy of the recorded step, None where it was not recorded.
    """

    subject: str
    verified: bool
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: tuple[tuple[str, str], ...] = ()
    commands: tuple[str, ...] = ()
    serialised: Simulated | None = None
    recorded_energy_j: float | None = None


def build_report(
    ranks: Sequence[RankInput], schedule: Schedule, context: Context, frontier: FrontierView | None = None
) -> ReportData:
    """Return the report.

    Args:
        ranks: the rank that was planned for first; headline, breakdown and effects are its.
        schedule: what was simulated.
        context: texts. frontier: of `kareus solve --frontier`; without it the plot shows simulated points.

    Raises:
        ValueError: no rank.
    """
    if not ranks:
        raise ValueError("a report needs at least one rank")
    views = tuple(_view(rank, schedule) for rank in ranks)
    main = ranks[0]
    graph = main.graph
    stock = predicted(main.stock)
    return ReportData(
        title=_title(graph),
        subject=context.subject,
        verified=context.verified,
        recorded=Effect(
            time_us=graph.duration_ns / 1e3, energy_j=context.recorded_energy_j, source=Source.MEASURED
        ),
        stock=stock,
        scheduled=predicted(main.scheduled),
        bound=_bound(schedule),
        solver=_solver(schedule),
        planned=_planned(schedule),
        before=breakdown(views[0].before),
        stock_parts=breakdown(views[0].baseline),
        after=breakdown(views[0].after),
        ranks=views,
        frontier=frontier if frontier is not None else _simulated_points(main, context.serialised),
        decisions=decision_rows(schedule.decisions, _effects(main, schedule)),
        settings=setting_sentences(schedule),
        composition_error=change(graph.duration_ns / 1e3, stock.time_us),
        parts_error=_parts_error(schedule, stock),
        assumptions=context.assumptions,
        notes=(*schedule.notes, *context.notes),
        provenance=context.provenance,
        commands=context.commands,
    )


def _title(graph: StepGraph) -> str:
    wrapper = {"fsdp2": "FSDP2", "ddp": "DDP"}.get(graph.wrapper, "Training step")
    return f"{wrapper} on {graph.world_size} \u00d7 {graph.gpu or 'unknown GPU'}"


def _view(rank: RankInput, schedule: Schedule) -> RankView:
    stock, after = (
        simulated(graph, *_times(simulation), round(simulation.time_us * 1e3), under)
        for graph, simulation, under in (
            (rank.graph, rank.stock, None),
            (rank.planned_graph, rank.scheduled, schedule),
        )
    )
    before = recorded(rank.graph, rank.power)
    return RankView(rank=rank.graph.rank, before=before, stock=stock, after=after)


def _times(simulation: Simulated) -> tuple[I64, I64]:
    return simulation.op_start_ns[0], simulation.op_end_ns[0]


def predicted(simulation: Simulated) -> Effect:
    """Return time (us) and energy (J) of a simulated step as a figure to show."""
    return Effect(time_us=simulation.time_us, energy_j=simulation.energy_j, source=Source.PREDICTED)


def _effects(rank: RankInput, schedule: Schedule) -> list[CollectiveEffect | None]:
    """For each decision, its collective's fate in the two simulations; None for a bucket that stock has not."""
    if rank.planned_graph is not rank.graph:
        return [None] * len(schedule.decisions)
    found = collective_effects(rank.graph, _times(rank.stock), _times(rank.scheduled))
    by_key = {collective_key(c): e for c, e in zip(rank.graph.collectives, found, strict=True)}
    return [by_key.get(decision.collective) for decision in schedule.decisions]


def _bound(schedule: Schedule) -> Effect | None:
    if schedule.bound is None:
        return None
    return Effect(time_us=schedule.bound.time_us, energy_j=schedule.bound.energy_j, source=Source.BOUND)


def _planned(schedule: Schedule) -> Effect | None:
    plan = schedule.predicted
    if plan is None:
        return None
    return Effect(time_us=plan.time_us, energy_j=plan.energy_j, source=Source.PREDICTED)


def _solver(schedule: Schedule) -> SolverFacts | None:
    """What the solver wrote down; for a schedule without it, the gap by the schedule's own figures."""
    plan, bound, proof = schedule.predicted, schedule.bound, schedule.proof
    if proof is not None:
        return SolverFacts(
            status=proof.status,
            gap=proof.gap if proof.certificate else None,
            certificate=proof.certificate,
            solve_s=proof.solve_s,
        )
    if plan is None:
        return None
    if bound is None:
        return SolverFacts(status="no proof")
    if bound.energy_j is not None and plan.energy_j:
        gap = (plan.energy_j - bound.energy_j) / plan.energy_j
    else:
        gap = (plan.time_us - bound.time_us) / plan.time_us if plan.time_us else 0.0
    return SolverFacts(status="proven bound", gap=gap)


def _parts_error(schedule: Schedule, stock: Effect) -> float | None:
    """The stock step as the sum of its spans, which the solver works with, against the simulated whole."""
    return change(stock.time_us, schedule.stock.time_us) if schedule.stock is not None else None


def _simulated_points(rank: RankInput, serialised: Simulated | None) -> FrontierView:
    def point(simulation: Simulated) -> FrontierPoint:
        return FrontierPoint(time_us=simulation.time_us, energy_j=simulation.energy_j)

    return FrontierView(
        points=(),
        stock=point(rank.stock),
        serialised=point(serialised) if serialised is not None else None,
        chosen=point(rank.scheduled),
    )
