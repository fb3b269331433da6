"""Figures for many ranks without a cluster: what agreement costs, and steps scaled by the cost model.

    python tests/bench/bench_multi_node.py agreement -o tests/bench/results/multi_node_agreement.json
    python tests/bench/bench_multi_node.py clusters -o tests/bench/results/multi_node_clusters.json

`agreement` attaches one rank of jobs of 8 to 1,024 on torch's fake process group; the peers' answers are
played, so it measures what a rank does with them, not the network. `clusters` is a prediction.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path as File
from typing import Any

HERE = File(__file__).resolve().parent
ROOT = HERE.parents[1]
RANKS = (8, 64, 512, 1024)
TRACES = ("fsdp2-nvlink-default", "ddp-nvlink-default")


def agreement(num_rounds: int) -> dict[str, Any]:
    """Run the fake job of tests/dist for each size, sizes interleaved; keep every round."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "dist"), str(ROOT)])}
    rounds: dict[str, list[Any]] = {str(ranks): [] for ranks in RANKS}
    for _ in range(num_rounds):
        for ranks in RANKS:
            command = [sys.executable, "-W", "ignore", str(ROOT / "tests/dist/thousand_ranks.py"), str(ranks)]
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=200, check=True
            )
            rounds[str(ranks)].append(json.loads(done.stdout.splitlines()[-1]))
    return {"ranks": rounds}


def clusters() -> dict[str, Any]:
    """Predict both recorded jobs on clusters, each solved for."""
    found = {}
    for trace in TRACES:
        command = [
            sys.executable, "-m", "kareus", "simulate", str(ROOT / "traces" / trace),
            "--profile", str(ROOT / "traces/profiles/h200-nvlink.json"),
            "--ranks", ",".join(map(str, RANKS)), "--json",
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=1800, check=True
        )
        found[trace] = json.loads(done.stdout)
    return {"traces": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["agreement", "clusters"])
    parser.add_argument("--rounds", type=int, default=3, help="of agreement: jobs of each size, interleaved")
    parser.add_argument("-o", "--output", required=True)
    args = parser.parse_args()
    result = {
        "schema": f"kareus.bench_multi_node_{args.what}/1",
        "command": " ".join(["bench_multi_node.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        **(agreement(args.rounds) if args.what == "agreement" else clusters()),
    }
    File(args.output).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
