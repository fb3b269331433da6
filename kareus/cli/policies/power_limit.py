"""`kareus policies power-limit`: Zeus' choice of the power limit from a recorded table or search log."""

from __future__ import annotations

import argparse
from typing import Any

from kareus.cli.policies.shared import add_json, against, energy, only, positive, seconds, show
from kareus.errors import UsageError
from kareus.plan.policies.tables import num_gpus, read_limits
from kareus.plan.policies.zeus import (
    DEFAULT_ETA,
    CostRule,
    LimitCost,
    MaxSlowdownRule,
    Rule,
    least_energy,
    least_time,
)


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "power-limit",
        help="Zeus: choose a power limit from what each limit cost",
        description="Choose a power limit for every job of a table (power_limit, time_per_epoch, average_power) or "
        "of a search log (window_name ending in _WATTS, elapsed_time, gpuN_energy).",
        epilog="example: kareus policies power-limit search.csv --rule cost --eta 0.5",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", help="CSV table or log")
    parser.add_argument("--rule", choices=("cost", "energy", "time", "slowdown"), default="cost",
                        help="least cost eta*E + (1-eta)*P*N*t, least energy, least time, or the lowest limit "
                        "within --max-slowdown of the highest (default cost)")  # fmt: skip
    parser.add_argument("--eta", type=float, default=DEFAULT_ETA, help="1: energy only, 0: time only")
    parser.add_argument("--max-power-w", type=float, metavar="W",
                        help="highest limit of one GPU (default: the table's)")  # fmt: skip
    parser.add_argument("--gpus", type=int, metavar="N",
                        help="GPUs whose energy the table sums up (default: as the table says, or 1)")  # fmt: skip
    parser.add_argument(
        "--max-slowdown", type=float, default=10.0, metavar="PERCENT", help="for slowdown (default 10)"
    )
    parser.add_argument("--job", help="only this job of the table")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Choose and print; see the parser's help."""
    positive("--max-power-w", args.max_power_w)
    positive("--max-slowdown", args.max_slowdown, zero=True)
    if args.gpus is not None and args.gpus < 1:
        raise UsageError(f"--gpus {args.gpus}: expected at least 1")
    groups = read_limits(args.file)
    if args.job is not None:
        groups = dict([only(groups, args.job, args.file)])
    counts = num_gpus(args.file)
    found = []
    for group, costs in groups.items():
        top = max(costs, key=lambda c: c.power_limit_w)
        gpus = args.gpus or counts[group]
        rule = _rule(args, args.max_power_w or top.power_limit_w, gpus)
        found.append((group, gpus, top, rule(costs), len(costs)))
    document = {
        "schema": "kareus.power_limit_choice/1",
        "rule": args.rule,
        "gpus": found[0][1] if len({gpus for _, gpus, *_ in found}) == 1 else None,  # None: see each job
        "jobs": [
            {
                "job": group, "gpus": gpus, "limits": count, "chosen": _figures(chosen), "highest": _figures(top),
            }
            for group, gpus, top, chosen, count in found
        ],
    }  # fmt: skip
    rows = [
        [
            group or args.file, f"{chosen.power_limit_w} W", seconds(chosen.time_s),
            against(top.time_s, chosen.time_s), energy(chosen.energy_j), against(top.energy_j, chosen.energy_j),
        ]
        for group, _, top, chosen, _ in found
    ]  # fmt: skip
    show(document, args.json, ("job", "limit", "time", "change", "energy", "change"), rows,
         ["changes are against the highest limit of each job"])  # fmt: skip
    return 0


def _rule(args: argparse.Namespace, max_power_w: float, gpus: int) -> Rule:
    if args.rule == "energy":
        return least_energy
    if args.rule == "time":
        return least_time
    if args.rule == "slowdown":
        return MaxSlowdownRule(factor=1 + args.max_slowdown / 100)
    return CostRule(max_power_w=max_power_w, world_size=gpus, eta=args.eta)


def _figures(cost: LimitCost) -> dict[str, float]:
    return {"power_limit_w": cost.power_limit_w, "time_s": cost.time_s, "energy_j": cost.energy_j}
