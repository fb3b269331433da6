"""Measures trace readers and replay: `python tests/bench/bench_trace.py {replay,speed,memory,ranks,stragglers} ...`.

    replay  DIR...        unmodified replay of every job, lags learnt on one step and judged on the others
    speed   DIR MB        a set of ranks as it is (MB = 0), or each rank repeated to MB megabytes in all
    speed   FILE MB       the file's events repeated to MB megabytes (time and ids shifted), then read by us,
                          by json.loads, and by HolisticTraceAnalysis with `--hta PYTHON` that has it
    memory  FILE MB       the same as .json.gz, ours only, peak memory
    stragglers DIR        ByteDance's published pipeline jobs, what-if replay against the published results
    ranks   FILE COUNT    the file as COUNT ranks of one job, all read and aligned, ours only, peak memory

Each reader runs in a process of its own; peak memory is that process's (or its largest child's). CPU
seconds include children and matter where the machine is shared. Results go to tests/bench/results.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"

ALIGN = """
alignment = traces.alignment
print(json.dumps({"seconds": time.perf_counter() - began, "ranks": len(traces.ranks),
                  "matched": len(alignment.collectives), "cpu_seconds": time.process_time(),
                  "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
OURS = """
import json, resource, sys, time
began = time.perf_counter()
from kareus.trace import TraceSet, graphs
from kareus.trace.stats import step_times
traces = TraceSet.open(sys.argv[1])
exposed = {}
for rank in traces.ranks:
    exposed[rank] = sum(step_times(g).exposed_comm_us for g in graphs(traces.load(rank)))
print(json.dumps({"seconds": time.perf_counter() - began, "exposed_us": exposed,
                  "cpu_seconds": time.process_time(),
                  "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
JSON = """
import gzip, json, resource, sys, time
began = time.perf_counter()
opened = gzip.open if sys.argv[1].endswith(".gz") else open
with opened(sys.argv[1], "rb") as file:
    count = len(json.loads(file.read())["traceEvents"])
print(json.dumps({"seconds": time.perf_counter() - began, "events": count,
                  "cpu_seconds": time.process_time(),
                  "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
HTA = """
import json, os, resource, sys, time
began = time.perf_counter()
from hta.trace_analysis import TraceAnalysis
source = sys.argv[1]
if os.path.isdir(source):
    analysis = TraceAnalysis(trace_dir=source)
else:
    analysis = TraceAnalysis(trace_files={0: os.path.basename(source)}, trace_dir=os.path.dirname(source))
overlap = analysis.get_comm_comp_overlap(visualize=False)
own, below = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"seconds": time.perf_counter() - began, "overlap": overlap.iloc[:, -1].tolist(),
                  "cpu_seconds": own.ru_utime + own.ru_stime + below.ru_utime + below.ru_stime,
                  "peak_mb": max(own.ru_maxrss, below.ru_maxrss) / 1024}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("replay", "speed", "memory", "ranks", "stragglers"))
    parser.add_argument("source", nargs="+")
    parser.add_argument("--hta", help="Python interpreter that has HolisticTraceAnalysis or traceinsight")
    parser.add_argument(
        "--runs", type=int, default=2, help="runs of each reader, in turns; the fastest counts"
    )
    args = parser.parse_args()
    if args.what == "replay":
        save("trace_replay", {"jobs": [job for source in args.source for job in replay(Path(source))]})
        return
    if args.what == "stragglers":
        folder = Path(args.source[0])
        save("trace_stragglers", {"jobs": [stragglers(p) for p in sorted(folder.glob("trace-*.parquet"))]})
        return
    source, megabytes = Path(args.source[0]), int(args.source[1])
    with tempfile.TemporaryDirectory() as folder:
        if args.what == "ranks":
            path, count = Path(folder), int(args.source[1])
            size = as_ranks(source, path, count)
        elif source.is_dir() and megabytes == 0:
            path, size = source, sum(p.stat().st_size for p in source.glob("*.json*"))
        elif source.is_dir():
            path, files = Path(folder), sorted(source.glob("rank*.json*"))
            size = sum(
                repeat(one, path / f"rank{number}.json", (megabytes << 20) // len(files))
                for number, one in enumerate(files)
            )
        else:
            path = Path(folder) / ("rank0.json.gz" if args.what == "memory" else "rank0.json")
            size = repeat(source, path, megabytes << 20)
        readers = {"kareus": (sys.executable, OURS + ALIGN if args.what == "ranks" else OURS)}
        if args.what == "speed" and not source.is_dir():
            readers["json.loads"] = (sys.executable, JSON)
        if args.hta:
            readers["hta"] = (args.hta, HTA)
        figures: dict[str, list[dict[str, Any]]] = {name: [] for name in readers}
        for _ in range(args.runs):  # in turns: what else runs on the machine changes by the minute
            for name, reader in readers.items():
                figures[name].append(measure(*reader, path))
    best = {name: min(runs, key=lambda run: run["seconds"]) for name, runs in figures.items()}
    for name, run in best.items():
        print(
            f"{name:12} {run['seconds']:8.2f} s {run.get('cpu_seconds', 0):8.2f} s CPU {run['peak_mb']:8.0f} MB"
        )
    save(
        f"trace_{args.what}_{source.name.split('.')[0]}{'big' if source.is_dir() and megabytes else ''}",
        {"source": source.name, "bytes": size, "runs": figures},
    )


def replay(folder: Path) -> list[dict[str, Any]]:
    """Replay errors of every ordered pair of steps, by single rank and by all ranks together."""
    from kareus.trace import TraceSet, graphs
    from kareus.trace.replay import judge, learn_ranks, replay, replay_ranks

    traces = TraceSet.open(folder)
    steps = [graphs(traces.load(rank)) for rank in traces.ranks]
    offsets = [traces.alignment.offset_ns[rank] for rank in traces.ranks]
    count = min(len(s) for s in steps)
    rows: list[dict[str, Any]] = []
    for source in range(count):
        for judged in range(count):
            if source == judged and count > 1:
                continue
            lags = learn_ranks([s[source] for s in steps])
            together = replay_ranks([s[judged] for s in steps], lags, offsets)
            for number, rank in enumerate(traces.ranks):
                graph = steps[number][judged]
                for mode, times in (
                    ("rank alone", replay(graph, lags[number])),
                    ("all ranks", together[number]),
                ):
                    error = msgspec.to_builtins(judge(graph, times))
                    rows.append(
                        {"learnt_on": source, "judged_on": judged, "rank": rank, "mode": mode, **error}
                    )
    worst = {k: max(r[k] for r in rows) for k in ("step_time", "exposed_comm", "kernel_end")}
    middle = {k: statistics.median(r[k] for r in rows) for k in worst}
    note = "  (judged on the step learnt on: there is no other)" if count == 1 else ""
    print(folder.name + note, *(f"{k}: median {middle[k]:.2%} worst {worst[k]:.2%}" for k in worst), sep="  ")
    return [{"job": folder.name, "in_sample": count == 1, "median": middle, "worst": worst, "rows": rows}]


def stragglers(path: Path) -> dict[str, Any]:
    """One of ByteDance's published jobs: our step times over the published ones, minus one."""
    import numpy as np
    import pyarrow.parquet as parquet

    from kareus.trace.pipeline_ops import COLUMNS, read_job, replay_job, without_stragglers

    columns = parquet.read_table(path)
    began = time.process_time()
    job = read_job(
        {c: np.array(columns[c].to_pylist()) if c == "optype" else columns[c].to_numpy() for c in COLUMNS}
    )
    prompt, lasts = replay_job(job, job.duration, job.transfer)
    even, _ = replay_job(job, *without_stragglers(job, lasts))
    seconds = time.process_time() - began
    name = path.stem.removeprefix("trace-")
    published = json.loads((path.parent / f"result-{name}.json").read_text())
    ours = {"step_t_base": job.recorded_s(), "step_t_nodelay": prompt, "step_t_noblk": even}
    worst = {}
    for what, times in ours.items():
        theirs = np.array([published[what][str(step)] for step in job.steps])
        worst[what] = float(np.abs(times / theirs - 1).max())
    return {
        "job": name,
        "gpus": published["job_meta"].get("world_size"),
        "steps": len(job.steps),
        "rows": columns.num_rows,
        "worst_step_error": worst,
        "blocking_slowdown": {
            "ours": float(prompt.mean() / even.mean()),
            "published": published["blocking_slowdown"],
        },
        "unmodified_against_recorded": float(np.abs(prompt / job.recorded_s() - 1).mean()),
        "cpu_seconds": seconds,
    }


def repeat(source: Path, target: Path, size: int) -> int:
    """Write a file's events over and over, later and with other ids each time, until it has `size` bytes."""
    data = source.read_bytes()
    document = msgspec.json.decode(gzip.decompress(data) if source.suffix == ".gz" else data)
    events = document.pop("traceEvents")
    times = [e["ts"] for e in events if isinstance(e.get("ts"), int | float) and e["ts"] > 0]
    period = max(times) - min(times) + 1000
    written, copy = 0, 0
    with gzip.open(target, "wb", 5) if target.suffix == ".gz" else target.open("wb") as file:
        head = json.dumps(document).encode()  # with blanks: HTA looks for the rank by such a text
        file.write(head[:-1] + b',"traceEvents":[\n')
        while written < size:
            chunk = b",\n".join(msgspec.json.encode(shifted(e, copy, period)) for e in events)
            file.write((b",\n" if copy else b"") + chunk)
            written += len(chunk)
            copy += 1
        file.write(b"\n]}")
    return written


def as_ranks(source: Path, folder: Path, count: int) -> int:
    """Write a rank's file once for every rank of a job of `count`; return the bytes of all."""
    data = source.read_bytes()
    document = msgspec.json.decode(gzip.decompress(data) if source.suffix == ".gz" else data)
    events = msgspec.json.encode(document.pop("traceEvents"))
    written = 0
    for rank in range(count):
        document["distributedInfo"] = {**document["distributedInfo"], "rank": rank, "world_size": count}
        head = json.dumps(document).encode()
        path = folder / f"rank{rank}.json.gz"
        path.write_bytes(gzip.compress(head[:-1] + b',"traceEvents":' + events + b"}", 1))
        written += path.stat().st_size
    return written


def shifted(event: dict[str, Any], copy: int, period: float) -> dict[str, Any]:
    """Return an event moved by whole periods, with ids of its own."""
    moved = dict(event)
    if isinstance(moved.get("ts"), int | float):
        moved["ts"] = round(moved["ts"] + copy * period, 3)
    args = moved.get("args")
    if isinstance(args, dict) and "correlation" in args:
        ids = {
            k: args[k] + copy * 10_000_000
            for k in ("correlation", "External id")
            if isinstance(args.get(k), int)
        }
        moved["args"] = {**args, **ids}
    if moved.get("cat") == "ac2g" and isinstance(moved.get("id"), int):
        moved["id"] += copy * 10_000_000
    return moved


def measure(python: str, code: str, path: Path) -> dict[str, Any]:
    """Run one reader in a process of its own and return what it printed."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, "-c", code, str(path)], capture_output=True, text=True, env=env, timeout=580, check=False
    )
    if done.returncode:
        return {"seconds": float("inf"), "peak_mb": 0.0, "error": done.stderr[-2000:]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def save(name: str, content: dict[str, Any]) -> None:
    """Write a result with where and when it was made."""
    about = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "command": "python tests/bench/bench_trace.py " + " ".join(Path(a).name for a in sys.argv[1:]),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({**about, **content}, indent=1) + "\n")


if __name__ == "__main__":
    main()
