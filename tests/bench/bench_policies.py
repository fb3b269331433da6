"""Benchmarks of the published policies on their published tables; raw results go to results/policies_*.json.

    python tests/bench/bench_policies.py perseus --lowtime    frontier, gap and time, against lowtime run here
    python tests/bench/bench_policies.py perseus-long         24, 48 and 96 micro-batches
    python tests/bench/bench_policies.py twente               saving against switching time
    python tests/bench/bench_policies.py chase                carbon against stock and against fixed choices
    python tests/bench/bench_policies.py zeus                 cost of recurring jobs against an oracle
    python tests/bench/bench_policies.py compare              every policy on a recorded step (simulated)

The tables are read from KAREUS_SHARED (or ../shared beside the checkout).
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections import defaultdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from kareus.plan.policies.batch_size import BatchSizeSearch
from kareus.plan.policies.chase import ChaseCost, always, chase, run_job, within_deadline
from kareus.plan.policies.choose import Point
from kareus.plan.policies.perseus import BLOCKING_POWER_W, plan_pipeline
from kareus.plan.policies.pipeline import one_f_one_b, read_stage_profile
from kareus.plan.policies.series import Series, forecast, read_series_csv
from kareus.plan.policies.twente import Kernel, KernelOption
from kareus.plan.policies.twente_switch import Switching, select_switching
from kareus.plan.policies.zeus import CostRule
from solver.slack_round import Graph

SHARED = Path(os.environ.get("KAREUS_SHARED", Path(__file__).parents[3] / "shared"))
DATA = SHARED / "data/published/zeus"
RESULTS = Path(__file__).parent / "results"
STAGES = 8


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def installed(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def write(name, data):
    """Write one raw result with what is needed to repeat it."""
    document = {
        "schema": f"kareus.bench.{name}/1",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpus": len(os.sched_getaffinity(0)),
            "arch": platform.machine(),
            "load": os.getloadavg()[0],
        },
        "versions": {n: installed(n) for n in ("numpy", "ortools", "lowtime")}
        | {"python": platform.python_version()},
        "command": " ".join(["python", "tests/bench/bench_policies.py", *sys.argv[1:]]),
        "data": data,
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {path}", file=sys.stderr)


def blocking_w(gpu):
    return BLOCKING_POWER_W["A40" if gpu == "a40" else "A100"]


def planned(model, gpu, micro_batches, unit_s=None):
    profile = read_stage_profile(DATA / f"sosp24/stage_profile/{model}+{gpu}_bf16.csv")
    wall, cpu = time.perf_counter(), time.process_time()
    frontier = plan_pipeline(
        one_f_one_b(STAGES, micro_batches), profile, blocking_power_w=blocking_w(gpu), time_unit_s=unit_s
    )
    return frontier, {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def figures(frontier):
    return {
        "points": len(frontier.time_s),
        "gap_max": float(frontier.gap.max()),
        "gap_mean": float(frontier.gap.mean()),
        "fastest_s": float(frontier.time_s[0]),
        "saving_fastest": float(1 - frontier.energy_j[0] / frontier.max_clock_energy_j),
        "least_energy_s": float(frontier.time_s[frontier.least_energy_index]),
        "max_clock": {"time_s": frontier.max_clock_time_s, "energy_j": frontier.max_clock_energy_j},
    }


def against(frontier, time_s, energy_j):
    """Relative energy difference at each time of another frontier, and how many times we cannot meet."""
    index = np.searchsorted(frontier.time_s, time_s + 1e-9, side="right") - 1
    met = index >= 0
    ours = frontier.energy_j[index] + STAGES * frontier.blocking_power_w * (time_s - frontier.time_s[index])
    difference = (ours / energy_j - 1)[met]
    bound = frontier.bound_j(time_s)
    return {
        "times": len(time_s),
        "met": int(met.sum()),
        "max": float(difference.max()),
        "mean": float(difference.mean()),
        "below_our_proven_bound": int((energy_j < bound * (1 - 1e-9)).sum()),
    }


def run_lowtime(model, gpu, micro_batches, unit_s):
    """Run lowtime on the same graph; returns its promise and what its plans come to in measured times."""
    import networkx
    from lowtime.cost_model import ExponentialModel
    from lowtime.graph_utils import add_sink_node, add_source_node
    from lowtime.operation import CandidateExecutionOptions, ExecutionOption, OperationSpec
    from lowtime.operation import Operation as LowtimeOperation
    from lowtime.solver import PhillipsDessouky

    profile = read_stage_profile(DATA / f"sosp24/stage_profile/{model}+{gpu}_bf16.csv")
    pipeline = one_f_one_b(STAGES, micro_batches)
    power = blocking_w(gpu)
    began, cpu = time.perf_counter(), time.process_time()
    specs = {}
    for key, options in profile.items():
        candidates = CandidateExecutionOptions(
            options=[
                ExecutionOption(
                    real_time=o.time_s,
                    unit_time=unit_s,
                    cost=o.energy_j - power * o.time_s,
                    knob=o.sm_clock_mhz,
                )
                for o in options
            ]
        )
        specs[key] = OperationSpec(
            options=candidates, cost_model=ExponentialModel(candidates, search_strategy="best")
        )
    dag = networkx.DiGraph()
    operations = [LowtimeOperation(spec=specs[op.stage, op.kind]) for op in pipeline.operations]
    for i, operation in enumerate(operations):
        dag.add_node(i, op=operation)
    dag.add_edges_from(pipeline.edges)
    add_source_node(dag, len(operations))
    dag.graph["source_node"] = len(operations)
    add_sink_node(dag, len(operations) + 1)
    dag.graph["sink_node"] = len(operations) + 1
    graph = Graph.build(len(operations), np.array(pipeline.edges))
    measured = {key: {o.sm_clock_mhz: o for o in options} for key, options in profile.items()}
    promised, plans = [], []
    for result in PhillipsDessouky(dag).run():
        promised.append((result.real_time, result.cost + STAGES * power * result.real_time))
        plans.append([operation.assigned_knob for operation in operations])
    spent = {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}
    real = []
    for knobs in plans:
        used = [
            measured[op.stage, op.kind][knob] for op, knob in zip(pipeline.operations, knobs, strict=True)
        ]
        # Whole microseconds, rounded up, as in the tables our plans and bounds are made from.
        whole = np.ceil(np.array([[o.time_s * 1e6] for o in used]) - 1e-9) * 1e-6
        makespan = float(graph.makespan(whole)[0])
        own = sum(o.energy_j - power * o.time_s for o in used)
        real.append((makespan, own + STAGES * power * makespan))
    return np.array(promised), np.array(real), spent


def perseus(with_lowtime):
    data = []
    for model, gpu, unit_s in (
        ("gpt3-175b", "a100_sxm", 1e-3),
        ("bloom", "a100_sxm", 1e-3),
        ("gpt3-175b", "a40", 1e-4),
    ):
        frontier, spent = planned(model, gpu, 12)
        floored, _ = planned(model, gpu, 12, unit_s)
        entry = {
            "model": model,
            "gpu": gpu,
            "stages": STAGES,
            "micro_batches": 12,
            "seconds": spent,
        } | figures(frontier)
        entry["times_floored"] = figures(floored)
        sources = {"published": (f"frontier_emulated/{gpu}__{model}_bf16_mb12.csv", "energy")}
        if (model, gpu) == ("gpt3-175b", "a100_sxm"):
            sources["golden"] = ("lowtime_rerun_a100_gpt3_mb12.csv", "cost_with_p2p")
        for name, (file, column) in sources.items():
            if not (DATA / "sosp24" / file).exists():
                continue
            table = rows(DATA / "sosp24" / file)
            time_s = np.array([float(r["time"]) for r in table])
            energy_j = np.array([float(r[column]) for r in table])
            entry[f"against_{name}"] = {
                "times_floored_alike": against(floored, time_s, energy_j),
                "measured_times": against(frontier, time_s, energy_j),
            }
        if with_lowtime and gpu == "a100_sxm":
            promised, real, seconds = run_lowtime(model, gpu, 12, unit_s)
            entry["lowtime"] = {
                "seconds": seconds,
                "points": len(promised),
                "promised_by_it_floored_alike": against(floored, promised[:, 0], promised[:, 1]),
                "its_plans_in_measured_times": against(frontier, real[:, 0], real[:, 1]),
                "its_plans_longer_than_promised": float((real[:, 0] / promised[:, 0] - 1).mean()),
            }
        data.append(entry)
        print(json.dumps(entry, indent=1))
    write("policies_perseus", data)


def perseus_long():
    data = []
    for model, gpu in (("gpt3-175b", "a100_sxm"), ("bloom", "a100_sxm"), ("gpt3-175b", "a40")):
        for count in (24, 48, 96):
            frontier, spent = planned(model, gpu, count)
            entry = {"model": model, "gpu": gpu, "stages": STAGES, "micro_batches": count, "seconds": spent}
            data.append(entry | figures(frontier))
            print(json.dumps(data[-1]))
    write("policies_perseus_long", data)


def twente_table():
    """The 46 kernels with stock and the published choice, and the launches of a step."""
    table = rows(DATA / "twente/twente_table1_fig5.csv")

    def clock(text):
        return None if text == "auto" else int(text)

    kernels = []
    for r in table:
        time_s, energy_j = float(r["auto_time_ms_fig5"]) * 1e-3, float(r["auto_energy_j_fig5"])
        stock = KernelOption(mem_clock_mhz=None, sm_clock_mhz=None, time_s=time_s, energy_j=energy_j)
        chosen = KernelOption(
            mem_clock_mhz=clock(r["mem_mhz"]),
            sm_clock_mhz=clock(r["core_mhz"]),
            time_s=time_s * (1 + float(r["time_change_pct"]) / 100),
            energy_j=energy_j * (1 + float(r["energy_change_pct"]) / 100),
        )
        options = (stock,) if chosen.clocks == stock.clocks else (stock, chosen)
        kernels.append(Kernel(name=r["kernel"], repeat=int(r["repeat"]), options=options))
    launches = []
    for _, group in itertools.groupby(range(len(table)), key=lambda i: table[i]["section"]):
        block = list(group)
        launches += block * kernels[block[0]].repeat
    return kernels, launches


def twente():
    kernels, launches = twente_table()
    data = []
    for tolerance in (0.0, 0.01, 0.02, 0.05):
        for switch_ms in (0, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 6, 10, 20, 50, 100, 150):
            plan = select_switching(
                kernels, launches, Switching(time_s=switch_ms * 1e-3, power_w=339.0), tolerance=tolerance
            )
            data.append(
                {
                    "tolerance": tolerance,
                    "switch_ms": switch_ms,
                    "time_change": plan.time_s / plan.stock_time_s - 1,
                    "energy_change": plan.energy_j / plan.stock_energy_j - 1,
                    "bound_change": plan.bound_j / plan.stock_energy_j - 1,
                    "switches": plan.switches,
                    "launches": len(launches),
                }
            )
            print(json.dumps(data[-1]))
    write("policies_twente_switching", {"switch_power_w": 339.0, "rows": data})


def chase_rows():
    past = read_series_csv(DATA / "chase/carbon_hist.csv", column="hist")
    data = []
    for gpu, batch in (("a40", 256), ("a40", 360), ("a40", 512), ("v100", 256), ("v100", 360), ("p100", 128)):
        points = []
        for r in rows(DATA / f"nsdi23_trace/summary_power_{gpu}.csv"):
            if (r["network"], int(r["batch_size"])) == ("resnet50", batch):
                seconds = float(r["time_per_epoch"]) / 100
                energy = seconds * float(r["average_power"])
                points.append(Point(label=r["power_limit"], time_s=seconds, energy_j=energy))
        stock = max(points, key=lambda p: int(p.label))
        start, work = past.start_s[0], 60 * 3600 / stock.time_s
        base = run_job(work, past, start, always(stock))

        def expected(elapsed_s, start=start):
            values = forecast(past, start + elapsed_s - 1, 200)
            times = tuple(elapsed_s + 1800.0 * i for i in range(200))
            return Series(start_s=times, value=tuple(values), interval_s=1800.0)

        limit_s = 1.025 * base.time_s
        fixed = [run_job(work, past, start, always(p)) for p in points]
        results = {
            "chase_eta_0.24": run_job(
                work, past, start, chase(points, ChaseCost(max_power_w=300, max_intensity=750))
            ),
            "deadline_2.5_percent": run_job(work, past, start, within_deadline(points, limit_s, expected)),
            "best_fixed_within_2.5_percent": min(
                (f for f in fixed if f.time_s <= limit_s), key=lambda f: f.footprint
            ),
        }
        entry = {"gpu": gpu, "batch_size": batch, "hours": 60}
        for name, result in results.items():
            entry[name] = {
                "carbon_change": result.footprint / base.footprint - 1,
                "time_change": result.time_s / base.time_s - 1,
                "swaps": result.swaps,
            }
        data.append(entry)
        print(json.dumps(entry))
    write("policies_chase", data)


# Target metric and default batch size of each job (Zeus, NSDI'23).
JOBS = {
    ("cifar100", "shufflenetv2", "adadelta"): (0.6, 1024),
    ("imagenet", "resnet50", "adadelta"): (0.65, 256),
    ("librispeech", "deepspeech2", "adamw"): (40.0, 192),
    ("movielens-1m", "ncf", "adam"): (0.41, 1024),
    ("squad", "bert_base_uncased", "adamw"): (84.0, 32),
    ("sentiment140", "bert_base_uncased", "adamw"): (0.84, 128),
}


def zeus():
    data = []
    for gpu, watts in (("v100", 250), ("a40", 300), ("p100", 250)):
        rule = CostRule(max_power_w=watts, world_size=1)
        power = defaultdict(lambda: defaultdict(list))
        for r in rows(DATA / f"nsdi23_trace/summary_power_{gpu}.csv"):
            seconds = float(r["time_per_epoch"])
            cost = rule.cost_j(time_s=seconds, energy_j=seconds * float(r["average_power"]))
            power[r["dataset"], r["network"], r["optimizer"]][int(r["batch_size"])].append(cost)
        for job, (target, default) in JOBS.items():
            epochs = defaultdict(list)
            for r in rows(DATA / "nsdi23_trace/summary_train.csv"):
                if (r["dataset"], r["network"], r["optimizer"]) == job and float(
                    r["target_metric"]
                ) == target:
                    epochs[int(r["batch_size"])].append(float(r["target_epoch"]))
            sizes = sorted(b for b in power[job] if b in epochs)
            expected = {
                b: float(np.mean(epochs[b])) * min(power[job][b])
                for b in sizes
                if np.isfinite(epochs[b]).all()
            }
            oracle = min(expected.values())
            recurrences = 2 * len(sizes) * max(len(power[job][b]) for b in sizes)
            later, during = [], []
            for seed in range(20):
                generator, measured = np.random.default_rng(seed), set()
                search = BatchSizeSearch(sizes, default if default in sizes else max(expected), seed=seed)
                for run in range(recurrences + 20):
                    size = search.next()
                    goal, epoch, spent = generator.choice(epochs[size]), 0, 0.0
                    while not epoch >= goal and epoch < 100 and not search.should_stop(spent):
                        spent += (
                            float(np.mean(power[job][size]))
                            if size not in measured
                            else min(power[job][size])
                        )
                        measured.add(size)
                        epoch += 1
                    search.report(size, spent, bool(epoch >= goal))
                    if run < recurrences:
                        during.append(spent / oracle)
                    else:
                        later.append(expected.get(size, math.inf) / oracle)
            data.append(
                {
                    "gpu": gpu,
                    "job": job,
                    "recurrences": recurrences,
                    "after_over_oracle": float(np.mean(later)),
                    "during_over_oracle": float(np.mean(during)),
                }
            )
            print(json.dumps(data[-1]))
    write("policies_zeus", data)


def compare_row():
    """The table of `kareus compare` on a recorded step, as the command prints it; figures are simulated."""
    root = Path(__file__).parents[2]
    wall, cpu = time.perf_counter(), os.times()
    command = [sys.executable, "-m", "kareus", "compare", "traces/fsdp2-nvlink-default"]
    command += ["--profile", "traces/profiles/h200-nvlink.json", "--json"]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    spent = os.times()
    document = json.loads(done.stdout)
    seconds = {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": spent.children_user + spent.children_system - cpu.children_user - cpu.children_system,
    }
    write("policies_compare", {"command": ["kareus", *command[3:]], "seconds": seconds, "compare": document})


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("perseus", "perseus-long", "twente", "chase", "zeus", "compare"))
    parser.add_argument(
        "--lowtime", action="store_true", help="also run lowtime on the same graphs (minutes)"
    )
    args = parser.parse_args()
    if args.what != "compare" and not DATA.is_dir():
        parser.error(f"published tables not at {DATA}; set KAREUS_SHARED")
    if args.what == "perseus":
        perseus(args.lowtime)
    elif args.what == "perseus-long":
        perseus_long()
    elif args.what == "twente":
        twente()
    elif args.what == "chase":
        chase_rows()
    elif args.what == "compare":
        compare_row()
    else:
        zeus()


if __name__ == "__main__":
    main()
