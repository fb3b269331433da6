"""`kareus policies points`: one point of each table by a rule, or of all together under a power cap."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from kareus.cli.policies.shared import add_json, against, energy, load_points, positive, seconds, show
from kareus.errors import UsageError
from kareus.plan.policies.choose import Point, cluster_power_cap
from kareus.plan.policies.rules import SYNTAX, parse_rule


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "points",
        help="choose a point of a frontier by a rule, or of several under one power cap",
        description="Choose a point of each table: a frontier from `kareus solve --frontier`, or a CSV with time "
        "and energy. With --cap-w, choose one point for each job so that average power over all of them stays "
        "under the cap and slowdown, weighted by GPUs, is least.",
        epilog="example: kareus policies points a.json b.json --cap-w 9000 --gpus 8,8",
        allow_abbrev=False,
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="frontier (JSON) or table (CSV), one per job"
    )
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--choose", metavar="RULE", help=SYNTAX.replace("%", "%%"))
    how.add_argument(
        "--cap-w", type=float, metavar="W", help="average power of all GPUs of all jobs together"
    )
    parser.add_argument("--gpus", metavar="N[,N...]", help="GPUs of each job, for --cap-w (default 1 each)")
    parser.add_argument("--job", help="which job, where a table holds several")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Choose and print; see the parser's help."""
    positive("--cap-w", args.cap_w)
    counts = _gpus(args.gpus, len(args.files))
    if args.gpus and args.cap_w is None:
        raise UsageError("--gpus goes with --cap-w; rules choose for one GPU")
    jobs = [(path, *load_points(path, args.job)) for path in args.files]
    tables = [points for _, _, points in jobs]
    if args.cap_w is None:
        rule = parse_rule(args.choose)
        chosen: Sequence[Point] = [rule(points) for points in tables]
    else:
        chosen = cluster_power_cap(tables, args.cap_w, gpus=counts)
    document = {
        "schema": "kareus.points/1",
        "rule": args.choose or f"cap={args.cap_w:g}W",
        "jobs": [
            {
                "file": path, "job": group, "gpus": count, "point": point.label, "time_s": point.time_s,
                "energy_j": point.energy_j, "average_power_w": point.power_w,
                "fastest": _figures(min(points, key=lambda p: (p.time_s, p.energy_j))),
            }
            for (path, group, points), point, count in zip(jobs, chosen, counts, strict=True)
        ],
    }  # fmt: skip
    rows = []
    for job in document["jobs"]:
        assert isinstance(job, dict)
        first = job["fastest"]
        rows.append([
            f"{job['file']} {job['job']}".strip(), job["point"], seconds(job["time_s"]),
            against(first["time_s"], job["time_s"]), energy(job["energy_j"]),
            against(first["energy_j"], job["energy_j"]), f"{job['average_power_w']:.0f} W",
        ])  # fmt: skip
    total = sum(c * p.power_w for c, p in zip(counts, chosen, strict=True))
    facts = [f"all {sum(counts)} GPUs: {total:.0f} W of {args.cap_w:g} W"] if args.cap_w is not None else []
    show(document, args.json, ("", "chosen", "time", "change", "energy", "change", "power"), rows,
         [*facts, "changes are against the fastest point of each table"])  # fmt: skip
    return 0


def _figures(point: Point) -> dict[str, float]:
    return {"time_s": point.time_s, "energy_j": point.energy_j}


def _gpus(text: str | None, jobs: int) -> list[int]:
    if text is None:
        return [1] * jobs
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--gpus {text!r}: expected whole numbers such as 8,8") from None
    if len(counts) != jobs or min(counts) < 1:
        raise UsageError(f"--gpus {text!r}: expected a positive number for each of {jobs} jobs")
    return counts
