"""Peers that die or stop, and wrappers that are only partly supported."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from dist_hard import Job
from dist_models import OFF, batch, ddp, every_knob, fsdp_schedule, make_net, optimizer_of, weights
from torch.distributed.fsdp import FullyShardedDataParallel

import kareus
from kareus.errors import UsageError
from kareus.runtime import fsdp1_kwargs


def lost_peer(rank: int, world_size: int, *, wrapper: str, how: str) -> Any:
    """Rank 1 is killed or stopped in the middle of a scheduled run; rank 0 must not hang."""
    job = Job(rank, wrapper=wrapper, oddity="", wrap={})
    session = kareus.attach(job.model, job.optimizer)
    job.train()
    keys, fingerprint = list(session.observed), session.fingerprint
    session.detach()
    schedule = (fsdp_schedule if wrapper == "fsdp2" else every_knob)(fingerprint, keys)
    session = kareus.attach(job.model, job.optimizer, schedule=schedule, guard=OFF, watch_after_s=0.3)
    error, start = "", time.monotonic()
    try:
        for step in range(12):
            if step == 8:
                start = time.monotonic()
                if rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            job.step(step)
    except RuntimeError as found:
        error = str(found)
    seconds = time.monotonic() - start
    messages = list(session.conductor.watch.messages) if session.conductor is not None else []
    session.detach()
    return {"error_text": error, "seconds": seconds, "messages": messages, "active": session.active}


def fsdp1(rank: int, world_size: int) -> Any:
    """FSDP1 takes a budget and prefetching when built; replay is refused with a pointer to FSDP2."""

    def build(**arguments: Any) -> Any:
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32))
        return FullyShardedDataParallel(net, device_id=torch.device("cpu"), **arguments)

    def train(model: Any, optimizer: Any) -> list[str]:
        losses = []
        for step in range(6):
            optimizer.zero_grad()
            loss = model(batch(rank, step)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()).hex())
        return losses

    stock = build()
    expected = train(stock, optimizer_of(stock))
    arguments = fsdp1_kwargs(
        num_ctas=4, forward_prefetch=True, backward_prefetch=True, limit_all_gathers=True
    )
    model = build(**arguments)
    optimizer = optimizer_of(model)
    session = kareus.attach(model, optimizer)
    losses = train(model, optimizer)
    steps = session.step_count
    session.detach()
    refusal = ""
    try:
        kareus.attach(model, optimizer, schedule="any.json")
    except UsageError as error:
        refusal = str(error)
    return {
        "equal": losses == expected and weights(model) == weights(stock),
        "steps": steps,
        "refusal": refusal,
        "arguments": sorted(arguments),
    }


def foreign_hook(rank: int, world_size: int) -> Any:
    """A DDP model with the user's own hook is refused on every rank, and trains on without us."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    model = ddp(make_net())
    model.register_comm_hook(None, allreduce_hook)
    refusal = ""
    try:
        kareus.attach(model)
    except UsageError as error:
        refusal = str(error)
    model(batch(rank, 0)).sum().backward()
    return {"refusal": refusal}
