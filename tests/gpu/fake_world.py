"""A world of two ranks in one process: torch's fake process group, and stand-ins for its collectives.

The fake group moves no data. The stand-in does on one device what a collective would do to this rank's
tensors if all ranks held the same shard, and takes a while on the device, so that hooks, streams, events
and data dependencies are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WORLD = 2


@contextmanager
def fake_world() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


class StandIn:
    """A collective path whose collectives last `cycles` GPU clock cycles before they move data."""

    name = "nccl"

    def __init__(self, device: torch.device, cycles: int = 0) -> None:
        self.device, self.cycles = device, cycles
        self.marks: list[tuple[str, Any, Any]] = []

    def supports(self, *_: Any) -> bool:
        return True

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        start = end = None
        if self.device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            if self.cycles:
                torch.cuda._sleep(self.cycles)
        yield
        if end is not None:
            end.record()
        self.marks.append((kind, start, end))

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor, group: Any, async_op: bool) -> None:
        with self._timed("all_gather"):
            # The input may be a slot of the output, so the other slots are written from a copy.
            shard = tensor.clone()
            for slot in output.view(-1).chunk(WORLD):
                slot.copy_(shard.view(-1))

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, group: Any, op: Any, async_op: bool
    ) -> None:
        with self._timed("reduce_scatter"):
            output.view(-1).copy_(tensor.view(-1).chunk(WORLD)[0])

    def all_reduce(self, tensor: torch.Tensor, group: Any, op: Any) -> torch.futures.Future[torch.Tensor]:
        devices = [self.device] if self.device.type == "cuda" else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        with self._timed("all_reduce"):
            tensor.mul_(1.0)
        future.set_result(tensor)
        return future


class FakeBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class FakeNet(nn.Module):
    def __init__(self, dim: int, blocks: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(dim, dim)
        self.blocks = nn.ModuleList(FakeBlock(dim) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x


def sharded(device: torch.device, dim: int) -> FakeNet:
    torch.manual_seed(5)
    net = FakeNet(dim).to(device)
    mesh = init_device_mesh(device.type, (WORLD,))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def replicated(device: torch.device, dim: int) -> nn.parallel.DistributedDataParallel:
    torch.manual_seed(5)
    net = FakeNet(dim).to(device)
    ids = [device.index or 0] if device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(net, device_ids=ids, bucket_cap_mb=1)


def run(
    model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device, dim: int, steps: int
) -> Any:
    """Train and return the losses as exact text."""
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(16, dim, generator=generator).to(device)
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()).hex())
    return losses
