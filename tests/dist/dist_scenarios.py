"""What the processes of a test world do: replay against stock, agreement, falling back."""

from __future__ import annotations

import time
from typing import Any

import torch
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
from kareus.runtime.paths import GroupPath
from kareus.schedule import Path, Schedule


def compare(make: Any, schedule: Any, rank: int, *, steps: int = 20, guard: Any = OFF, **loop: Any) -> Any:
    """Train the same job as stock and with a schedule; return both sets of bits and the report."""
    stock = make()
    stock_losses = train(stock, optimizer_of(stock), rank, steps, **loop)
    model = make()
    optimizer = optimizer_of(model)
    session = kareus.attach(model, optimizer, schedule=schedule, guard=guard)
    losses = train(model, optimizer, rank, steps, **loop)
    report = session.report()
    observed = [str(key) for key in session.observed]
    session.detach()
    return {
        "equal": losses == stock_losses and weights(model) == weights(stock),
        "losses": losses,
        "report": report,
        "observed": observed,
        "issued": [r.issue_hash for r in session.records],
        "arms": [r.arm for r in session.records],
    }


def fsdp2_every_knob(rank: int, world_size: int, *, bf16: bool = False, **net: Any) -> Any:
    dtype = torch.bfloat16 if bf16 else None

    def make() -> Any:
        return shard(make_net(**net), dtype=dtype)

    schedule = fsdp_schedule(*observe(make(), rank))
    return compare(make, schedule, rank)


class NotingPath(GroupPath):
    """Notes which gathers go on in the background."""

    def __init__(self) -> None:
        self.background: list[bool] = []

    def all_gather(self, output: Any, tensor: Any, group: Any, async_op: bool) -> Any:
        self.background.append(async_op)
        return super().all_gather(output, tensor, group, async_op)


def gathers_ahead(rank: int, world_size: int) -> Any:
    """Gathers issued ahead go on in the background on CPU, only with the schedule, and all are waited for."""

    def make() -> Any:
        return shard(make_net())

    fingerprint, keys = observe(make(), rank)
    schedule = Schedule(fingerprint=fingerprint, forward_prefetch=1, backward_prefetch=1)
    stock = make()
    expected = train(stock, optimizer_of(stock), rank, 8)
    model = make()
    optimizer = optimizer_of(model)
    session: Any = kareus.attach(model, optimizer, schedule=schedule, guard=OFF)
    path = session.conductor.paths[Path.NCCL] = NotingPath()
    losses = train(model, optimizer, rank, 8)
    session.report()
    waiting = list(session.conductor.watch._flights)
    arms = [r.arm for r in session.records]
    exposed = [r.exposed_comm_us for r in session.records]
    session.detach()
    gathers = len([key for key in keys if key.kind == "all_gather"])
    steps = [path.background[i : i + gathers] for i in range(0, len(path.background), gathers)]
    return {
        "equal": losses == expected and weights(model) == weights(stock),
        "background": {
            arm: sorted({b for a, s in zip(arms, steps, strict=True) if a == arm for b in s}) for arm in arms
        },
        "waiting": [str(flight.key) for flight in waiting],
        "exposed": exposed,
    }


def ddp_every_knob(rank: int, world_size: int, **arguments: Any) -> Any:
    fingerprint, keys = observe(ddp(make_net(), **arguments), rank)
    schedule = every_knob(fingerprint, keys, ddp_bucket_cap_mb=0.01)

    def make() -> Any:
        return ddp(make_net(), **{**arguments, **kareus.ddp_kwargs(schedule)})

    return compare(make, schedule, rank)


def other_schedule(rank: int, world_size: int, *, wrapper: str, on_mismatch: str) -> Any:
    """Rank 1 is given another schedule than rank 0."""

    def make() -> Any:
        return shard(make_net()) if wrapper == "fsdp2" else ddp(make_net())

    fingerprint, keys = observe(make(), rank)
    schedule = every_knob(fingerprint, keys, forward_prefetch=1 + rank)
    start = time.monotonic()
    if on_mismatch == "error":
        try:
            kareus.attach(make(), schedule=schedule)
        except MismatchError as error:
            return {"seconds": time.monotonic() - start, "message": str(error)}
        return {"seconds": time.monotonic() - start, "message": ""}
    stock = make()
    expected = train(stock, optimizer_of(stock), rank, 6)
    model = make()
    optimizer = optimizer_of(model)
    session = kareus.attach(model, optimizer, schedule=schedule, on_mismatch="stock")
    losses = train(model, optimizer, rank, 6)
    session.detach()
    return {
        "equal": losses == expected and weights(model) == weights(stock),
        "reason": session.report()["reason"],
        "arms": [r.arm for r in session.records],
    }
