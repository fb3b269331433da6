"""`kareus report`: one HTML page and one Perfetto file of a step before and after."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

from kareus import __version__
from kareus.cli.clusters import Scaled, add_cluster_arguments, clusters_of, scale, scaling_rows
from kareus.cli.inputs import (
    StepInput,
    add_step_arguments,
    read_step,
    with_recorded_buckets,
    with_scheduled_buckets,
)
from kareus.cli.simulate import check_fits
from kareus.errors import UsageError
from kareus.model.cluster import assumptions
from kareus.model.simulate import simulate
from kareus.report.build import Context, RankInput, build_report
from kareus.report.data import ReportData
from kareus.report.frontier_file import read_frontier
from kareus.report.html import render
from kareus.report.numbers import joules, ms
from kareus.report.perfetto import chrome_json
from kareus.schedule import Decision, Schedule
from kareus.schema import write_bytes
from kareus.trace.graph import graphs
from kareus.trace.identity import collective_key

MAX_RANKS = 8  # timelines on one page; more would make it heavy and nobody compares them by eye


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "report",
        help="one HTML page: the step before and after, and why",
        description="Write one self-contained HTML page about a schedule: the step before and after, stream "
        "by stream, the time-energy frontier, every decision in words, and how far to trust the prediction.",
        epilog="example: kareus report traces/fsdp2-nvlink-default --schedule schedule.json "
        "--frontier frontier.json -o report.html --perfetto step.json",
        allow_abbrev=False,
    )
    add_step_arguments(parser)
    parser.add_argument("--schedule", metavar="FILE", required=True, help="the schedule (kareus.schedule/1)")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="report.html", help="the page (report.html)"
    )
    parser.add_argument("--frontier", metavar="FILE", help="frontier written by `kareus solve --frontier`")
    parser.add_argument("--perfetto", metavar="FILE", help="also write both steps for ui.perfetto.dev")
    parser.add_argument(
        "--policies", action="store_true", help="also compare published policies on this step (takes longer)"
    )
    add_cluster_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate, write the files, print where they are."""
    if args.perfetto is not None and args.perfetto == args.output:
        raise UsageError(f"--perfetto and -o both name {args.output}; give each a file of its own")
    clusters = clusters_of(args) if args.ranks is not None else []
    schedule = Schedule.load(args.schedule)
    frontier = read_frontier(args.frontier) if args.frontier else None
    step = read_step(args)
    check_fits(schedule, step, args.schedule)
    ranks = _ranks(step, schedule)
    report = build_report(ranks, schedule, _context(args, step, schedule, ranks), frontier)
    if clusters:
        report = _with_clusters(report, scale(step, with_recorded_buckets(schedule), clusters))
    if args.policies:
        report = _with_policies(report, step)
    write_bytes(args.output, render(report).encode())
    print(f"report: {args.output}")
    if args.perfetto:
        about = dict(report.provenance)
        write_bytes(args.perfetto, chrome_json(report.ranks, base_ns=step.graph.start_ns, about=about))
        print(f"timeline: {args.perfetto} (open it at ui.perfetto.dev)")
    return 0


def _ranks(step: StepInput, schedule: Schedule) -> list[RankInput]:
    """The planned rank first, then the others in order; a rank whose step is missing is left out."""
    chosen = step.graph
    others = [rank for rank in step.traces.ranks if rank != chosen.rank][: MAX_RANKS - 1]
    found = []
    for rank in (chosen.rank, *others):
        trace = step.traces.load(rank)
        for graph in graphs(trace):
            if graph.index == chosen.index:
                planned = with_scheduled_buckets(graph, schedule, step.traces)
                found.append(
                    RankInput(
                        graph=graph,
                        planned_graph=planned,
                        stock=simulate([graph], None, step.cost),
                        scheduled=simulate([planned], schedule, step.cost),
                        power=trace.power,
                    )
                )
    return found


def _context(
    args: argparse.Namespace, step: StepInput, schedule: Schedule, ranks: list[RankInput]
) -> Context:
    graph, cost = step.graph, step.cost
    profile = f" --profile {args.profile}" if args.profile else ""
    where = f"{args.directory}{profile} --schedule {args.schedule}"
    return Context(
        subject=f"{args.directory}, step {graph.index}, rank {graph.rank} of {graph.world_size}",
        verified=cost.verified and not step.profile_note.startswith("unverified"),
        assumptions=_assumptions(step),
        notes=_notes(step, ranks),
        provenance=tuple(
            (name, value)
            for name, value in (
                ("trace", str(step.traces.files[graph.rank])),
                ("schedule", f"{args.schedule}, digest {schedule.digest()}"),
                ("profile", args.profile or "none"),
                ("frontier", args.frontier or "none"),
                *step.conditions.items(),
                ("Kareus", __version__),
            )
            if value
        ),
        commands=(
            f"kareus simulate {where}",
            f"kareus run --schedule {args.schedule} -- torchrun --nproc-per-node {graph.world_size} train.py",
        ),
        serialised=simulate([graph], _all_serialised(step, schedule), cost),
    )


def _all_serialised(step: StepInput, schedule: Schedule) -> Schedule:
    """The schedule of the plot's third reference: nothing runs beside any collective."""
    keys = dict.fromkeys(collective_key(c) for c in step.graph.collectives)
    decisions = tuple(Decision(collective=key, serialise=True) for key in keys if key is not None)
    return Schedule(fingerprint=schedule.fingerprint, decisions=decisions)


def _assumptions(step: StepInput) -> tuple[str, ...]:
    cost = step.cost
    counts: dict[str, int] = {}
    for constant in cost.constants.values():
        counts[str(constant.source)] = counts.get(str(constant.source), 0) + 1
    sources = ", ".join(f"{count} {source}" for source, count in sorted(counts.items()))
    power = [
        f"{words} {cost[name]:.0f} W ({cost.constants[name].source})"
        for words, name in (("static power", "static_power_w"), ("power limit", "power_limit_w"))
    ]
    return (
        f"Costs: {step.profile_note}.",
        f"The cost model has {len(cost.constants)} constants: {sources}.",
        f"Power: {power[0]}, {power[1]}; the clock of the step follows from both unless a schedule sets it.",
        "Each rank is simulated by itself: other ranks are as late as they were when the trace was recorded.",
        *cost.notes,
    )


def _notes(step: StepInput, ranks: list[RankInput]) -> tuple[str, ...]:
    notes = [warning.text for warning in step.traces.warnings]
    manifest = step.traces.manifest
    if manifest is not None and "step_ms" in manifest.measured:
        said = f"Without the profiler this job's step took {ms(manifest.measured['step_ms'] * 1e3, 1)}"
        if "energy_j" in manifest.measured:
            said += f" and {joules(manifest.measured['energy_j'], 1)} per GPU"
        notes.append(f"{said} (measured, from the recording's manifest).")
    left_out = len(step.traces.ranks) - len(ranks)
    if left_out > 0:
        notes.append(f"{left_out} more ranks were recorded and are not drawn.")
    for rank in ranks[:1]:
        notes += getattr(rank.scheduled, "notes", ())
    return tuple(notes)


def _with_clusters(report: ReportData, rows: list[Scaled]) -> ReportData:
    """Add the scaled rows, and what they assume to the page's assumptions."""
    assumed = dict.fromkeys(text for row in rows for text in assumptions(row.cluster))
    return replace(report, scaling=scaling_rows(rows), assumptions=(*report.assumptions, *assumed))


def _with_policies(report: ReportData, step: StepInput) -> ReportData:
    """Import the comparison only when asked for: it needs the solver."""
    from kareus.cli.compare import policy_rows
    from kareus.plan.policies.ground import compare_step

    print("comparing policies ...", file=sys.stderr)
    capabilities = step.traces.manifest.capabilities if step.traces.manifest else {}
    return replace(report, policies=policy_rows(compare_step(step.graph, step.cost, capabilities)))
