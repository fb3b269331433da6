"""Recording jobs, run by `gloo_world` in every process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from dist_models import every_knob, make_net, observe
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import kareus
from kareus.runtime.guard import GuardSettings


def wrapped(wrapper: str) -> nn.Module:
    net = make_net()
    if wrapper == "ddp":
        return DistributedDataParallel(net, bucket_cap_mb=0.01)
    for block in net.blocks:
        fully_shard(block)
    fully_shard(net)
    return net


def train(model: nn.Module, rank: int, steps: int, *, collect: str | None, die_at: int = -1) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    session = kareus.attach(model, optimizer) if collect else None
    torch.manual_seed(100 + rank)
    losses = []
    for step in range(steps):
        if step == die_at:
            os._exit(9)
        loss = model(torch.randn(4, 32)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if session is not None:
        session.detach()
    return losses


def record(rank: int, world_size: int, *, wrapper: str, folders: list[str], steps: int, **window: int) -> Any:
    """Train stock, then the same recorded; folders are one per rank, or one for all."""
    os.environ.pop("KAREUS_COLLECT", None)
    stock = train(wrapped(wrapper), rank, steps, collect=None)
    folder = folders[rank % len(folders)]
    os.environ["KAREUS_COLLECT"] = folder
    os.environ.update({f"KAREUS_COLLECT_{name.upper()}": str(value) for name, value in window.items()})
    model = wrapped(wrapper)
    recorded = train(model, rank, steps, collect=folder)
    for name in window:
        del os.environ[f"KAREUS_COLLECT_{name.upper()}"]
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    fresh = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in wrapped(wrapper).modules())
    files = sorted(path.name for path in Path(folder).iterdir()) if Path(folder).is_dir() else []
    return {"equal": stock == recorded, "files": files, "extra_hooks": hooks - fresh}


def under_schedule(rank: int, world_size: int, *, folder: str, steps: int, guard: bool = False) -> Any:
    """Replay launch points and early gathers while a window is recorded; the schedule is left beside it."""
    for name in ("KAREUS_COLLECT", "KAREUS_SCHEDULE"):
        os.environ.pop(name, None)
    fingerprint, keys = observe(wrapped("fsdp2"), rank)
    schedule = every_knob(fingerprint, keys, copies=False, early_gathers=2)
    if rank == 0:
        schedule.save(f"{folder}.json")
    stock = train(wrapped("fsdp2"), rank, steps, collect=None)
    os.environ["KAREUS_COLLECT"] = folder
    model = wrapped("fsdp2")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    settings: Any = GuardSettings(enabled=False)
    if guard:  # asks for more pairs of blocks than the job has steps for
        settings = GuardSettings(block=10)
    session = kareus.attach(model, optimizer, schedule=schedule, guard=settings)
    torch.manual_seed(100 + rank)
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(4, 32)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    session.detach()
    del os.environ["KAREUS_COLLECT"]
    return {"equal": losses == stock, "files": sorted(p.name for p in Path(folder).glob("*"))}


def lose_a_rank(rank: int, world_size: int, *, folder: str, die_at: int) -> Any:
    """Rank 1 dies inside the window; the others fail in torch and leave by an exception."""
    os.environ["KAREUS_COLLECT"] = folder
    model = wrapped("ddp")
    try:
        train(model, rank, 12, collect=folder, die_at=die_at if rank == 1 else -1)
    except RuntimeError as error:
        import atexit

        atexit._run_exitfuncs()  # this world ends by os._exit, a user's process ends normally
        return {"error_seen": type(error).__name__}
    return {"error_seen": ""}


def profile(rank: int, world_size: int, *, wrapper: str, path: str, steps: int, budget_s: float) -> Any:
    """Train stock, then the same while settings are measured."""
    for name in ("KAREUS_COLLECT", "KAREUS_PROFILE"):
        os.environ.pop(name, None)
    stock = train(wrapped(wrapper), rank, steps, collect=None)
    os.environ["KAREUS_PROFILE"] = path
    os.environ["KAREUS_PROFILE_BUDGET_S"] = str(budget_s)
    measured = train(wrapped(wrapper), rank, steps, collect=path)
    del os.environ["KAREUS_PROFILE"], os.environ["KAREUS_PROFILE_BUDGET_S"]
    return {"equal": stock == measured}
