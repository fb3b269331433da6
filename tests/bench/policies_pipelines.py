"""Perseus' pipelines: frontier, proven gap and time, beside lowtime and the published frontiers."""

from __future__ import annotations

import json
import time

import numpy as np
from policies_common import DATA, rows, write

from kareus.plan.policies.perseus import BLOCKING_POWER_W, plan_pipeline
from kareus.plan.policies.pipeline import one_f_one_b, read_stage_profile
from solver.slack_round import Graph

STAGES = 8


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
