"""`kareus solve`: from a recorded step to a schedule with its proof."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from kareus.cli.inputs import StepInput, add_step_arguments, read_step
from kareus.errors import InputError, UsageError
from kareus.model.early import first_gathers
from kareus.plan.knobs import knobs_from
from kareus.plan.planner import Goal, Plan, make_plan
from kareus.plan.policies.rules import SYNTAX, parse_rule
from kareus.plan.stragglers import SlackUse, idle_wait_us, use_slack, with_slack_used
from kareus.report.progress import SolverProgress
from kareus.report.tables import print_solve
from kareus.schema import write_document
from kareus.trace.graph import graphs

FRONTIER_POINTS = 20


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "solve",
        help="find the schedule of a recorded step",
        description="Find the schedule of a recorded training step, offline. Needs the extra `solver`; without "
        "OR-Tools a heuristic runs and its result carries no proof.",
        epilog="example: kareus solve traces/fsdp2-nvlink-default --profile traces/profiles/h200-nvlink.json "
        "-o schedule.json",
        allow_abbrev=False,
    )
    add_step_arguments(parser)
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="where the schedule goes")
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument(
        "--max-slowdown", metavar="PERCENT", help="least energy within this slowdown (default 0%%)"
    )
    goal.add_argument("--deadline-ms", type=float, help="least energy within this step time")
    goal.add_argument("--energy-budget-j", type=float, help="least time within this energy per GPU and step")
    goal.add_argument(
        "--choose",
        metavar="RULE",
        help="take the point of the frontier that a rule chooses, energy and power per GPU: "
        + SYNTAX.replace("%", "%%"),
    )
    parser.add_argument(
        "--frontier", metavar="FILE", help="also write the time-energy frontier (kareus.step_frontier/1)"
    )
    parser.add_argument(
        "--finalists",
        type=int,
        default=0,
        metavar="N",
        help="also write up to N other schedules that the model cannot tell from the chosen one, as FILE with "
        "-1, -2, ... before its suffix: measure them too",
    )
    parser.add_argument(
        "--clocks",
        choices=("off", "advise", "apply"),
        default="off",
        help="plan SM clocks too (advise, apply) or leave them to the GPU (off, default)",
    )
    parser.add_argument(
        "--memory-limit",
        metavar="SIZE",
        help="GPU memory the schedule may take beyond stock's, for communicators, copy-engine buffers and "
        "parameters gathered for longer: 500MB, 1.5GiB, ... (default: no limit)",
    )
    parser.add_argument(
        "--early-gathers",
        type=int,
        default=0,
        metavar="N",
        help="FSDP2: up to N of the next step's first all-gathers may start inside optimizer.step() (default 0). "
        "Not for jobs that write parameters between optimizer.step() and the next forward through .data or "
        "torch._foreach_*, which torch does not count; other writes, load_state_dict and evaluations are seen",
    )
    parser.add_argument(
        "--use-slack",
        action="store_true",
        help="with --clocks advise or apply: ranks that wait for a slower one get lower clocks of their own",
    )
    parser.add_argument("--robust", action="store_true", help="choose by the 90 %% worst case of the profile")
    parser.add_argument(
        "--time-limit", type=float, default=10.0, metavar="S", help="solver seconds (default 10)"
    )
    parser.add_argument(
        "--deterministic-time",
        type=float,
        metavar="T",
        help="also limit each point on OR-Tools' own clock (1 is about a second): the same answer on any machine, "
        "if --time-limit leaves room for it",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.set_defaults(run=run)


def percent(text: str | None) -> float | None:
    """Return "5%" or "5" as 0.05.

    Raises:
        UsageError: not a number, or negative.
    """
    if text is None:
        return None
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        raise UsageError(f"--max-slowdown {text!r}: expected a percentage such as 5%") from None
    if not 0 <= value < 1000:
        raise UsageError(f"--max-slowdown {text!r}: expected 0% or more, below 1000%")
    return value / 100


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def num_bytes(text: str | None) -> int | None:
    """Return "500MB", "1.5 GiB" or "1000000" (bytes) as bytes.

    Raises:
        UsageError: not a size.
    """
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*", text)
    if found is None or found[2].upper() not in _UNITS:
        raise UsageError(f"--memory-limit {text!r}: expected a size such as 500MB, 1.5GiB or 1000000 (bytes)")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def run(args: argparse.Namespace) -> int:
    """Solve and write; see the parser's help."""
    _check_solver_package()
    for name in ("deadline_ms", "energy_budget_j", "time_limit", "deterministic_time"):
        value = getattr(args, name)
        if value is not None and not 0 < value < 1e12:
            raise UsageError(f"--{name.replace('_', '-')} {value:g}: expected a positive number")
    if args.use_slack and args.clocks == "off":
        raise UsageError("--use-slack lowers clocks: give --clocks advise or --clocks apply with it")
    if not 0 <= args.early_gathers <= 8:
        raise UsageError(f"--early-gathers {args.early_gathers}: expected 0 to 8 units")
    if args.finalists < 0:
        raise UsageError(f"--finalists {args.finalists}: expected 0 or more")
    goal = Goal(
        max_slowdown=percent(args.max_slowdown),
        deadline_us=None if args.deadline_ms is None else args.deadline_ms * 1000,
        energy_budget_j=args.energy_budget_j,
        rule=None if args.choose is None else parse_rule(args.choose),
        memory_bytes=num_bytes(args.memory_limit),
    )
    for path in (args.output, args.frontier):
        _check_folder(path)
    step = read_step(args)
    if args.early_gathers and not first_gathers(step.graph, 1):
        raise UsageError(
            "--early-gathers: this step has no all-gather that names its FSDP2 unit in forward; leave the option out"
        )
    capabilities = step.traces.manifest.capabilities if step.traces.manifest else {}
    with SolverProgress(quiet=args.json) as progress:
        plan = make_plan(
            step.graph,
            step.cost,
            knobs_from(capabilities, clocks=args.clocks, early_gathers=args.early_gathers),
            goal,
            gradients=step.traces.manifest.gradients if step.traces.manifest else (),
            frontier_points=FRONTIER_POINTS if args.frontier else 0,
            time_limit_s=args.time_limit,
            deterministic_time=args.deterministic_time,
            robust=args.robust,
            step_spread=step.step_spread,
            conditions=step.conditions,
            progress=progress,
        )
    if args.use_slack:
        plan = replace(plan, schedule=with_slack_used(plan.schedule, _slack(step)))
    plan.schedule.save(args.output)
    _save_finalists(plan, args.output, args.finalists)
    if args.frontier:
        write_document(args.frontier, frontier_document(plan))
    document = solve_document(plan, step, robust=args.robust)
    if args.json:
        print(json.dumps(document, indent=1))
    else:
        print(step.profile_note, file=sys.stderr)
        print_solve(document, output=args.output)
    return 0


def _slack(step: StepInput) -> list[SlackUse]:
    """What each rank but the planned one, which is the slowest, could do with its waits."""
    found = []
    for rank in step.traces.ranks:
        if rank == step.graph.rank:
            continue
        trace = step.traces.load(rank)
        waits_us = idle_wait_us(trace, step.traces.alignment)
        found += [use_slack(g, waits_us, step.cost) for g in graphs(trace) if g.index == step.graph.index]
    return found


def _check_folder(path: str | None) -> None:
    """Refuse a file whose folder is not there before minutes are spent on what goes into it.

    Raises:
        InputError: the folder does not exist.
    """
    if path is not None and not Path(path).parent.is_dir():
        raise InputError(f"cannot write {path}: no folder {Path(path).parent}; make it or choose another")


def _save_finalists(plan: Plan, output: str, most: int) -> None:
    target = Path(output)
    for number, schedule in enumerate(plan.improved.finalists[:most] if plan.improved else (), start=1):
        schedule.save(str(target.with_name(f"{target.stem}-{number}{target.suffix}")))


def solve_document(plan: Plan, step: StepInput, *, robust: bool = False) -> dict[str, Any]:
    """Return the `kareus.solve/1` document of a plan; `robust`: its bound is one of the worst case."""
    solution = plan.solution
    limit_bytes = plan.step.problem.limits.memory_bytes
    by_time = solution.objective == "time"
    bound = solution.bound if solution.certificate else None
    return {
        "schema": "kareus.solve/1",
        "status": str(solution.status),
        "objective": str(solution.objective),
        "stock": {"time_us": plan.stock.time_us, "energy_j": plan.stock.energy_j},
        "serialised": {"time_us": plan.serial.time_us, "energy_j": plan.serial.energy_j},
        "predicted": {"time_us": solution.time_us, "energy_j": solution.energy_mj / 1000},
        "bound": {
            "time_us": bound if by_time else None,
            "energy_j": None if by_time or bound is None else bound / 1000,
            "of": "worst_case" if robust else "predicted",
            "certificate": solution.certificate,
        },
        "gap": solution.gap,
        "solve_s": solution.solve_s,
        "measured": {"time_us": plan.measured_us},
        "simulated": {
            "stock": {"time_us": plan.stock_simulation.time_us, "energy_j": plan.stock_simulation.energy_j},
            "scheduled": {"time_us": plan.simulation.time_us, "energy_j": plan.simulation.energy_j},
        },
        "worst_case": {
            "time_us": solution.worst_time_us,
            "energy_j": solution.worst_energy_mj / 1000,
        },
        "improver": None
        if plan.improved is None
        else {
            "gain": plan.improved.gain,
            "moves": plan.improved.moves,
            "evaluations": plan.improved.evaluations,
            "finalists": len(plan.improved.finalists),
        },
        "memory": {
            "communicators_bytes": plan.memory.communicators,
            "copy_buffers_bytes": plan.memory.copy_buffers,
            "gathered_bytes": plan.memory.gathered,
            "total_bytes": plan.memory.total,
            "limit_bytes": limit_bytes,
        },
        "composition_error": {"stock": plan.composition_error[0], "scheduled": plan.composition_error[1]},
        "verified": plan.schedule.verified,
        "costs": step.profile_note,
        "kept_stock": plan.kept_stock,
        "rank": plan.step.graph.rank,
        "step": plan.step.graph.index,
        "spans": len(plan.step.spans),
        "span_kinds": len(plan.step.tables),
        "may_run_on": sum(c.may_run_on for span in plan.step.spans for c in span.collectives),
        "options_priced": sum(table.priced for table in plan.step.tables),
        "changed_collectives": len(plan.schedule.decisions),
        "early_gathers": plan.schedule.early_gathers,
        "ddp_bucket_cap_mb": plan.schedule.ddp_bucket_cap_mb,
        "rank_clocks": msgspec.to_builtins(plan.schedule.rank_clocks),
    }


def frontier_document(plan: Plan) -> dict[str, Any]:
    """Return the `kareus.step_frontier/1` document: the Pareto set with stock, serialised and chosen marked."""
    traced = plan.frontier
    assert traced is not None  # asked for by the caller
    return {
        "schema": "kareus.step_frontier/1",
        "stock": {"time_us": plan.stock.time_us, "energy_j": plan.stock.energy_j},
        "serialised": {"time_us": plan.serial.time_us, "energy_j": plan.serial.energy_j},
        "chosen": {"time_us": plan.solution.time_us, "energy_j": plan.solution.energy_mj / 1000},
        "knee": traced.knee,
        "least_energy": traced.least_energy,
        "points": [
            {
                "time_us": point.time_us,
                "energy_j": point.energy_mj / 1000,
                "status": str(point.status),
                "bound_j": point.bound / 1000 if point.objective == "energy" else None,
                "gap": point.gap,
                "certificate": point.certificate,
                "worst_time_us": point.worst_time_us,
                "worst_energy_j": point.worst_energy_mj / 1000,
            }
            for point in traced.points
        ],
    }


def _check_solver_package() -> None:
    """Refuse a user's own solver.py that shadows the package, with a message that says so."""
    import solver

    if not hasattr(solver, "Problem"):
        raise UsageError(
            f"`import solver` found {getattr(solver, '__file__', solver)!r}, which is not Kareus' solver package; "
            "run `kareus solve` from another directory, or rename that file"
        )
