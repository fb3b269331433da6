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
import json
import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from kareus.model.fit_profile import fit_profile
from kareus.model.predict import predict
from kareus.model.profile import Profile

ROOT = Path(__file__).parents[2]
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("halves")
    command.add_argument("--choices", type=int, default=20)
    command.set_defaults(run=halves)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
