"""What planning span by span loses against every combination of settings, played op by op.

    python tests/bench/bench_decomposition.py [--steps 12] -o tests/bench/results/solver_decomposition.json

Steps of one layer (one_layer_steps.py) are small enough to simulate every budget, launch point and serialised
setting of every collective together. The best of all those steps is the optimum of the op-level model; the
solver's plan, made from tables that price each span alone, and what local search makes of it are compared with it.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from one_layer_steps import one_layer_step

from kareus.errors import InputError
from kareus.model.calibrate import calibrated
from kareus.model.cost import CostModel
from kareus.model.simulate import simulate
from kareus.plan.improve import improve
from kareus.plan.knobs import Knobs
from kareus.plan.lower import decisions_of
from kareus.plan.problem import StepProblem, build_problem
from kareus.schedule import Schedule
from kareus.trace.identity import fingerprint
from solver import Objective, solve

KNOBS = Knobs(ctas=(2, 4, 8, 16), copy_engine=True)
COST = CostModel.assumed("NVIDIA H200", 132)


def played_us(step: StepProblem, rows: tuple[int, ...]) -> float:
    """Simulated time of the settings of all spans, infinite where they wait for each other in a circle."""
    schedule = Schedule(fingerprint=fingerprint(step.graph), decisions=decisions_of(step, rows))
    try:
        return simulate([step.graph], schedule, step.cost).time_us
    except InputError:
        return float("inf")


def one_step(seed: int, *, strong: bool) -> dict[str, Any]:
    """Compare on one step; `strong` keeps the assumed contention, else it is calibrated to a recording without any."""
    graph = one_layer_step(seed)
    step = build_problem(graph, COST if strong else calibrated(COST, graph), KNOBS)
    chain = step.problem.chain
    cpu = time.process_time()
    found = solve(step.problem, Objective.TIME, gap=0.0)
    rows = tuple(int(step.tables[k].row[m]) for k, m in zip(chain, found.choices, strict=True))
    planned_us = played_us(step, rows)
    schedule = Schedule(fingerprint=fingerprint(graph), decisions=decisions_of(step, rows))
    improved = improve(step, found.choices, schedule, lambda _, played: (0.0, played.time_us))
    ours_s = time.process_time() - cpu
    every = list(itertools.product(*(range(len(step.tables[k].settings)) for k in chain)))
    cpu = time.process_time()
    times_us = [played_us(step, rows) for rows in every]
    best_us = min(times_us)
    return {
        "seed": seed,
        "contention": "strong" if strong else "weak",
        "combinations": len(every),
        "stock_us": played_us(step, tuple(step.tables[k].stock_row for k in chain)),
        "best_us": best_us,
        "planned_us": planned_us,
        "improved_us": improved.best[1],
        "loss": planned_us / best_us - 1,
        "loss_improved": improved.best[1] / best_us - 1,
        "stock_loss": played_us(step, tuple(step.tables[k].stock_row for k in chain)) / best_us - 1,
        "ours_cpu_s": ours_s,
        "every_cpu_s": time.process_time() - cpu,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("-o", "--output", required=True)
    args = parser.parse_args()
    rows = []
    for seed in range(args.steps):
        rows.append(one_step(seed, strong=seed % 2 == 0))
        print({k: round(v, 5) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    record = {
        "command": " ".join(["bench_decomposition.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "load": os.getloadavg(),
        "versions": {
            "python": platform.python_version(),
            "ortools": version("ortools"),
            "numpy": version("numpy"),
        },
        "measured": rows,
    }
    Path(args.output).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
