"""`kareus policies carbon`: Chase on a frontier and a recorded series of carbon intensity or price."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

from kareus.cli.policies.shared import add_json, against, energy, load_points, positive, seconds, show
from kareus.errors import UsageError
from kareus.plan.policies.chase import ChaseCost, ChaseResult, always, chase, run_job, within_deadline
from kareus.plan.policies.choose import Point, pareto
from kareus.plan.policies.hindsight import least_footprint
from kareus.plan.policies.series import Series, forecast, read_series

_HORIZON = 400  # values forecast ahead for a deadline
_MAX_HOURS = 1e5  # of a job: eleven years


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "carbon",
        help="Chase: follow carbon intensity or price with the choice of the point",
        description="Run a job of some hours through a recorded series (CSV with ISO times, or an Electricity Maps "
        "JSON answer), deciding for each interval from a forecast which point of a frontier to run, and compare "
        "with always running the fastest point, with the best single point in hindsight and with what nobody can "
        "beat. Also names the point to run next, after the series' last value.",
        epilog="example: kareus policies carbon frontier.json intensity.json --hours 60 --max-slowdown 2.5",
        allow_abbrev=False,
    )
    parser.add_argument(
        "points", metavar="POINTS", help="frontier (JSON) or table (CSV) of times and energies"
    )
    parser.add_argument("series", metavar="SERIES", help="grams of CO2 per kWh, or money per kWh, over time")
    parser.add_argument(
        "--hours", type=float, required=True, metavar="H", help="length of the job at its fastest"
    )
    parser.add_argument("--max-slowdown", type=float, metavar="PERCENT",
                        help="least footprint within this slowdown, instead of Chase's cost with --eta")  # fmt: skip
    parser.add_argument(
        "--eta", type=float, default=0.24, help="1: footprint only, 0: time only (default 0.24)"
    )
    parser.add_argument(
        "--max-power-w", type=float, metavar="W", help="of one GPU (default: the hungriest point)"
    )
    parser.add_argument(
        "--max-intensity", type=float, metavar="X", help="scale of time (default: the series' highest)"
    )
    parser.add_argument("--start", metavar="ISO", help="when the job begins (default: where the series does)")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs of the job (default 1)")
    parser.add_argument("--price", metavar="SERIES", help="a second series to bill the energy under")
    parser.add_argument("--column", default="value", help="of a CSV series (default value)")
    parser.add_argument("--price-column", default="value", help="of a CSV price series (default value)")
    parser.add_argument("--swap-s", type=float, default=0.0, metavar="S", help="lost at each change of point")
    parser.add_argument("--job", help="which job, where the table of points holds several")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Follow the series and print; see the parser's help."""
    _check(args)
    _, points = load_points(args.points, args.job)
    hull = pareto(points)
    series = read_series(args.series, column=args.column)
    bill = {"price": read_series(args.price, column=args.price_column, negative=True)} if args.price else None
    start = series.start_s[0] if args.start is None else _moment(args.start)
    work = args.hours * 3600 / hull[0].time_s
    cost = ChaseCost(
        max_power_w=args.max_power_w or max(p.power_w for p in hull),
        max_intensity=args.max_intensity or max(*series.value, 1e-9),
        eta=args.eta,
    )
    base = run_job(work, series, start, always(hull[0]), bill=bill)
    if args.max_slowdown is None:
        decide = chase(hull, cost)
        allowed_s = None
    else:
        allowed_s = base.time_s * (1 + args.max_slowdown / 100)
        decide = within_deadline(hull, allowed_s, lambda elapsed_s: _expected(series, start, elapsed_s))
    result = run_job(work, series, start, decide, swap_s=args.swap_s, bill=bill)
    limit_s = allowed_s or result.time_s
    fixed = [run_job(work, series, start, always(p), bill=bill) for p in hull]
    best = min((f for f in fixed if f.time_s <= limit_s * (1 + 1e-9)), key=lambda f: f.footprint)
    bound = least_footprint(hull, series, start, work, max(limit_s, base.time_s)) * args.gpus
    runs = {"always the fastest": base, "best single point in hindsight": best, "chosen by interval": result}
    upcoming = None
    if args.max_slowdown is None:
        foreseen = float(forecast(series, series.start_s[-1], 1)[0])
        upcoming = {"foreseen": foreseen, "point": cost.choose(hull, foreseen).label}
    outside_s = _outside_s(series, start, start + result.time_s)
    document = {
        "schema": "kareus.carbon_choice/1",
        "start": datetime.fromtimestamp(start, UTC).isoformat(),
        "gpus": args.gpus,
        "runs": [_run(name, r, args.gpus) for name, r in runs.items()],
        "intervals": list(result.labels),
        "bound": {"footprint": bound, "within_s": limit_s},
        "next": upcoming,
        "outside_series_s": outside_s,
        "source": "simulated",
    }
    columns, rows, facts = _table(runs, args, hull, bound, upcoming)
    if outside_s:
        facts.append(f"{seconds(outside_s)} lie outside the series, where its first or last value was held")
    show(document, args.json, columns, rows, facts)
    return 0


def _check(args: argparse.Namespace) -> None:
    for flag in ("hours", "max_power_w", "max_intensity"):
        positive(f"--{flag.replace('_', '-')}", getattr(args, flag))
    positive("--max-slowdown", args.max_slowdown, zero=True)
    positive("--swap-s", args.swap_s, zero=True)
    if args.hours > _MAX_HOURS:
        raise UsageError(f"--hours {args.hours:g}: expected at most {_MAX_HOURS:g}")
    if args.gpus < 1:
        raise UsageError(f"--gpus {args.gpus}: expected at least 1")


def _outside_s(series: Series, start_s: float, end_s: float) -> float:
    """How much of a job the series says nothing about."""
    first, last = series.start_s[0], series.start_s[-1] + series.interval_s
    inside = min(end_s, last) - max(start_s, first)
    return end_s - start_s - max(inside, 0.0)


def _moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--start {text!r}: expected an ISO time such as 2026-01-31T06:00:00+00:00"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _expected(series: Series, start_s: float, elapsed_s: float) -> Series:
    """What is foreseen at a moment, in seconds since the job's start."""
    values = forecast(series, start_s + elapsed_s - 1.0, _HORIZON)
    times = tuple(elapsed_s + series.interval_s * i for i in range(_HORIZON))
    return Series(start_s=times, value=tuple(values.tolist()), interval_s=series.interval_s)


def _run(name: str, result: ChaseResult, gpus: int) -> dict[str, Any]:
    return {
        "name": name,
        "time_s": result.time_s,
        "energy_j": result.energy_j * gpus,
        "footprint": result.footprint * gpus,
        "money": result.bills["price"] * gpus if "price" in result.bills else None,
        "swaps": result.swaps,
    }


def _table(
    runs: dict[str, ChaseResult],
    args: argparse.Namespace,
    points: tuple[Point, ...],
    bound: float,
    upcoming: dict[str, Any] | None,
) -> tuple[list[str], list[list[str]], list[str]]:
    base = next(iter(runs.values()))
    rows = [
        [
            name, seconds(r.time_s), against(base.time_s, r.time_s), energy(r.energy_j * args.gpus),
            f"{r.footprint * args.gpus:.2f}", against(base.footprint, r.footprint) if base.footprint else "",
            f"{r.bills['price'] * args.gpus:.2f}" if r.bills else "", str(r.swaps),
        ]
        for name, r in runs.items()
    ]  # fmt: skip
    rows.append(["nobody stays below", "", "", "", f"{bound:.2f}",
                 against(base.footprint, bound / args.gpus) if base.footprint else "", "", ""])  # fmt: skip
    facts = [
        f"simulated on {len(points)} points that no other beats; footprint in grams, or the series' money"
    ]
    if upcoming is not None:
        facts.append(f"next: {upcoming['point']}, for {upcoming['foreseen']:.4g} foreseen")
    return ["", "time", "change", "energy", "footprint", "change", "price", "swaps"], rows, facts
