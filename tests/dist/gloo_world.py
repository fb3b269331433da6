"""Starts a few processes that form a gloo group, runs scenarios in them, and returns what they say.

A scenario is a function of `dist_scenarios` (or another module) taking (rank, world_size, **parameters)
and returning something JSON can hold. Starting processes costs seconds, so one world runs many scenarios.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_world(
    world_size: int,
    scenarios: list[tuple[str, dict[str, Any]]],
    *,
    module: str = "dist_scenarios",
    timeout_s: float = 150.0,
    environment: dict[str, str] | None = None,
    group_timeout_s: float = 60.0,
    only: int | None = None,
) -> list[list[Any]]:
    """Run scenarios one after another in one world; returns results[scenario][rank].

    With `only` the world ends with that rank, whatever the others do.
    A scenario that raised gives {"error": traceback} for that rank, and ends the world there.
    """
    with tempfile.TemporaryDirectory() as folder:
        common = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(world_size),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(
                [str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
            ),
            **(environment or {}),
        }
        request = json.dumps(
            {"module": module, "scenarios": scenarios, "timeout_s": group_timeout_s, "meet": only is None}
        )
        processes = []
        for rank in range(world_size):
            log = open(Path(folder, f"log{rank}"), "wb")  # noqa: SIM115
            command = [sys.executable, "-W", "ignore", str(HERE / "gloo_world.py"), request, folder]
            processes.append(
                subprocess.Popen(command, env={**common, "RANK": str(rank)}, stdout=log, stderr=log)
            )
            log.close()
        try:
            deadline = time.monotonic() + timeout_s
            for process in processes if only is None else [processes[only]]:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        results: list[list[Any]] = [[None] * world_size for _ in scenarios]
        for rank in range(world_size):
            path = Path(folder, f"result{rank}.jsonl")
            lines = path.read_text().splitlines() if path.exists() else []
            for index, line in enumerate(lines):
                results[index][rank] = json.loads(line)
            if len(lines) < len(scenarios):
                tail = Path(folder, f"log{rank}").read_text(errors="replace")[-3000:]
                for index in range(len(lines), len(scenarios)):
                    results[index][rank] = {"error": f"rank {rank} did not get here; its log ends: {tail}"}
        return results


def succeed(results: list[Any]) -> list[Any]:
    """Fail with the tracebacks where a rank raised; otherwise return the results."""
    errors = [r["error"] for r in results if isinstance(r, dict) and "error" in r]
    assert not errors, "\n".join(errors)
    return results


def main() -> None:
    import datetime

    import torch
    import torch.distributed as dist

    request, folder = json.loads(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=request["timeout_s"]))
    module = importlib.import_module(request["module"])
    with open(Path(folder, f"result{rank}.jsonl"), "w") as out:
        for name, parameters in request["scenarios"]:
            try:
                result = getattr(module, name)(rank, world_size, **parameters)
            except Exception:
                out.write(json.dumps({"error": traceback.format_exc()}) + "\n")
                out.flush()
                os._exit(1)
            out.write(json.dumps(result) + "\n")
            out.flush()
    if request["meet"]:
        dist.barrier()
    os._exit(0)  # teardown of groups is not under test, and may wait for a rank that has failed


if __name__ == "__main__":
    main()
