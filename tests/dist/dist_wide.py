"""More than two ranks: scaling that is no power of two, wider sums, two-dimensional meshes."""

from __future__ import annotations

import os
from typing import Any

import torch
from dist_hard import Job, hard
from dist_models import OFF, every_knob, fsdp_schedule, make_net, optimizer_of, shard, train, weights
from torch.distributed.device_mesh import init_device_mesh

import kareus

__all__ = ["hard"]


def closeness(rank: int, world_size: int, *, wrapper: str) -> Any:
    """With copies on three ranks the sums run in another order: close, not equal."""
    expected = Job(rank, wrapper=wrapper, oddity="", wrap={}).train()
    watched = Job(rank, wrapper=wrapper, oddity="", wrap={})
    session = kareus.attach(watched.model, watched.optimizer)
    watched.train(4)
    keys = list(session.observed)
    fingerprint = session.fingerprint
    session.detach()
    job = Job(rank, wrapper=wrapper, oddity="", wrap={})
    schedule = (fsdp_schedule if wrapper == "fsdp2" else every_knob)(fingerprint, keys)
    session = kareus.attach(job.model, job.optimizer, schedule=schedule, guard=OFF)
    losses = job.train()
    counts = dict(session.tally.counts)
    session.detach()
    pairs = zip(losses, expected, strict=True)
    worst = max(abs(float.fromhex(a) - float.fromhex(b)) / abs(float.fromhex(b)) for a, b in pairs)
    return {"worst": worst, "counts": counts}


def meshes(rank: int, world_size: int, *, kind: str, hosts: str = "") -> Any:
    """HSDP on a 2 x 2 mesh, or resharding to 2 of 4 ranks after forward.

    With `hosts`, one letter a rank, ranks are told that they run on these machines, and copies are planned.
    """
    if hosts:
        os.environ["NCCL_HOSTID"] = hosts[rank]

    def make() -> Any:
        if kind == "hsdp":
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
            return shard(make_net(), mesh=mesh)
        return shard(make_net(), reshard_after_forward=2)

    stock = make()
    expected = train(stock, optimizer_of(stock), rank, 8)
    watched = make()
    optimizer = optimizer_of(watched)
    session = kareus.attach(watched, optimizer)
    train(watched, optimizer, rank, 4)
    schedule = fsdp_schedule(session.fingerprint, list(session.observed), copies=bool(hosts))
    session.detach()
    model = make()
    optimizer = optimizer_of(model)
    session = kareus.attach(model, optimizer, schedule=schedule, guard=OFF)
    losses = train(model, optimizer, rank, 8)
    report = session.report()
    session.detach()
    os.environ.pop("NCCL_HOSTID", None)
    return {
        "equal": losses == expected and weights(model) == weights(stock),
        "groups": report["ladder"]["groups"],
        "counts": report["counts"],
        "arms": [r.arm for r in session.records],
    }


assert torch.float16.itemsize == 2
