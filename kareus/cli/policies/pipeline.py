"""`kareus policies pipeline`: Perseus' clock plan of a pipeline from its stage profile."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from kareus.cli.policies.shared import add_json, against, energy, positive, seconds, show
from kareus.errors import InputError, UsageError
from kareus.plan.policies.choose import Point
from kareus.plan.policies.perseus import BLOCKING_POWER_W, PerseusFrontier, PipelinePlan, plan_pipeline
from kareus.plan.policies.pipeline import Kind, StageProfile, interleaved, read_stage_profile
from kareus.plan.policies.rules import SYNTAX, parse_rule
from kareus.report.numbers import percent
from kareus.schema import write_document


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "pipeline",
        help="Perseus: the clock of every forward and backward of a pipeline",
        description="Plan clocks of a 1F1B or interleaved pipeline from a stage profile (CSV: stage, instruction, "
        "frequency in MHz, time in s, energy in J). Every point carries a proven bound. Needs the extra `solver`.",
        epilog="example: kareus policies pipeline profile.csv --micro-batches 12 --blocking-w A100 -o plan.json",
        allow_abbrev=False,
    )
    parser.add_argument("profile", metavar="PROFILE", help="stage profile, CSV")
    parser.add_argument("--micro-batches", type=int, required=True, metavar="N")
    parser.add_argument("--chunks", type=int, default=1, metavar="N",
                        help="model chunks per device (interleaved 1F1B); the profile is of one chunk")  # fmt: skip
    parser.add_argument("--blocking-w", required=True, metavar="W",
                        help=f"power of a GPU that waits, or a card: {', '.join(BLOCKING_POWER_W)}")  # fmt: skip
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--choose", metavar="RULE", help=SYNTAX.replace("%", "%%") + " (default fastest)")
    which.add_argument("--straggler-s", type=float, metavar="S",
                       help="the plan to run while another replica takes this long for a step")  # fmt: skip
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the plan's clocks and the frontier, JSON"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan and print; see the parser's help."""
    positive("--straggler-s", args.straggler_s)
    power = _blocking(args.blocking_w)
    rule = parse_rule(args.choose or "fastest")
    profile = read_stage_profile(args.profile)
    stages = _stages(profile, args.profile)
    pipeline = interleaved(stages, args.micro_batches, args.chunks)

    def progress(prices: int, loose: float) -> None:
        if sys.stderr.isatty() and not args.json:
            print(f"\r{prices} prices solved ...", end="", file=sys.stderr)

    frontier = plan_pipeline(pipeline, profile, blocking_power_w=power, progress=progress)
    if args.straggler_s is not None:
        plan = frontier.for_straggler(args.straggler_s)
    else:
        points = [
            Point(label=str(i), time_s=float(t), energy_j=float(e))
            for i, (t, e) in enumerate(zip(frontier.time_s, frontier.energy_j, strict=True))
        ]
        plan = frontier.plan(int(rule(points, frontier.max_clock_time_s).label))
    document = _document(args, frontier, plan, stages)
    if args.output:
        write_document(args.output, document | {"clocks": _clocks(frontier, plan)} | _curve(frontier))
    show(document, args.json, ("", "time", "change", "energy", "change", "proven gap"),
         _rows(frontier, plan, args.straggler_s), _facts(args, frontier, stages))  # fmt: skip
    return 0


def _stages(profile: StageProfile, path: str) -> int:
    """Stages are numbered from 0; each needs options in both directions."""
    stages = max(stage for stage, _ in profile) + 1
    kinds: tuple[Kind, ...] = ("forward", "backward")
    missing = [f"{stage} {kind}" for stage in range(stages) for kind in kinds if (stage, kind) not in profile]
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise InputError(
            f"{path}: expected rows forward and backward for each of the stages 0 to {stages - 1}, found none for "
            f"{', '.join(missing[:4])}{more}; profile every stage in both directions, numbered from 0"
        )
    return stages


def _blocking(text: str) -> float:
    if text in BLOCKING_POWER_W:
        return BLOCKING_POWER_W[text]
    try:
        value = float(text)
    except ValueError:
        raise UsageError(
            f"--blocking-w {text!r}: expected watts, or one of {', '.join(BLOCKING_POWER_W)}"
        ) from None
    positive("--blocking-w", value, zero=True)
    return value


def _document(
    args: argparse.Namespace, frontier: PerseusFrontier, plan: PipelinePlan, stages: int
) -> dict[str, Any]:
    return {
        "schema": "kareus.pipeline_plan/1",
        "stages": stages,
        "micro_batches": args.micro_batches,
        "chunks": args.chunks,
        "blocking_power_w": frontier.blocking_power_w,
        "max_clock": {"time_s": frontier.max_clock_time_s, "energy_j": frontier.max_clock_energy_j},
        "chosen": {
            "time_s": plan.time_s,
            "energy_j": plan.energy_j,
            "bound_j": plan.bound_j,
            "gap": plan.gap,
        },
        "points": len(frontier.time_s),
        "gap_max": float(frontier.gap.max()),
        "solve_s": frontier.solve_s,
        "source": "predicted",
    }


def _curve(frontier: PerseusFrontier) -> dict[str, Any]:
    return {
        "frontier": [
            {"time_s": float(t), "energy_j": float(e), "gap": float(g)}
            for t, e, g in zip(frontier.time_s, frontier.energy_j, frontier.gap, strict=True)
        ]
    }


def _clocks(frontier: PerseusFrontier, plan: PipelinePlan) -> list[dict[str, Any]]:
    """Per stage, its operations in the order it executes them."""
    return [
        {
            "stage": op.stage, "kind": op.kind, "micro_batch": op.micro_batch, "chunk": op.chunk,
            "sm_clock_mhz": clock,
        }
        for op, clock in zip(frontier.pipeline.operations, plan.sm_clock_mhz, strict=True)
    ]  # fmt: skip


def _rows(frontier: PerseusFrontier, plan: PipelinePlan, straggler_s: float | None) -> list[list[str]]:
    top_s, top_j = frontier.max_clock_time_s, frontier.max_clock_energy_j
    least = frontier.least_energy_index
    rows = [["highest clocks", seconds(top_s), "", energy(top_j), "", ""]]
    shown = [("fastest", frontier.plan(0)), ("least energy", frontier.plan(least)), ("chosen", plan)]
    for name, p in shown:
        rows.append([
            name, seconds(p.time_s), against(top_s, p.time_s), energy(p.energy_j), against(top_j, p.energy_j),
            percent(p.gap, 2),
        ])  # fmt: skip
    if straggler_s is not None and straggler_s > plan.time_s:
        base = top_j + frontier.pipeline.num_stages * frontier.blocking_power_w * max(
            straggler_s - top_s, 0.0
        )
        spent = frontier.energy_until_j(plan, straggler_s)
        rows.append(
            ["chosen, then waiting", seconds(straggler_s), "", energy(spent), against(base, spent), ""]
        )
    return rows


def _facts(args: argparse.Namespace, frontier: PerseusFrontier, stages: int) -> list[str]:
    facts = [
        f"predicted: {stages} stages x {args.micro_batches} micro-batches, {len(frontier.time_s)} points in "
        f"{frontier.solve_s:.1f} s, gap at most {percent(float(frontier.gap.max()), 2)}; energy of one GPU a stage"
    ]
    return [*facts, f"clocks and frontier in {args.output}"] if args.output else facts
