"""What the benchmarks of the policies share: where the published tables are, and how a result is written."""

from __future__ import annotations

import csv
import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SHARED = Path(os.environ.get("KAREUS_SHARED", Path(__file__).parents[3] / "shared"))
DATA = SHARED / "data/published/zeus"
RESULTS = Path(__file__).parent / "results"


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
