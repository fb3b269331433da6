"""A training job for several hosts: started by torchrun in network namespaces, see `test_multi_node`.

    torchrun ... node_job.py FOLDER '[["replay", {"wrapper": "fsdp2"}], ...]'

Parts run one after another; every rank appends one JSON line a part to FOLDER/rank<R>.<restart>.jsonl.
"""

from __future__ import annotations

import datetime
import faulthandler
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from collect_scenarios import record
from dist_models import (
    OFF,
    ddp,
    every_knob,
    fsdp_schedule,
    make_net,
    observe,
    optimizer_of,
    shard,
    train,
    weights,
)

import kareus
from kareus.errors import MismatchError

LATE_S = 0.02


def make(wrapper: str) -> Any:
    return ddp(make_net()) if wrapper == "ddp" else shard(make_net())


def planned(wrapper: str, rank: int) -> Any:
    """A schedule that changes order, grouping and launch points, made from what the ranks observed."""
    fingerprint, keys = observe(make(wrapper), rank)
    return (every_knob if wrapper == "ddp" else fsdp_schedule)(fingerprint, keys, copies=False)


def replay(rank: int, restart: int, *, wrapper: str, steps: int, stop_at: int = -1, folder: str = "") -> Any:
    """Train as stock and scheduled; before each step a rank is late by up to 20 ms.

    At step `stop_at` of the scheduled run rank 1 leaves a file "stopped" that holds its process id, and
    waits there until the file is gone.
    """
    schedule = planned(wrapper, rank)
    stock = make(wrapper)
    expected = train(stock, optimizer_of(stock), rank, steps)
    model = make(wrapper)
    optimizer = optimizer_of(model)
    session = kareus.attach(
        model, optimizer, schedule=schedule if rank == 0 else None, guard=OFF, watch_after_s=2.0
    )
    late = random.Random(rank)

    def before(step: int) -> None:
        time.sleep(late.uniform(0, LATE_S))
        if step == stop_at and rank == 1:
            wait_for_signal(folder)

    start = time.monotonic()
    losses = train(model, optimizer, rank, steps, before=before)
    seconds = time.monotonic() - start
    report = session.report()
    messages = list(session.conductor.watch.messages) if session.conductor is not None else []
    session.detach()
    return {
        "equal": losses == expected and weights(model) == weights(stock),
        "issued": [r.issue_hash for r in session.records],
        "arms": [r.arm for r in session.records],
        "reason": report["reason"],
        "missed": report["arms"]["scheduled"]["missed"],
        "counts": report["counts"],
        "messages": messages,
        "seconds": seconds,
    }


def wait_for_signal(folder: str) -> None:
    """Tell the test which process to stop, and go on when it has seen it."""
    note = Path(folder, "stopped")
    note.with_suffix(".new").write_text(str(os.getpid()))
    note.with_suffix(".new").rename(note)
    while note.exists():
        time.sleep(0.02)


def wrong_schedule(rank: int, restart: int, *, wrapper: str) -> Any:
    """The last host was given another file than the others."""
    schedule = planned(wrapper, rank)
    if rank == dist.get_world_size() - 1:
        other = schedule.decisions[0]
        changed = msgspec.structs.replace(other, num_ctas=(other.num_ctas or 0) + 1)
        schedule = msgspec.structs.replace(schedule, decisions=(changed, *schedule.decisions[1:]))
    start = time.monotonic()
    try:
        kareus.attach(make(wrapper), schedule=schedule)
    except MismatchError as error:
        return {"message": str(error), "seconds": time.monotonic() - start}
    return {"message": "", "seconds": time.monotonic() - start}


def other_world(rank: int, restart: int, *, wrapper: str) -> Any:
    """A schedule of a job with another number of ranks, after a restart on fewer or more hosts."""
    schedule = planned(wrapper, rank)
    fingerprint = msgspec.structs.replace(schedule.fingerprint, world_size=2 * dist.get_world_size())
    schedule = msgspec.structs.replace(schedule, fingerprint=fingerprint)
    stock = make(wrapper)
    expected = train(stock, optimizer_of(stock), rank, 6)
    model = make(wrapper)
    optimizer = optimizer_of(model)
    session = kareus.attach(model, optimizer, schedule=schedule, on_mismatch="stock")
    losses = train(model, optimizer, rank, 6)
    session.detach()
    return {
        "equal": losses == expected and weights(model) == weights(stock),
        "arms": [r.arm for r in session.records],
        "reason": session.report()["reason"],
    }


def lost(rank: int, restart: int, *, wrapper: str, how: str, folder: str) -> Any:
    """Rank 1 dies, or its host is cut off, in the middle of a scheduled step."""
    schedule = planned(wrapper, rank)
    model = make(wrapper)
    optimizer = optimizer_of(model)
    session = kareus.attach(model, optimizer, schedule=schedule, guard=OFF)
    start, text = time.monotonic(), ""
    if restart == 0 and rank == 1:

        def in_backward(*_: Any) -> None:
            if session.step_count == 10:
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                wait_for_signal(folder)

        getattr(model, "module", model).blocks[1].register_full_backward_hook(in_backward)
    try:
        for step in range(20):
            start = time.monotonic()
            train(model, optimizer, rank, 1, first=step)
    except RuntimeError as error:
        text = str(error)
    session.detach()
    result = {
        "steps": session.step_count,
        "arms": [r.arm for r in session.records],
        "error_text": text,
        "seconds": time.monotonic() - start,
        "restart": restart,
        "active": session.active,
    }
    if text:  # as an unguarded job would end: torchrun sees a failed worker
        note(rank, restart, result, folder)
        os._exit(3)
    return result


def restarted(rank: int, restart: int, *, wrapper: str, folder: str) -> Any:
    """Rank 1 is killed in a scheduled step; torchrun starts all again, and training goes on from a checkpoint."""
    file = Path(folder, f"checkpoint{rank}.pt")
    schedule = planned(wrapper, rank)
    stock = make(wrapper)
    expected = train(stock, optimizer_of(stock), rank, 30)
    model = make(wrapper)
    optimizer = optimizer_of(model)
    first = 0
    if restart:
        saved = torch.load(file)
        first = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    session = kareus.attach(model, optimizer, schedule=schedule if rank == 0 else None, guard=OFF)
    losses = []
    for step in range(first, 30):
        if step == 8 and not restart:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            dist.barrier()  # both checkpoints are whole
        if step == 12 and not restart and rank == 1:
            assert session.records[-1].arm == "scheduled"
            os.kill(os.getpid(), signal.SIGKILL)
        losses += train(model, optimizer, rank, 1, first=step)
    session.detach()
    return {
        "first": first,
        "equal": losses == expected[first:] and weights(model) == weights(stock),
        "arms": [r.arm for r in session.records],
        "reason": session.report()["reason"],
    }


def collect(rank: int, restart: int, *, wrapper: str, folders: list[str]) -> Any:
    """Record without a shared folder: each host has one of its own."""
    return record(rank, dist.get_world_size(), wrapper=wrapper, folders=folders, steps=14)


def note(rank: int, restart: int, result: Any, folder: str) -> None:
    with open(Path(folder, f"rank{rank}.{restart}.jsonl"), "a") as out:
        out.write(json.dumps(result) + "\n")


def main() -> None:
    folder, parts = sys.argv[1], json.loads(sys.argv[2])
    timeout_s = float(os.environ.get("NODE_JOB_TIMEOUT_S", "60"))
    faulthandler.register(signal.SIGUSR1)  # kill -USR1 shows where a rank hangs
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
    # A launcher whose own worker was well counts no restart: the highest count is the attempt's number.
    attempt = torch.tensor(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
    dist.all_reduce(attempt, op=dist.ReduceOp.MAX)
    rank, restart = dist.get_rank(), int(attempt)
    for name, parameters in parts:
        try:
            result = globals()[name](rank, restart, **parameters)
        except Exception:
            note(rank, restart, {"error": traceback.format_exc()}, folder)
            os._exit(1)
        note(rank, restart, result, folder)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
