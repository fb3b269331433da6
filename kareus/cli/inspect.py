"""`kareus inspect`: what each rank's step consists of, and what its GPU waits for."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from kareus.cli.inputs import add_execution_argument, read_cost
from kareus.errors import InputError, UsageError
from kareus.model.calibrate import calibrated
from kareus.plan.stragglers import idle_wait_us, use_slack
from kareus.report.observed import observed_document, print_observed
from kareus.schedule import Schedule
from kareus.trace.graph import graphs
from kareus.trace.ranks import TraceSet
from kareus.trace.stats import CollectiveRow, StepTimes, collective_rows, step_times
from kareus.trace.types import CollectiveOp, StepGraph, Trace

ALIGN_UP_TO = 64  # reading every rank of a larger job takes minutes; ask for it with --align


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "inspect",
        help="show what a recorded step consists of",
        description="Show, per rank, the steps found, their compute, communication, exposed communication and idle "
        "time, and one row per collective of a step.",
        epilog="example: kareus inspect traces/fsdp2-nvlink-default --rank 0",
        allow_abbrev=False,
    )
    parser.add_argument(
        "directory", metavar="DIR", help="directory with one trace file per rank, or one file"
    )
    add_execution_argument(parser)
    parser.add_argument(
        "--rank",
        type=int,
        action="append",
        help="only this rank (may be repeated); also names a single file's",
    )
    parser.add_argument("--step", type=int, help="step whose collectives are listed (default: the last)")
    parser.add_argument(
        "--align", action="store_true", help=f"match collectives across more than {ALIGN_UP_TO} ranks too"
    )
    parser.add_argument(
        "--slack",
        action="store_true",
        help="also say at which clock ranks that wait for others could run instead (assumed costs, or --profile)",
    )
    parser.add_argument(
        "--profile", metavar="FILE", help="with --slack: measured profile of this kind of GPU"
    )
    parser.add_argument(
        "--schedule",
        metavar="FILE",
        help="a schedule that was in force when this was recorded (kareus run --schedule FILE --collect DIR): "
        "show requested and observed budgets, paths and launch points",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Inspect and print; see the parser's help."""
    only = args.rank[0] if args.rank and len(args.rank) == 1 else None
    traces = TraceSet.open(args.directory, execution=args.execution_trace, rank=only)
    wanted = tuple(args.rank or traces.ranks)
    absent = [rank for rank in wanted if rank not in traces.ranks]
    if absent:
        raise UsageError(
            f"--rank {absent[0]}: {args.directory} holds ranks {', '.join(map(str, traces.ranks))}"
        )
    schedule = Schedule.load(args.schedule) if args.schedule else None
    document: dict[str, Any] = {"schema": "kareus.inspect/1", "world_size": traces.world_size, "ranks": []}
    # A pipe has no width: give tables room instead of folding them at 80 columns.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    for rank in wanted:
        trace = traces.load(rank)
        steps = graphs(trace)
        if not steps:
            raise InputError(f"{trace.path}: no complete training step in it; record at least two")
        index = len(steps) - 1 if args.step is None else args.step
        if not 0 <= index < len(steps):
            raise UsageError(f"--step {args.step}: rank {rank} holds steps 0..{len(steps) - 1}")
        times, rows = [step_times(step) for step in steps], collective_rows(steps[index])
        document["ranks"].append(_rank_document(trace, steps, times, rows, index))
        if schedule is not None:
            document["ranks"][-1]["under_schedule"] = observed_document(steps[index], schedule)
        if not args.json:
            _print_rank(
                console, trace, times, rows, index, show_rows=rank == wanted[0] or args.rank is not None
            )
            if schedule is not None:
                print_observed(document["ranks"][-1]["under_schedule"])
    if len(traces.ranks) > 1 and (len(traces.ranks) <= ALIGN_UP_TO or args.align):
        document["alignment"] = _alignment_document(traces)
        if not args.json:
            _print_alignment(console, document["alignment"])
        if args.slack:
            document["slack"] = _slack_document(traces, wanted, args.profile)
            if not args.json:
                _print_slack(console, document["slack"])
    document["warnings"] = [{"code": w.code, "count": w.count, "text": w.text} for w in traces.warnings]
    for warning in traces.warnings:
        print(f"warning: {warning.text}", file=sys.stderr)
    if args.json:
        print(json.dumps(document, indent=1))
    return 0


def _rank_document(
    trace: Trace, steps: list[StepGraph], times: list[StepTimes], rows: list[CollectiveRow], index: int
) -> dict[str, Any]:
    return {
        "rank": trace.rank,
        "file": trace.path,
        "gpu": trace.gpu,
        "num_sms": trace.num_sms,
        "wrapper": steps[0].wrapper,
        "steps_from": trace.steps_from,
        "execution_trace": asdict(trace.execution) if trace.execution else None,
        "steps": [
            {name: round(getattr(t, name), 3) for name in StepTimes.__dataclass_fields__} for t in times
        ],
        "collectives_of_step": index,
        "collectives": [_row_document(row) for row in rows],
    }


def _row_document(row: CollectiveRow) -> dict[str, Any]:
    c = row.collective
    return {
        "kind": c.kind.name.lower(),
        "phase": c.phase.name.lower(),
        "unit": c.unit,
        "bytes": c.num_bytes,
        "dtype": c.dtype,
        "group": c.group_name or c.group_description,
        "group_size": c.group_size,
        "group_ranks": list(c.group),
        "sequence": c.sequence if c.sequence >= 0 else None,
        "num_ctas": c.num_ctas,
        "path": c.path,
        "start_us": round(row.start_us, 3),
        "duration_us": round(row.duration_us, 3),
        "exposed_us": round(row.exposed_us, 3),
        "beside": {
            name: {"time_us": round(time_us, 3), "slowdown": None if math.isnan(slow) else round(slow, 3)}
            for name, (time_us, slow) in row.beside.items()
        },
    }


def _alignment_document(traces: TraceSet) -> dict[str, Any]:
    alignment = traces.alignment
    transfer = [m.transfer_ns / 1000 for m in alignment.collectives]
    return {
        "offset_us": {str(r): o / 1000 for r, o in alignment.offset_ns.items()},
        "uncertainty_us": {str(r): u / 1000 for r, u in alignment.uncertainty_ns.items()},
        "matched_collectives": len(alignment.collectives),
        "transfer_us": round(sum(transfer), 3),
        "transfer_is": "exact" if alignment.complete else "an upper bound",
        "wait_us": {
            str(rank): round(
                sum(
                    float(m.wait_ns[list(m.ranks).index(rank)])
                    for m in alignment.collectives
                    if rank in m.ranks
                )
                / 1000,
                3,
            )
            for rank in traces.ranks
        },
        "stragglers": {str(r): round(s, 3) for r, s in alignment.stragglers().items()},
    }


def _slack_document(traces: TraceSet, ranks: tuple[int, ...], profile: str | None) -> list[dict[str, Any]]:
    """What each rank could do with the time in which it computes nothing and waits for a later one."""
    rows = []
    for rank in ranks:
        trace = traces.load(rank)
        graph = graphs(trace)[-1]
        cost, note = read_cost(profile, graph)
        use = use_slack(graph, idle_wait_us(trace, traces.alignment), calibrated(cost, graph))
        rows.append({**asdict(use), "source": "predicted", "costs": note})
    return rows


def _print_slack(console: Console, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        text = f"rank {row['rank']} idles {row['wait_us'] / 1000:.2f} ms a step for later ranks (measured)"
        if row["sm_clock_mhz"] is not None:
            text += (
                f"; at {row['sm_clock_mhz']} MHz it would take {row['slower_us'] / 1000:.2f} ms longer and "
                f"save {row['saved_j']:.2f} J (predicted)"
            )
        console.print(text)


def _print_rank(
    console: Console,
    trace: Trace,
    times: list[StepTimes],
    rows: list[CollectiveRow],
    index: int,
    *,
    show_rows: bool,
) -> None:
    table = Table(
        title=f"rank {trace.rank}: {trace.gpu or 'unknown GPU'}, steps found by {trace.steps_from}",
        title_justify="left", box=box.SIMPLE_HEAD,
    )  # fmt: skip
    for name in ("step", "time_ms", "compute_ms", "comm_ms", "exposed_ms", "idle_ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, t in enumerate(times):
        figures = (t.time_us, t.compute_us, t.comm_us, t.exposed_comm_us, t.idle_us)
        table.add_row(str(number), *(f"{value / 1000:.2f}" for value in figures))
    console.print(table)
    if not show_rows:
        return
    if (link := trace.execution) is not None:
        console.print(
            f"{link.file}: {link.operators_joined} of {link.operators} operators found by {link.joined_by}, "
            f"{link.kernels_linked} GPU ops linked, {link.collectives_named} collectives named"
        )
    table = Table(title=f"collectives of step {index}", title_justify="left", box=box.SIMPLE_HEAD)
    for name, justify in (("collective", "left"), ("phase", "left"), ("unit", "left"), ("group", "left"), ("seq", "right"),
                          ("MB", "right"), ("CTAs", "right"),
                          ("us", "right"), ("exposed_us", "right"), ("beside it (times slower)", "left")):  # fmt: skip
        table.add_column(name, justify=justify, no_wrap=name != "beside it (times slower)")  # type: ignore[arg-type]
    for row in rows:
        c = row.collective
        beside = ", ".join(
            name if math.isnan(slow) else f"{name} {slow:.2f}x"
            for name, (_, slow) in sorted(row.beside.items(), key=lambda item: -item[1][0])[:3]
        )
        table.add_row(
            c.kind.name.lower(), c.phase.name.lower(), c.unit or "(root)", _group_text(c),
            str(c.sequence) if c.sequence >= 0 else "?", f"{c.num_bytes / 1e6:.1f}",
            "copy engine" if c.path == "copy_engine" else str(c.num_ctas or "?"),
            f"{row.duration_us:.0f}", f"{row.exposed_us:.0f}", beside or "-",
        )  # fmt: skip
    console.print(table)


def _group_text(collective: CollectiveOp) -> str:
    """A group's name or purpose and its size, "?" for what is not known."""
    name = collective.group_name or collective.group_description or "?"
    return f"{name} ({collective.group_size or '?'})"


def _print_alignment(console: Console, alignment: dict[str, Any]) -> None:
    waits = ", ".join(
        f"rank {rank} {wait / 1000:.2f} ms" for rank, wait in list(alignment["wait_us"].items())[:8]
    )
    console.print(
        f"{alignment['matched_collectives']} collectives matched across ranks; moving data took "
        f"{alignment['transfer_us'] / 1000:.2f} ms ({alignment['transfer_is']}); waited for others: {waits}"
    )
    for rank, share in alignment["stragglers"].items():
        console.print(f"rank {rank} arrived last in {share:.0%} of the collectives")
