"""`python -m solver problem.json -o frontier.json`: the solver without the rest of Kareus."""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import replace

from solver.check import judge
from solver.engine import Progress
from solver.errors import ProblemError, SolverError
from solver.frontier import frontier, stock_of
from solver.io import frontier_to_json, read_frontier, read_problem, write_frontier
from solver.point import solve
from solver.problem import Problem
from solver.solution import Frontier, Objective, Solution, Status

EXIT_OK, EXIT_BUG, EXIT_USAGE, EXIT_INPUT = 0, 1, 2, 3
EXIT_INFEASIBLE, EXIT_NOTHING, EXIT_INTERRUPTED = 4, 5, 130

_EXAMPLE = """example:
  python -m solver problem.json -o frontier.json --points 20
  python -m solver problem.json --objective energy --max-time-us 1500000
  python -m solver problem.json --judge frontier.json

exit codes: 0 ok, 1 bug, 2 usage, 3 bad input file, 4 infeasible, 5 no plan in time, 130 interrupted
(what was found until then is still written)"""


def parser() -> argparse.ArgumentParser:
    """Return the command's argument parser."""
    p = argparse.ArgumentParser(
        prog="python -m solver",
        description="Time-energy frontier of a step given as option tables (kareus.problem/1), with proof.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("problem", help="problem file, kareus.problem/1")
    p.add_argument("-o", "--output", help="frontier file to write (default: standard output)")
    p.add_argument("--points", type=_positive, default=20, help="time limits of the frontier (default 20)")
    p.add_argument(
        "--objective", choices=[o.value for o in Objective], help="solve one point instead of the frontier"
    )
    p.add_argument(
        "--judge",
        metavar="FRONTIER",
        help="solve nothing: judge the plans of a frontier file, without OR-Tools",
    )
    p.add_argument("--max-time-us", type=_positive, help="time limit of the step, in place of the file's")
    p.add_argument("--max-energy-mj", type=_positive, help="energy limit, in place of the file's")
    p.add_argument(
        "--time-limit", type=_seconds, default=40.0, metavar="S", help="seconds in all (default 40)"
    )
    p.add_argument("--deterministic-time", type=_seconds, help="limit on OR-Tools' machine-independent clock")
    p.add_argument("--gap", type=_share, default=9e-4, help="relative gap to stop at, 0 for the optimum")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--robust", action="store_true", help="optimise the 90 %% worst case of the options")
    p.add_argument("-q", "--quiet", action="store_true", help="no progress on standard error")
    return p


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = parser().parse_args(argv)
    try:
        problem = _limited(read_problem(args.problem), args)
        if args.judge:
            return _judge(problem, read_frontier(args.judge))
        curve = _run(problem, args)
        if args.output:
            write_frontier(args.output, curve)
        else:
            sys.stdout.write(frontier_to_json(curve).decode())
    except ProblemError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_INPUT
    except SolverError as error:
        print(f"internal error: {error}", file=sys.stderr)
        return EXIT_BUG
    except KeyboardInterrupt:
        print("interrupted before anything was found", file=sys.stderr)
        return EXIT_INTERRUPTED
    if curve.interrupted:
        return EXIT_INTERRUPTED
    if not curve.points:
        print(f"no plan: {curve.reason}", file=sys.stderr)
        return EXIT_INFEASIBLE if curve.reason and "proves nothing" not in curve.reason else EXIT_NOTHING
    return EXIT_OK


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"expected a positive number, found {text}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, found {text}")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to below 1, found {text}")
    return value


def _judge(problem: Problem, curve: Frontier) -> int:
    """Judge every plan of a frontier file against the problem; one line each."""
    wrong = False
    for number, point in enumerate(curve.points):
        judged = judge(problem, point.choices)
        found = list(judged.violations)
        for name in ("time_us", "energy_mj", "switches", "changes"):
            told, real = getattr(point, name), getattr(judged, name)
            if told != real:
                found.append(f"{name} is {real}, the file says {told}")
        wrong = wrong or bool(found)
        print(
            f"points[{number}]: {judged.time_us} us, {judged.energy_mj} mJ, {judged.memory_bytes} bytes, "
            f"{judged.switches} switches: {'; '.join(found) or 'valid'}"
        )
    return EXIT_INPUT if wrong else EXIT_OK


def _limited(problem: Problem, args: argparse.Namespace) -> Problem:
    limits = problem.limits
    if args.max_time_us is not None:
        limits = replace(limits, time_us=args.max_time_us)
    if args.max_energy_mj is not None:
        limits = replace(limits, energy_mj=args.max_energy_mj)
    return replace(problem, limits=limits)


def _run(problem: Problem, args: argparse.Namespace) -> Frontier:
    show = None if args.quiet else _Live()
    settings = {
        "time_limit_s": args.time_limit,
        "deterministic_time": args.deterministic_time,
        "seed": args.seed,
        "gap": args.gap,
        "robust": args.robust,
        "progress": show,
    }
    try:
        if args.objective is None:
            return frontier(problem, points=args.points, **settings)
        return _alone(problem, solve(problem, Objective(args.objective), **settings))
    finally:
        if show is not None:
            show.close()


def _alone(problem: Problem, solution: Solution) -> Frontier:
    stock_time_us, stock_energy_mj = stock_of(problem)
    return Frontier(
        stock_time_us=stock_time_us,
        stock_energy_mj=stock_energy_mj,
        points=(solution,) if solution.choices else (),
        reason=solution.reason
        or ("" if solution.status is not Status.UNKNOWN else "no plan was found; that proves nothing"),
        interrupted=solution.interrupted,
        solve_s=solution.solve_s,
    )


class _Live:
    """One live line on a terminal, at most one plain line a second elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._next = 0.0
        self._open = False

    def __call__(self, state: Progress) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.1 if self._terminal else 1.0)
        best = "-" if state.best is None else f"{state.best:.0f}"
        bound = "-" if state.bound == float("-inf") else f"{state.bound:.0f}"
        line = f"best {best}  bound {bound}  gap {state.gap:.3%}  {state.elapsed_s:.1f} s"
        self._open = self._terminal
        sys.stderr.write(f"\r\x1b[K{line}" if self._terminal else f"{line}\n")
        sys.stderr.flush()

    def close(self) -> None:
        if self._open:
            sys.stderr.write("\n")


if __name__ == "__main__":
    sys.exit(main())
