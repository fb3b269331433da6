"""Stock against schedule on gloo between two hosts with a slow link: network namespaces, traffic shaped.

    python tests/bench/bench_shaped_link.py -o tests/bench/results/runtime_shaped_link.json     # root, iproute2

The link is slow enough that a step's communication alone takes `--ratio` times as long as its compute
alone; both are measured. A few schedules are tried in short blocks; the best of them and stock then
alternate in blocks of their own, in one process a host. Losses of both must be equal bit for bit. Writes
raw step times and the timeline of one step of each arm; asserts nothing about time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path as File
from typing import Any

import numpy as np

HERE = File(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1]), str(HERE)]

FIRST_MBIT = 500.0
WRAPPERS = ("fsdp2", "ddp")


def launch(cluster: Any, args: argparse.Namespace, wrapper: str, *extra: str) -> dict[str, Any]:
    """Run the worker on every host and return what rank 0 wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out = File(folder, "worker.json")
        script = [
            str(HERE / "shaped_link_job.py"), "--wrapper", wrapper, "--out", str(out),
            "--dim", str(args.dim), "--blocks", str(args.blocks), "--rows", str(args.rows), *extra,
        ]  # fmt: skip
        for finished in cluster.torchrun(script, timeout_s=args.timeout):
            if finished.returncode != 0:
                raise SystemExit(f"a host ended with {finished.returncode}:\n{finished.output[-4000:]}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def ratio_95(pairs: list[list[float]]) -> list[float]:
    """Return the 95 % bootstrap interval of the median ratio of pairs."""
    ratios = np.array([scheduled / stock for stock, scheduled in pairs])
    random = np.random.default_rng(0)
    draws = np.median(random.choice(ratios, (2000, len(ratios))), axis=1)
    return [float(q) for q in np.quantile(draws, (0.025, 0.975))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wrapper", choices=[*WRAPPERS, "both"], default="both")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--rows", type=int, default=768)
    parser.add_argument("--ratio", type=float, default=0.8, help="communication alone over compute alone")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2, help="steps of a block")
    parser.add_argument("--timeout", type=float, default=400.0)
    parser.add_argument("-o", "--output", default=None)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the namespaces are removed on the way out
    from netns_hosts import hosts, why_not

    problem = why_not()
    if problem:
        raise SystemExit(problem)
    result: dict[str, Any] = {
        "schema": "kareus.bench_shaped_link/1",
        "command": " ".join(sys.argv),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "arms": {},
    }
    for wrapper in WRAPPERS if args.wrapper == "both" else (args.wrapper,):
        with hosts(2, rate_mbit=FIRST_MBIT) as cluster:
            plain = launch(cluster, args, wrapper, "--calibrate")
            # Time on the link is not all of it: gloo copies and sums as well, so the fit is only close.
            rate = FIRST_MBIT * plain["communication_ms"] / (args.ratio * plain["compute_ms"])
            cluster.set_rate(rate)
            found = launch(cluster, args, wrapper, "--pairs", str(args.pairs), "--steps", str(args.steps))
        found["rate_mbit"] = rate
        pairs = found["pairs_ms"]
        found["stock_ms"] = float(np.median([p[0] for p in pairs]))
        found["scheduled_ms"] = float(np.median([p[1] for p in pairs]))
        found["ratio"] = float(np.median([p[1] / p[0] for p in pairs]))
        found["ratio_95"] = ratio_95(pairs)
        result["arms"][wrapper] = found
        shown = {k: v for k, v in found.items() if k not in ("pairs_ms", "timelines", "schedule")}
        print(json.dumps({wrapper: shown}, indent=1), flush=True)
        if args.output:
            File(args.output).write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
