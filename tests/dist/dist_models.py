"""Small models, schedules and training loops for the scenarios."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import kareus
from kareus.runtime.guard import GuardSettings
from kareus.schedule import CollectiveKey, Decision, LaunchPoint, Path, Schedule

DIM = 32
OFF = GuardSettings(enabled=False)


class Block(nn.Module):
    def __init__(self, dim: int = DIM, recompute: str = "") -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attention = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.recompute = recompute

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.recompute:
            return checkpoint(self.inner, x, use_reentrant=self.recompute == "reentrant")
        return self.inner(x)


class Net(nn.Module):
    def __init__(self, blocks: int = 3, dim: int = DIM, recompute: str = "", skip: int = -1) -> None:
        super().__init__()
        self.embed = nn.Linear(dim, dim)
        self.blocks = nn.ModuleList(Block(dim, recompute) for _ in range(blocks))
        self.head = nn.Linear(dim, dim)
        self.skip = skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for index, block in enumerate(self.blocks):
            if index != self.skip:
                x = block(x)
        return self.head(x)


def make_net(**arguments: Any) -> Net:
    torch.manual_seed(7)
    return Net(**arguments)


def shard(net: Net, *, dtype: torch.dtype | None = None, **arguments: Any) -> Net:
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
    for block in net.blocks:
        fully_shard(block, mp_policy=policy, **arguments)
    fully_shard(net, mp_policy=policy, **arguments)
    return net


def batch(rank: int, step: int, rows: int = 4, dim: int = DIM) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(rows, dim, generator=generator)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int,
    steps: int,
    *,
    first: int = 0,
    before: Callable[[int], None] = lambda _: None,
) -> list[str]:
    """Train and return losses as exact hexadecimal floats."""
    losses = []
    for step in range(first, first + steps):
        before(step)
        optimizer.zero_grad()
        loss = model(batch(rank, step)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()).hex())
    return losses


def weights(model: nn.Module) -> list[str]:
    """Return a checksum text of every parameter's local bits, in order."""
    found = []
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        data = local.detach().contiguous().view(torch.uint8)
        found.append(hashlib.sha256(data.numpy().tobytes()).hexdigest())
    return found


def observe(model: nn.Module, rank: int) -> tuple[Any, list[CollectiveKey]]:
    """Return the fingerprint and the collectives of one stock step of a copy of a job."""
    session = kareus.attach(model)
    optimizer = optimizer_of(model)
    for step in range(3):
        train(model, optimizer, rank, 1, first=step)
        session.step()
    keys = list(session.observed)
    session.detach()
    return session.fingerprint, keys


def every_knob(fingerprint: Any, keys: list[CollectiveKey], *, copies: bool = True, **extra: Any) -> Schedule:
    """Return a schedule that changes every knob of an FSDP2 job or of a DDP job."""
    decisions = []
    for index, key in enumerate(keys):
        launch = None
        path = Path.COPY_ENGINE if copies and index % 3 == 1 else Path.NCCL
        if key.kind == "all_gather" and key.unit.startswith("blocks.") and key.unit != "blocks.0":
            other = int(key.unit.split(".")[1]) - 1
            if key.phase == "forward":
                launch = LaunchPoint(module=f"blocks.{other}.mlp", phase="forward", side="before")
        if key.kind == "all_gather" and key.phase == "backward" and key.unit == "blocks.1":
            launch = LaunchPoint(module="blocks.2.mlp.0", phase="backward", side="after")
        if key.kind == "reduce_scatter" and key.unit == "blocks.2":
            launch = LaunchPoint(module="blocks.1.mlp", phase="backward", side="after")
        if key.kind == "all_gather" and key.unit == "blocks.2" and key.phase == "backward":
            launch = LaunchPoint(module="blocks.2", phase="backward", side="before")
        if key.kind == "all_reduce" and index == 0:
            launch = LaunchPoint(module="blocks.0", phase="backward", side="before")
        decisions.append(
            Decision(
                collective=key,
                num_ctas=1 + index % 6 if path is Path.NCCL else None,
                path=path,
                launch=launch,
                serialise=index % 5 == 4,
            )
        )
    arguments: dict[str, Any] = {"fingerprint": fingerprint, "decisions": tuple(decisions), **extra}
    return Schedule(**arguments)


def fsdp_schedule(fingerprint: Any, keys: list[CollectiveKey], **extra: Any) -> Schedule:
    knobs: dict[str, Any] = {
        "forward_prefetch": 2,
        "backward_prefetch": 2,
        "reduce_scatter_deferral": 1,
        "early_gathers": 2,
        "separate_reduce_scatter_group": True,
    }
    return every_knob(fingerprint, keys, **{**knobs, **extra})


def ddp(net: nn.Module, **arguments: Any) -> DistributedDataParallel:
    return DistributedDataParallel(net, **{"bucket_cap_mb": 0.01, **arguments})


def clone(net: Net) -> Net:
    return copy.deepcopy(net)
