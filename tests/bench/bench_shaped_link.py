"""Stock against the solved schedule on gloo between hosts with a slow link: network namespaces, traffic shaped.

    python tests/bench/bench_shaped_link.py -o tests/bench/results/runtime_shaped_link.json     # root, iproute2

The whole loop as a user runs it: stock steps are recorded on the link, `kareus solve` plans one of them, the
schedule is replayed. The link's rate is given; the batch is chosen so that a step's communication alone
takes about `--ratio` times as long as its compute alone, and both are measured again beside the arms. Stock
and schedule alternate in blocks, in one process a host. Losses of both must be equal bit for bit. Writes raw
step times and the timeline of one step of each arm; asserts nothing about time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path as File
from typing import Any

import numpy as np

HERE = File(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(ROOT), str(HERE)]

RUN_KAREUS = "import sys; from kareus.cli.main import main; sys.exit(main())"
SCHEMA = "kareus.bench_shaped_link/2"
WRAPPERS = ("fsdp2", "ddp")
FIRST_ROWS = 512  # of the batch that the choice of the batch starts from


class Bench:
    """One wrapper on one cluster: every stage is a job of its own on all hosts.

    Args:
        cluster: the hosts. args: the command line. wrapper: "fsdp2" or "ddp". folder: for what stages hand on.
    """

    def __init__(self, cluster: Any, args: argparse.Namespace, wrapper: str, folder: File) -> None:
        self.cluster, self.args, self.wrapper, self.folder = cluster, args, wrapper, folder
        self.rows = args.rows or FIRST_ROWS

    def job(self, mode: str, *extra: str, env: dict[str, str] | None = None) -> dict[str, Any]:
        """Run the worker on every host and return what rank 0 wrote."""
        out = File(self.folder, f"{mode}.json")
        script = [
            str(HERE / "shaped_link_job.py"), "--mode", mode, "--wrapper", self.wrapper, "--out", str(out),
            "--dim", str(self.args.dim), "--blocks", str(self.args.blocks), "--rows", str(self.rows), *extra,
        ]  # fmt: skip
        for finished in self.cluster.torchrun(script, timeout_s=self.args.timeout, env=env):
            if finished.returncode != 0:
                raise SystemExit(f"a host ended with {finished.returncode}:\n{finished.output[-4000:]}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found

    def choose_rows(self) -> None:
        """Make the batch as large as the wanted ratio of communication to compute needs."""
        for _ in range(2):  # a step's compute has a part that does not grow with the batch
            plain = self.job("calibrate")
            wanted = plain["communication_ms"] / (self.args.ratio * plain["compute_ms"])
            self.rows = max(64, round(self.rows * wanted / 64) * 64)

    def solve(self) -> tuple[File, dict[str, Any]]:
        """Record stock steps on the link and plan one; returns the schedule and what `kareus solve` says."""
        traces, schedule = File(self.folder, "traces"), File(self.folder, "schedule.json")
        self.job("collect", env={"KAREUS_COLLECT": str(traces)})
        command = [sys.executable, "-c", RUN_KAREUS, "solve", str(traces), "-o", str(schedule), "--json"]
        if self.wrapper == "fsdp2":
            command += ["--early-gathers", str(self.args.early_gathers)]
        solved = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if solved.returncode:
            raise SystemExit(f"kareus solve ended with {solved.returncode}:\n{solved.stderr}")
        return schedule, json.loads(solved.stdout)

    def measure(self) -> dict[str, Any]:
        """Return stock against schedule in pairs of blocks, with how the schedule came about."""
        blocks = ("--pairs", str(self.args.pairs), "--steps", str(self.args.steps))
        if self.args.search:
            found = self.job("search", *blocks)
        else:
            schedule, solved = self.solve()
            found = {**self.job("replay", "--schedule", str(schedule), *blocks), "solve": solved}
        found["rate_mbit"], found["rows"], found["hosts"] = self.args.rate_mbit, self.rows, self.args.hosts
        pairs = found["pairs_ms"]
        found["communication_over_compute"] = found["communication_ms"] / found["compute_ms"]
        found["stock_ms"] = float(np.median([p[0] for p in pairs]))
        found["scheduled_ms"] = float(np.median([p[1] for p in pairs]))
        found["ratio"] = float(np.median([p[1] / p[0] for p in pairs]))
        found["ratio_95"] = ratio_95(pairs)
        found["pairs_faster"] = sum(p[1] < p[0] for p in pairs)
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
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument(
        "--rows", type=int, default=None, help="of the batch; chosen by --ratio where left out"
    )
    parser.add_argument("--rate-mbit", type=float, default=500.0, help="of every host's link, outgoing")
    parser.add_argument("--ratio", type=float, default=1.0, help="communication alone over compute alone")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2, help="steps of a block")
    parser.add_argument("--early-gathers", type=int, default=0, help="FSDP2: allowed to `kareus solve`")
    parser.add_argument("--search", action="store_true", help="try a few schedules instead of solving")
    parser.add_argument("--keep", metavar="DIR", default=None, help="leave traces and schedule there")
    parser.add_argument("--timeout", type=float, default=400.0)
    parser.add_argument("-o", "--output", default=None)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the namespaces are removed on the way out
    from netns_hosts import hosts, why_not

    problem = why_not()
    if problem:
        raise SystemExit(problem)
    output = File(args.output) if args.output else None
    result: dict[str, Any] = {"schema": SCHEMA, "arms": {}}
    if output is not None and output.exists():  # the other wrapper's figures stay
        earlier = json.loads(output.read_text())
        result = earlier if earlier.get("schema") == SCHEMA else result
    for wrapper in WRAPPERS if args.wrapper == "both" else (args.wrapper,):
        with tempfile.TemporaryDirectory() as scratch, hosts(args.hosts, rate_mbit=args.rate_mbit) as cluster:
            folder = File(scratch if args.keep is None else args.keep, wrapper)
            folder.mkdir(parents=True, exist_ok=True)
            bench = Bench(cluster, args, wrapper, folder)
            if args.rows is None:
                bench.choose_rows()
            facts = {
                "command": " ".join(sys.argv),
                "date": time.strftime("%Y-%m-%d"),
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
            }
            found = facts | bench.measure()
        name = wrapper if args.hosts == 2 else f"{wrapper} on {args.hosts} hosts"
        result["arms"][name] = found
        shown = {k: v for k, v in found.items() if k not in ("pairs_ms", "timelines", "schedule")}
        print(json.dumps({wrapper: shown}, indent=1), flush=True)
        if output is not None:
            output.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
