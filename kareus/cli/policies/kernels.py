"""`kareus policies kernels`: Twente's clocks per kernel, switching free or paid."""

from __future__ import annotations

import argparse
from typing import Any

from kareus.cli.policies.shared import add_json, against, energy, positive, seconds, show
from kareus.errors import UsageError
from kareus.plan.policies.tables import read_kernels
from kareus.plan.policies.twente import Kernel, select_edp, select_global, select_local
from kareus.plan.policies.twente_switch import Switching, select_switching


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "kernels",
        help="Twente: SM and memory clock of every kernel",
        description="Choose clocks per kernel from a table (kernel_id, section, kernel, repeat, mem_mhz, core_mhz, "
        "time_change_pct, energy_change_pct, auto_time_ms, auto_energy_j; several rows of a kernel_id are its "
        "options): by each kernel alone, over the whole step, and with the time of a clock switch charged.",
        epilog="example: kareus policies kernels kernels.csv --tolerance 1 --switch-ms 10 --switch-w 340",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", help="CSV table of kernels")
    parser.add_argument("--tolerance", type=float, default=0.0, metavar="PERCENT",
                        help="time allowed over stock (default 0: strict)")  # fmt: skip
    parser.add_argument(
        "--switch-ms", type=float, default=10.0, metavar="MS", help="time of one clock switch"
    )
    parser.add_argument("--switch-w", type=float, metavar="W",
                        help="power drawn meanwhile (default: the step's average)")  # fmt: skip
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Choose and print; see the parser's help."""
    if not -50 <= args.tolerance <= 1000:
        raise UsageError(f"--tolerance {args.tolerance:g}: expected percent between -50 and 1000")
    positive("--switch-ms", args.switch_ms, zero=True)
    positive("--switch-w", args.switch_w, zero=True)
    kernels, launches = read_kernels(args.file)
    tolerance = args.tolerance / 100
    best = select_global(kernels, tolerance)
    stock_s, stock_j = best.stock_time_s, best.stock_energy_j
    watts = args.switch_w if args.switch_w is not None else stock_j / stock_s
    plans: list[tuple[str, float, float, float | None, int | None]] = []
    local = select_local(kernels, tolerance)
    plans.append(("each kernel alone", local.time_s, local.energy_j, None, None))
    plans.append(("whole step", best.time_s, best.energy_j, best.bound_j, None))
    edp = select_edp(kernels, local=False)
    plans.append(("least energy x time", edp.time_s, edp.energy_j, None, None))
    if tolerance >= 0:
        switching = Switching(time_s=args.switch_ms * 1e-3, power_w=watts)
        paid = select_switching(kernels, launches, switching, tolerance=tolerance)
        plans.append(
            (
                f"switches of {args.switch_ms:g} ms paid",
                paid.time_s,
                paid.energy_j,
                paid.bound_j,
                paid.switches,
            )
        )
    document = {
        "schema": "kareus.kernel_clocks/1",
        "stock": {"time_s": stock_s, "energy_j": stock_j, "launches": len(launches)},
        "tolerance": tolerance,
        "switch": {"time_s": args.switch_ms * 1e-3, "power_w": watts},
        "plans": [
            {"name": n, "time_s": t, "energy_j": e, "bound_j": b, "switches": s} for n, t, e, b, s in plans
        ],
        "kernels": [_choice(k, c) for k, c in zip(kernels, best.choices, strict=True)],
        "source": "predicted",
    }
    rows = [["stock", seconds(stock_s), "", energy(stock_j), "", "", ""]]
    rows += [
        [
            n, seconds(t), against(stock_s, t), energy(e), against(stock_j, e),
            "" if b is None else energy(b), "" if s is None else str(s),
        ]
        for n, t, e, b, s in plans
    ]  # fmt: skip
    show(document, args.json, ("", "time", "change", "energy", "change", "bound", "switches"), rows,
         [f"{len(kernels)} kernels, {len(launches)} launches a step; switches are free but in the last row"])  # fmt: skip
    return 0


def _choice(kernel: Kernel, choice: int) -> dict[str, Any]:
    option = kernel.options[choice]
    return {"kernel": kernel.name, "mem_clock_mhz": option.mem_clock_mhz, "sm_clock_mhz": option.sm_clock_mhz}
