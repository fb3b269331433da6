"""Benchmarks of the published policies on their published tables; raw results go to results/policies_*.json.

    python tests/bench/bench_policies.py perseus --lowtime    frontier, gap and time, against lowtime run here
    python tests/bench/bench_policies.py perseus-long         24, 48 and 96 micro-batches
    python tests/bench/bench_policies.py twente               saving against switching time
    python tests/bench/bench_policies.py chase                carbon against stock and against fixed choices
    python tests/bench/bench_policies.py zeus                 cost of recurring jobs against an oracle
    python tests/bench/bench_policies.py compare              every policy on each committed trace (simulated)

The tables are read from KAREUS_SHARED (or ../shared beside the checkout).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from policies_carbon import chase_rows
from policies_common import DATA, write
from policies_jobs import zeus
from policies_kernels import twente
from policies_pipelines import perseus, perseus_long


def compare_row():
    """The tables of `kareus compare` on every committed trace, as the command prints them; all simulated."""
    root = Path(__file__).parents[2]
    profile = ["--profile", "traces/profiles/h200-nvlink.json"]
    data = []
    for trace in sorted(p.parent.name for p in root.glob("traces/*/manifest.json")):
        for costs in ([], profile):
            for slowdown in ("0%", "5%"):
                words = ["compare", f"traces/{trace}", *costs, "--max-slowdown", slowdown, "--json"]
                wall, before = time.perf_counter(), os.times()
                done = subprocess.run(
                    [sys.executable, "-m", "kareus", *words],
                    cwd=root,
                    check=True,
                    capture_output=True,
                    text=True,
                )
                after = os.times()
                cpu = after.children_user + after.children_system
                seconds = {
                    "wall_s": time.perf_counter() - wall,
                    "cpu_s": cpu - before.children_user - before.children_system,
                }
                document = json.loads(done.stdout)
                data.append({"command": ["kareus", *words], "seconds": seconds, "compare": document})
                print(" ".join(words), seconds)
    write("policies_compare", data)


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
