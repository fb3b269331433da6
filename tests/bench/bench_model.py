"""Benchmarks of the cost model and the simulator; raw results go to results/model_*.json.

    python tests/bench/bench_model.py halves    h200 profile: fitted on half of its samples, the other half predicted
    python tests/bench/bench_model.py sweep     published A100 sweep: fit on 10 %, choice after 40 measured settings
    python tests/bench/bench_model.py clocks    published clock tables: all clocks from 5
    python tests/bench/bench_model.py speed     simulation of 126 layers, one rank and 8
    python tests/bench/bench_model.py step      h200: settings of a whole step simulated, against the measured table

The published tables are read from KAREUS_SHARED (or ../shared beside the checkout).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from deep_step import deep_step

from kareus.collect.settings import Setting, schedule_for
from kareus.model.calibrate import calibrated
from kareus.model.clock_curve import clock_curves, spread_clocks
from kareus.model.cost import CostModel
from kareus.model.fit_profile import fit_profile
from kareus.model.predict import predict
from kareus.model.profile import Profile
from kareus.model.simulate import simulate
from kareus.model.surrogate import fit_surface, most_promising
from kareus.schedule import Fingerprint
from kareus.trace.graph import graphs
from kareus.trace.identity import collective_key
from kareus.trace.ranks import TraceSet

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("KAREUS_SHARED", ROOT.parent / "shared"))
RESULTS = Path(__file__).parent / "results"
PROFILE = ROOT / "traces/profiles/h200-nvlink.json"


def write(name, data):
    """Write one raw result with what is needed to repeat it."""
    document = {
        "schema": "kareus.bench.model/1",
        "command": f"bench_model.py {name}",
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        **data,
    }
    (RESULTS / f"model_{name}.json").write_text(json.dumps(document, indent=1) + "\n")


def spread(errors):
    """Median, mean, 90 % and worst of relative errors."""
    return {
        "median": float(np.median(errors)),
        "mean": float(np.mean(errors)),
        "p90": float(np.quantile(errors, 0.9)),
        "worst": float(np.max(errors)),
    }


def halves(args):
    """Fit to a random half of the samples, predict the other."""
    profile = Profile.load(PROFILE)
    samples = profile.samples
    measured = np.array([s.time_us for s in samples])
    runs = []
    for seed in range(args.choices):
        began = time.process_time()
        order = np.random.default_rng(seed).permutation(len(samples))
        train, rest = order[: len(order) // 2], order[len(order) // 2 :]
        model = fit_profile(profile, samples=[samples[i] for i in train])
        error = predict(profile, [samples[i] for i in rest], model).time_us / measured[rest] - 1
        runs.append(
            {
                "seed": seed,
                "time_error": spread(np.abs(error)),
                "fit_cpu_s": time.process_time() - began,
                "rows": {samples[i].label: round(float(e), 4) for i, e in zip(rest, error, strict=True)},
            }
        )
        every = np.abs([e for run in runs for e in run["rows"].values()])
        summary = {
            "choices": len(runs),
            "time_error": spread(every),
            "within_4_percent": float(np.mean(every <= 0.04)),
            "worst_median_of_a_choice": max(run["time_error"]["median"] for run in runs),
        }
        write("halves", {"samples": len(samples), "summary": summary, "runs": runs})
        print(json.dumps(summary), flush=True)


def a100_sweep():
    """The 876 settings as numbers, and the mean of their three repetitions: time s, energy J."""
    folder = SHARED / "data/published/kareus/attn_sm_sweep_2025-07"
    settings, time_s, energy_j = [], [], []
    for name, clock in (("1200MHz", 1200.0), ("default_clock", 1410.0)):
        with open(folder / f"energy_results_{name}.csv", newline="") as file:
            for row in csv.DictReader(file):
                start, end = int(row["overlap_start"]), int(row["overlap_end"])
                apart = start < 0
                place = (7.0, 7.0) if apart else (float(start), float(end))  # apart: after every op
                blocks, threads = int(row["comm_sm_number"]), int(row["comm_block_size"])
                settings.append((np.log(blocks), np.log(threads), *place, float(apart), clock))
                time_s.append(np.mean([float(row[f"{i}:time (s)"]) for i in range(3)]))
                energy_j.append(np.mean([float(row[f"{i}:total energy (J)"]) for i in range(3)]))
    return np.array(settings), np.array(time_s), np.array(energy_j)


FIRST, REFIT = 12, 7  # random settings before the surface chooses; measurements between length-scale fits


def choose(settings, response, measured, rng):
    """Row chosen after `measured` settings: random ones first, then by expected improvement."""
    bounds = settings.min(axis=0), settings.max(axis=0)
    seen = list(rng.choice(len(settings), FIRST, replace=False))
    scales = None
    while len(seen) < measured:
        if (len(seen) - FIRST) % REFIT == 0:
            scales = None
        surface = fit_surface(settings[seen], response[seen], bounds=bounds, scales=scales)
        scales = surface.scales
        open_rows = np.setdiff1d(np.arange(len(settings)), seen)
        seen.append(int(open_rows[most_promising(surface, settings[open_rows], response[seen].min())]))
    return seen[int(np.argmin(response[seen]))]


def sweep(args):
    """Fit on 10 % of the published A100 sweep; choices after 40 measured settings."""
    settings, time_s, energy_j = a100_sweep()
    bounds = settings.min(axis=0), settings.max(axis=0)
    fits = []
    for seed in range(args.starts):
        order = np.random.default_rng(seed).permutation(len(settings))
        train, rest = order[: len(order) // 10], order[len(order) // 10 :]
        found = {"seed": seed}
        for name, response in (("time", time_s), ("energy", energy_j)):
            mean, _ = fit_surface(settings[train], response[train], bounds=bounds).predict(settings[rest])
            found[name] = spread(np.abs(np.exp(mean) / response[rest] - 1))
        fits.append(found)
    goals = {"time": time_s, "energy": energy_j, "product": time_s * energy_j}
    chosen = {}
    for name, response in goals.items():
        over = [
            float(response[choose(settings, response, 40, np.random.default_rng(seed))] / response.min() - 1)
            for seed in range(args.starts)
        ]
        chosen[name] = {"median": float(np.median(over)), "p90": float(np.quantile(over, 0.9)), "all": over}
    summary = {
        "settings": len(settings),
        "starts": args.starts,
        "median_error": {n: float(np.median([f[n]["median"] for f in fits])) for n in ("time", "energy")},
        "worst_median_error": {n: max(f[n]["median"] for f in fits) for n in ("time", "energy")},
        "chosen_over_best": {n: {k: c[k] for k in ("median", "p90")} for n, c in chosen.items()},
    }
    write("sweep", {"summary": summary, "fits": fits, "chosen": chosen, "cpu_s": time.process_time()})
    print(json.dumps(summary))


def clocks(args):
    """Time and energy of every published clock from 5 of them."""
    tables = {}
    for path in sorted((SHARED / "data/published/zeus/sosp24/stage_profile").glob("*.csv")):
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        supported = np.array(sorted({float(r["frequency"]) for r in rows}))
        names = sorted({(r["stage"], r["instruction"]) for r in rows})
        cell = {(r["stage"], r["instruction"], float(r["frequency"])): r for r in rows}
        time_us, energy_j = (
            np.array([[float(cell[*n, f][q]) * scale for f in supported] for n in names])
            for q, scale in (("time", 1e6), ("energy", 1.0))
        )
        picked = np.isin(supported, spread_clocks(supported))
        found = clock_curves(supported[picked], time_us[:, picked], energy_j[:, picked], supported)
        rest = ~picked
        errors = {
            "time": np.abs(found.time_us / time_us - 1)[:, rest],
            "energy": np.abs(found.energy_j / energy_j - 1)[:, rest],
        }
        tables[path.stem] = {
            "operations": len(names),
            "clocks": len(supported),
            "measured_mhz": supported[picked].tolist(),
            "knees": [found.time_knee, found.power_knee],
            **{n: {**spread(e), "within_2_percent": float(np.mean(e <= 0.02))} for n, e in errors.items()},
        }
    write("clocks", {"tables": tables})
    print(json.dumps(tables))


def speed(args):
    """CPU time of one simulation of a 126-layer step, made up of equal layers."""
    cost = CostModel.assumed("NVIDIA H200", 132)
    simulate([deep_step(4)], None, cost)  # imports and first calls
    found = {}
    for ranks in (1, 8):
        steps = [deep_step(126, rank, 8) for rank in range(ranks)]
        cpu_s = []
        for _ in range(args.repeats):
            began = time.process_time()
            step = simulate(steps, None, cost)
            cpu_s.append(time.process_time() - began)
        found[f"{ranks} rank(s)"] = {
            "ops_a_rank": len(steps[0].ops),
            "events_a_play": step.events,
            "plays": step.plays,
            "step_us": step.time_us,
            "cpu_s": {"median": float(np.median(cpu_s)), "least": min(cpu_s), "all": cpu_s},
        }
    write("speed", found)
    print(json.dumps(found))


def step(args):
    """Changes from stock of whole steps: simulated against the measured table of two H200s."""
    profile = Profile.load(PROFILE)
    loops = [s for s in profile.samples if s.step is None]
    graph = graphs(TraceSet.open(ROOT / "traces/fsdp2-nvlink-default").load(0))[-1]
    keys = [key for c in graph.collectives if (key := collective_key(c)) is not None]
    job = Fingerprint(wrapper="fsdp2", world_size=2, units=())
    # Runs differ by up to 3 %, so a change is taken within one run of the table; run "b" has stock at 131 ms.
    rows = [s for s in profile.samples if s.step is not None and s.step.workload == "llama8-batch1"]
    rows = [s for s in rows if not s.step.absent and s.step.launch is None and s.run in ("a", "c")]
    stock = next(s for s in rows if s.label == "stock")
    models = {
        "loops only (no whole step seen)": fit_profile(profile, samples=loops),
        "all samples": fit_profile(profile),
    }
    found = {}
    for name, model in models.items():
        cost = calibrated(model, graph)
        base = simulate([graph], None, cost)
        table = []
        for row in rows:
            setting = Setting(
                label=row.label,
                num_ctas=tuple(row.step.num_ctas.items()),
                serialise=row.step.serialise,
                separate=row.step.separate,
            )
            outcome = simulate([graph], schedule_for(setting, job, keys), cost)
            table.append(
                {
                    "setting": row.label,
                    "measured_time_change": row.time_us / stock.time_us - 1,
                    "simulated_time_change": outcome.time_us / base.time_us - 1,
                    "measured_energy_change": row.energy_j / stock.energy_j - 1,
                    "simulated_energy_change": outcome.energy_j / base.energy_j - 1,
                }
            )
        columns = {
            key: np.array([r[key] for r in table if r["setting"] != "stock"])
            for key in table[0]
            if "change" in key
        }
        found[name] = {
            "stock": {
                "simulated_us": base.time_us,
                "recorded_us": base.measured_us,
                "energy_j": base.energy_j,
            },
            **{
                what: {
                    "error": spread(
                        np.abs(columns[f"simulated_{what}_change"] - columns[f"measured_{what}_change"])
                    ),
                    "error_of_always_stock": spread(np.abs(columns[f"measured_{what}_change"])),
                    "rank_correlation": rank_correlation(
                        columns[f"simulated_{what}_change"], columns[f"measured_{what}_change"]
                    ),
                }
                for what in ("time", "energy")
            },
            "rows": table,
        }
    write("step", {"models": found})
    print(json.dumps(found, indent=1))


def rank_correlation(one, other):
    """Spearman's."""
    return float(np.corrcoef(np.argsort(np.argsort(one)), np.argsort(np.argsort(other)))[0, 1])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("halves")
    command.add_argument("--choices", type=int, default=20)
    command.set_defaults(run=halves)
    command = commands.add_parser("sweep")
    command.add_argument("--starts", type=int, default=100)
    command.set_defaults(run=sweep)
    commands.add_parser("clocks").set_defaults(run=clocks)
    command = commands.add_parser("speed")
    command.add_argument("--repeats", type=int, default=5)
    command.set_defaults(run=speed)
    commands.add_parser("step").set_defaults(run=step)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
