"""Measures the solver: `python tests/bench/bench_solver.py {frontier,brute,regret,projects,steps,settings} ...`.

    frontier              generated Llama-8B, 70B and 405B-like steps, switch time 0, 10 and 50 ms, 20 points
    brute [COUNT]         random tiny problems, every feature on in some, against enumeration of all plans
    regret                what searches with 40, 100 and 200 evaluations of the same tables lose
    projects DIR          PSPLIB multi-mode instances against their published optima
    settings [COUNT]      settings of a recorded span priced in one call
    steps                 `kareus solve` from the recorded traces to a schedule: time, proof, the improver's gain

CPU time is the figure to compare: wall time depends on what else the machine does, so the load is kept
beside it. Results go to tests/bench/results.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).parents[1] / "published"))

from solver_instances import llama_step

from solver import Limits, Objective, Status, frontier, solve

RESULTS = Path(__file__).parent / "results"
SIZES = {"llama-8b": 32, "llama-70b": 80, "llama-405b": 126}


def save(name: str, measured: Any) -> None:
    record = {
        "command": " ".join(["bench_solver.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "load": os.getloadavg(),
        "versions": {
            "python": platform.python_version(),
            "ortools": version("ortools"),
            "numpy": version("numpy"),
        },
        "measured": measured,
    }
    path = RESULTS / f"solver_{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(path)


def one_frontier(name: str, switch_ms: int, points: int, time_limit_s: float) -> dict[str, Any]:
    problem = llama_step(SIZES[name], switch_us=1000 * switch_ms)
    began, cpu = time.perf_counter(), time.process_time()
    curve = frontier(problem, points=points, time_limit_s=time_limit_s)
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return {
        "instance": name,
        "switch_ms": switch_ms,
        "spans": len(problem.chain),
        "clocks": len(problem.clocks_mhz),
        "options": sum(len(k.options) for k in problem.kinds),
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "single_points": single_points(name, switch_ms),
        "points": [
            {
                "status": p.status,
                "time_us": p.time_us,
                "energy_mj": p.energy_mj,
                "bound_mj": p.bound if p.objective is Objective.ENERGY else None,
                "gap": p.gap,
                "certificate": p.certificate,
                "switches": p.switches,
                "wall_s": p.solve_s,
            }
            for p in curve.points
        ],
    }


def single_points(name: str, switch_ms: int) -> list[dict[str, Any]]:
    """CPU time of single points, each solved from nothing."""
    problem = llama_step(SIZES[name], switch_us=1000 * switch_ms)
    fastest = solve(problem, Objective.TIME, time_limit_s=120.0).time_us
    rows = []
    for slack in (1.02, 1.05, 1.1, 1.2, 1.4):
        cpu = time.process_time()
        limits = Limits(time_us=int(fastest * slack))
        point = solve(replace(problem, limits=limits), time_limit_s=120.0)
        spent = time.process_time() - cpu
        rows.append({"slack": slack, "status": point.status, "gap": point.gap, "cpu_s": spent})
    return rows


def bench_frontier(args: argparse.Namespace) -> None:
    rows = []
    for name in SIZES:
        for switch_ms in (0, 10, 50):
            command = [sys.executable, __file__, "one", name, str(switch_ms), str(args.time_limit)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
            row = json.loads(done.stdout)
            rows.append(row)
            proven = sum(p["status"] == "optimal" for p in row["points"])
            worst = max(p["gap"] for p in row["points"])
            slowest = max(p["cpu_s"] for p in row["single_points"])
            print(
                f"{name} {switch_ms} ms: {proven}/{len(row['points'])} proven twice, gap <= {worst:.2e}, "
                f"single point <= {slowest:.1f} s CPU, {row['cpu_s']:.1f} s CPU, {row['wall_s']:.1f} s wall, "
                f"{row['peak_memory_mib']:.0f} MiB",
                flush=True,
            )
    save("frontier", rows)


def bench_brute(args: argparse.Namespace) -> None:
    from solver_cases import brute_force, tiny_problem, with_limits

    began, wrong, counts = time.process_time(), [], dict.fromkeys(("optimal", "infeasible", "other"), 0)
    for seed in range(args.count):
        problem, objective = with_limits(tiny_problem(seed), seed)
        truth = brute_force(problem, objective)
        found = solve(problem, objective, gap=0.0, tie=0.0)
        value = found.time_us if objective is Objective.TIME else found.energy_mj
        right = found.status is Status.INFEASIBLE if truth is None else value == truth >= found.bound
        if not right:
            wrong.append(seed)
        counts[found.status if found.status in counts else "other"] += 1
    print(f"{args.count} problems, {len(wrong)} wrong, {counts}")
    save(
        "brute",
        {"problems": args.count, "wrong": wrong, "statuses": counts, "cpu_s": time.process_time() - began},
    )


def bench_projects(args: argparse.Namespace) -> None:
    import test_solver_psplib as psplib

    from solver.project import solve_project

    rows = []
    for size in (*psplib.SIZES, "j30") if args.j30 else psplib.SIZES:
        optima = psplib.published(size) if size != "j30" else psplib.best_known(size)
        for file in sorted((psplib.DATA / size).glob("*.mm")):
            began, cpu = time.perf_counter(), time.process_time()
            found = solve_project(psplib.read_project(file), time_limit_s=args.time_limit)
            rows.append(
                {
                    "instance": file.name,
                    "published": optima.get(file.name),
                    "status": found.status,
                    "makespan": found.makespan,
                    "bound": found.bound,
                    "cpu_s": time.process_time() - cpu,
                    "wall_s": time.perf_counter() - began,
                }
            )
        here = [r for r in rows if r["instance"].startswith(size)]
        equal = sum((r["makespan"] or None) == r["published"] for r in here)
        proven = sum(r["status"] in ("optimal", "infeasible") for r in here)
        print(f"{size}: {len(here)} instances, {equal} equal, {proven} proven", flush=True)
    save("projects", rows)


def bench_regret(args: argparse.Namespace) -> None:
    from solver_searches import SEARCHES, Game

    rows = []
    for name in ("llama-8b", "llama-70b"):
        for switch_ms in (0, 10):
            free = llama_step(SIZES[name], switch_us=1000 * switch_ms)
            fastest = solve(free, Objective.TIME).time_us
            problem = replace(free, limits=Limits(time_us=int(1.1 * fastest)))
            cpu = time.process_time()
            best = solve(problem)
            ours_s = time.process_time() - cpu
            for search in SEARCHES:
                for budget in (40, 100, 200):
                    regrets, spent = [], time.process_time()
                    for seed in range(args.seeds):
                        game = Game(problem, budget=budget, seed=seed)
                        search(game)
                        regrets.append(game.best_mj / best.energy_mj - 1)
                    row = {
                        "instance": name,
                        "switch_ms": switch_ms,
                        "search": search.__name__,
                        "evaluations": budget,
                        "regret_median": sorted(regrets)[len(regrets) // 2],
                        "regret_worst": max(regrets),
                        "cpu_s": (time.process_time() - spent) / args.seeds,
                        "solver_bound_gap": best.gap,
                        "solver_cpu_s": ours_s,
                    }
                    rows.append(row)
                    print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    save("regret", rows)


def bench_steps(args: argparse.Namespace) -> None:
    """Whole commands as a user runs them, frontier included; CPU time is the children's."""
    rows = []
    for name in ("fsdp2-nvlink-default", "fsdp2-hostmem-default", "ddp-nvlink-default"):
        for clocks in ("off", "advise"):
            with tempfile.TemporaryDirectory() as folder:
                command = [
                    sys.executable,
                    "-m",
                    "kareus",
                    "solve",
                    f"traces/{name}",
                    "--json",
                    "--clocks",
                    clocks,
                ]
                command += ["--profile", args.profile] if args.profile else []
                command += ["-o", f"{folder}/schedule.json", "--frontier", f"{folder}/frontier.json"]
                began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
                done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                points = json.loads(Path(folder, "frontier.json").read_text())["points"]
            found = json.loads(done.stdout)
            wanted = ("status", "objective", "gap", "solve_s", "stock", "predicted", "simulated", "improver")
            row = {
                "trace": name,
                "clocks": clocks,
                "wall_s": time.perf_counter() - began,
                "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
                **{key: found[key] for key in wanted},
                "certificate": found["bound"]["certificate"],
                "kept_stock": found["kept_stock"],
                "points": len(points),
                "worst_gap": max(p["gap"] for p in points),
                "proven": sum(p["status"] == "optimal" for p in points),
            }
            rows.append(row)
            print(row, flush=True)
    save("steps", rows)


def bench_settings(args: argparse.Namespace) -> None:
    """The recorded span with most settings, repeated to COUNT of them; median of five calls."""
    import numpy as np

    from kareus.model.cost import CostModel
    from kareus.model.span_cost import evaluate
    from kareus.model.span_work import SpanConfigs, span_work
    from kareus.plan.knobs import Knobs
    from kareus.plan.options import enumerate_settings
    from kareus.trace.graph import graphs
    from kareus.trace.ranks import TraceSet
    from kareus.trace.spans import find_spans

    graph = graphs(TraceSet.open("traces/fsdp2-nvlink-collected").load(0))[-1]
    cost = CostModel.assumed(graph.gpu, graph.num_sms)
    found = [(enumerate_settings(span, graph.collectives, cost, Knobs()), span) for span in find_spans(graph)]
    settings, span = max(found, key=lambda pair: len(pair[0]))
    rows = np.arange(args.count) % len(settings)
    configs = SpanConfigs(
        num_ctas=settings.num_ctas[rows],
        position=settings.position[rows],
        serialise=settings.serialise[rows],
        sm_clock_mhz=np.full(args.count, cost["reference_clock_mhz"]),
    )
    work, spent = span_work(graph, span), []
    for _ in range(5):
        cpu = time.process_time()
        evaluate(work, configs, cost)
        spent.append(time.process_time() - cpu)
    measured = {
        "span": span.name,
        "compute_ops": len(span.compute),
        "collectives": len(span.collectives),
        "distinct_settings": len(settings),
        "settings": args.count,
        "cpu_s": sorted(spent),
    }
    print(measured)
    save("settings", measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(required=True)
    p = commands.add_parser("frontier")
    p.add_argument("--time-limit", type=float, default=40.0)
    p.set_defaults(run=bench_frontier)
    p = commands.add_parser("one")
    p.add_argument("name")
    p.add_argument("switch_ms", type=int)
    p.add_argument("limit", type=float)
    p.set_defaults(run=lambda a: print(json.dumps(one_frontier(a.name, a.switch_ms, 20, a.limit))))
    p = commands.add_parser("brute")
    p.add_argument("count", type=int, nargs="?", default=2000)
    p.set_defaults(run=bench_brute)
    p = commands.add_parser("regret")
    p.add_argument("--seeds", type=int, default=5)
    p.set_defaults(run=bench_regret)
    p = commands.add_parser("settings")
    p.add_argument("count", type=int, nargs="?", default=200_000)
    p.set_defaults(run=bench_settings)
    p = commands.add_parser("steps")
    p.add_argument("--profile", help="profile to fit costs from (default: assumed costs, no fit)")
    p.set_defaults(run=bench_steps)
    p = commands.add_parser("projects")
    p.add_argument("--time-limit", type=float, default=20.0)
    p.add_argument("--j30", action="store_true")
    p.set_defaults(run=bench_projects)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
