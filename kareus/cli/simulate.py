"""`kareus simulate`: what a schedule would do to the recorded step, without asking the solver."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from kareus.cli.clusters import add_cluster_arguments, clusters_of, scale, scaling_document
from kareus.cli.inputs import (
    StepInput,
    add_step_arguments,
    read_step,
    with_recorded_buckets,
    with_scheduled_buckets,
)
from kareus.errors import MismatchError, UsageError
from kareus.model.simulate import Simulation, simulate
from kareus.report.tables import print_scaling, print_simulate
from kareus.schedule import Schedule
from kareus.trace.identity import fingerprint


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "simulate",
        help="predict a step under a schedule",
        description="Simulate the recorded step as it was and under a schedule, kernel by kernel, independently of "
        "the solver; with --ranks also on clusters that nobody recorded.",
        epilog="examples: kareus simulate traces/fsdp2-nvlink-default --profile traces/profiles/h200-nvlink.json "
        "--schedule schedule.json; kareus simulate traces/fsdp2-nvlink-default --ranks 64,1024 --hosts 8,128 "
        "--link-gbps 3200",
        allow_abbrev=False,
    )
    add_step_arguments(parser)
    parser.add_argument(
        "--schedule",
        metavar="FILE",
        help="the schedule (kareus.schedule/1); with --ranks it may be left out, and each cluster is solved for",
    )
    add_cluster_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate and print; see the parser's help."""
    if args.schedule is None and args.ranks is None:
        raise UsageError("expected --schedule FILE, --ranks N, or both; found neither")
    clusters = clusters_of(args) if args.ranks is not None else []
    schedule = Schedule.load(args.schedule) if args.schedule is not None else None
    step = read_step(args)
    if schedule is not None:
        check_fits(schedule, step, args.schedule)
    stock = simulate([step.graph], None, step.cost)
    scheduled = None
    if schedule is not None:
        scheduled = simulate([with_scheduled_buckets(step.graph, schedule, step.traces)], schedule, step.cost)
        schedule = with_recorded_buckets(schedule)
    document = simulate_document(step, stock, scheduled)
    if clusters:
        document["scaling"] = scaling_document(scale(step, schedule, clusters), _figures)
    if args.json:
        print(json.dumps(document, indent=1))
    else:
        print(step.profile_note, file=sys.stderr)
        if scheduled is not None:
            print_simulate(document)
        if clusters:
            print_scaling(document)
    return 0


def check_fits(schedule: Schedule, step: StepInput, where: str) -> None:
    """Refuse a schedule made for another job than the one recorded.

    Raises:
        MismatchError: names every difference.
    """
    differences = schedule.fingerprint.differences(fingerprint(step.graph))
    if differences:
        shown = "; ".join(differences[:5]) + (
            f"; and {len(differences) - 5} more" if len(differences) > 5 else ""
        )
        raise MismatchError(f"{where} does not fit the recorded job: {shown}. Solve this trace again")


def simulate_document(step: StepInput, stock: Simulation, scheduled: Simulation | None) -> dict[str, Any]:
    """Return the `kareus.simulate/1` document; "scheduled" is null where only clusters were asked for."""
    measured_us = step.graph.duration_ns / 1000
    return {
        "schema": "kareus.simulate/1",
        "stock": _figures(stock),
        "scheduled": _figures(scheduled) if scheduled is not None else None,
        "measured": {"time_us": measured_us},
        "composition_error": stock.time_us / measured_us - 1,
        "verified": step.cost.verified,
        "costs": step.profile_note,
        "rank": step.graph.rank,
        "step": step.graph.index,
    }


def _figures(simulation: Simulation) -> dict[str, float]:
    names = (
        "time_us", "energy_j", "compute_us", "comm_us", "exposed_comm_us", "idle_us", "average_power_w",
        "sm_clock_mhz", "peak_gathered_bytes",
    )  # fmt: skip
    return {name: float(getattr(simulation, name)) for name in names}
