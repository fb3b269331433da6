"""`kareus compare`: every policy on the same recorded step."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from kareus.cli.inputs import StepInput, add_step_arguments, read_step
from kareus.cli.solve import percent as share
from kareus.errors import UsageError
from kareus.plan.policies.ground import Outcome, compare_step
from kareus.report.data import Effect, PolicyRow, Source
from kareus.report.numbers import change, joules, ms, signed_percent
from kareus.report.tables import console, grid

COLUMNS = (
    "",
    "time",
    "energy",
    "saved",
    "time at\nequal\nenergy",
    "power",
    "bound",
)


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "compare",
        help="every policy on the same step, one table",
        description="Compare policies on one recorded step: stock, serialised, one clock, Zeus, Perseus, "
        "Twente, Kareus '26 and the certified solver. Figures are simulated with the same costs for all; a "
        "policy this machine may not carry out is marked and still simulated.",
        epilog="example: kareus compare traces/fsdp2-nvlink-default --json",
        allow_abbrev=False,
    )
    add_step_arguments(parser)
    parser.add_argument(
        "--max-slowdown",
        metavar="PERCENT",
        help="least energy within this slowdown of stock (default 0%%: at equal time)",
    )
    parser.add_argument(
        "--time-limit", type=float, default=5.0, metavar="S", help="seconds for each solve (default 5)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare and print; see the parser's help."""
    if not 0 < args.time_limit < 1e6:
        raise UsageError(f"--time-limit {args.time_limit:g}: expected a positive number of seconds")
    slowdown = share(args.max_slowdown) or 0.0
    step = read_step(args)
    capabilities = step.traces.manifest.capabilities if step.traces.manifest else {}

    def progress(name: str) -> None:
        if sys.stderr.isatty() and not args.json:
            print(f"comparing {name} ...", file=sys.stderr)

    outcomes = compare_step(
        step.graph, step.cost, capabilities,
        max_slowdown=slowdown, time_limit_s=args.time_limit, progress=progress,
    )  # fmt: skip
    document = compare_document(outcomes, step, slowdown)
    if args.json:
        print(json.dumps(document, indent=1))
    else:
        print_outcomes(document)
    return 0


def compare_document(
    outcomes: tuple[Outcome, ...], step: StepInput, max_slowdown: float = 0.0
) -> dict[str, Any]:
    """Return the `kareus.compare/1` document; stock comes first."""
    stock = outcomes[0]
    return {
        "schema": "kareus.compare/1",
        "rank": step.graph.rank,
        "step": step.graph.index,
        "measured": {"time_us": step.graph.duration_ns / 1000},
        "costs": step.profile_note,
        "max_slowdown": max_slowdown,
        "policies": [_policy(outcome, stock) for outcome in outcomes],
    }


def _policy(outcome: Outcome, stock: Outcome) -> dict[str, Any]:
    saving = None
    if outcome.energy_j is not None and outcome.time_us is not None:
        saving = 0.0 - change(stock.energy_j or 0.0, outcome.energy_j)  # 0.0 and never -0.0
    as_fast = outcome.time_us is not None and outcome.time_us <= (stock.time_us or 0)
    equal = outcome.equal_energy_time_us
    return {
        "name": outcome.name,
        "time_us": outcome.time_us,
        "energy_j": outcome.energy_j,
        "saving": saving,
        "saving_at_equal_time": saving if as_fast else None,
        "equal_energy_time_us": equal,
        "time_change_at_equal_energy": None if equal is None else change(stock.time_us or 0, equal),
        "average_power_w": (
            outcome.energy_j / outcome.time_us * 1e6 if outcome.energy_j and outcome.time_us else None
        ),
        "bound_j": outcome.bound_j,
        "source": "simulated",
        "needs": list(outcome.needs),
        "runnable": not outcome.missing,
        "missing": outcome.missing,
        "note": outcome.note,
        "lacks": outcome.lacks,
    }


def policy_rows(outcomes: tuple[Outcome, ...]) -> tuple[PolicyRow, ...]:
    """Return the rows of a report; a policy without a plan no slower than stock has no effect, and says why."""
    return tuple(
        PolicyRow(
            name=outcome.name,
            effect=None
            if outcome.time_us is None
            else Effect(time_us=outcome.time_us, energy_j=outcome.energy_j, source=Source.PREDICTED),
            needs=outcome.needs,
            runnable=not outcome.missing,
            bound_j=outcome.bound_j,
            equal_energy_time_us=outcome.equal_energy_time_us,
            note="; ".join(filter(None, (outcome.lacks, outcome.note))),
        )
        for outcome in outcomes
    )


def print_outcomes(document: Mapping[str, Any]) -> None:
    """Print the document as a table; what each policy needs and what to know about it below."""
    out = console()
    rows = []
    slowdown = document.get("max_slowdown", 0.0)
    columns = list(COLUMNS)
    columns[3] = f"saved\nwithin\n{signed_percent(slowdown)}" if slowdown else "saved at\nequal\ntime"
    limit_us = document["policies"][0]["time_us"] * (1 + slowdown)
    for policy in document["policies"]:
        in_time = policy["time_us"] is not None and policy["time_us"] <= limit_us
        rows.append(
            [
                policy["name"],
                _shown(policy["time_us"], ms),
                _shown(policy["energy_j"], joules),
                _shown(policy["saving"] if in_time else None, signed_percent),
                _shown(policy["time_change_at_equal_energy"], signed_percent),
                _shown(policy["average_power_w"], lambda watts: f"{watts:.0f} W"),
                _shown(policy["bound_j"], joules),
            ]
        )
    grid(out, columns, rows, title="every figure simulated, with the same costs for all policies")
    out.print()
    for policy in document["policies"]:
        out.print(f"{policy['name']}: {_about(policy)}", markup=False)
    out.print("bound: proven least energy of all plans of a policy; rules and searches prove none")
    recorded = ms(document["measured"]["time_us"])
    print(f"recorded step {recorded} (measured); {document['costs']}", file=sys.stderr)
    for reason in sorted({policy["missing"] for policy in document["policies"]} - {""}):
        print(f"not here: {reason}; such rows are simulated all the same", file=sys.stderr)


def _about(policy: Mapping[str, Any]) -> str:
    needs = ", ".join(policy["needs"]) or "nothing"
    here = " (not here)" if policy["missing"] else ""
    return "; ".join(filter(None, (f"needs {needs}{here}", policy["lacks"], policy["note"])))


def _shown(value: float | None, words: Any) -> str:
    return "-" if value is None else str(words(value))
