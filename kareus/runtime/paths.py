"""How the bytes of a collective travel: communicator kernels, or copies between peers.

`GroupPath` hands a collective to a process group. The copy paths move every chunk by a plain copy, so
that no SM is held while bytes travel: `PeerCopyPath` does it on CPU with point-to-point messages (the
same algorithm, chunk order and scaling as on the GPU), `symmetric.SymmetricPath` on CUDA.

Sums of the copy paths run in rank order. With two ranks every order gives the same bits; with more,
results are close to those of another order but not equal to the bit.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from kareus.runtime import torch_api

Future = torch.futures.Future


class CollectivePath(Protocol):
    """One way to carry out collectives on flat tensors."""

    name: str

    def supports(self, kind: str, num_bytes: int, group: dist.ProcessGroup) -> bool:
        """Return whether a collective can go this way; the same answer on all ranks of the group."""

    def all_gather(
        self, output: torch.Tensor, tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool
    ) -> dist.Work | None:
        """Gather `tensor` [n] of every rank into `output` [ranks * n], in rank order."""

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, group: dist.ProcessGroup, op: Any, async_op: bool
    ) -> dist.Work | None:
        """Reduce `tensor` [ranks * n] over ranks and leave this rank's part in `output` [n]."""

    def all_reduce(self, tensor: torch.Tensor, group: dist.ProcessGroup, op: Any) -> Future[torch.Tensor]:
        """Reduce `tensor` [n] over ranks in place; the future holds it."""


class GroupPath:
    """Collectives of a process group: NCCL kernels on GPUs, gloo on CPU."""

    name = "nccl"

    def supports(self, kind: str, num_bytes: int, group: dist.ProcessGroup) -> bool:
        """Return True: every group can do every collective."""
        return True

    def all_gather(
        self, output: torch.Tensor, tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool
    ) -> dist.Work | None:
        """Gather through the group."""
        return torch_api.all_gather(output, tensor, group, async_op)

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, group: dist.ProcessGroup, op: Any, async_op: bool
    ) -> dist.Work | None:
        """Reduce-scatter through the group."""
        return torch_api.reduce_scatter(output, tensor, group, op, async_op)

    def all_reduce(self, tensor: torch.Tensor, group: dist.ProcessGroup, op: Any) -> Future[torch.Tensor]:
        """All-reduce through the group."""
        future = dist.all_reduce(tensor, op=op, group=group, async_op=True).get_future()
        result: Future[torch.Tensor] = future.then(lambda done: done.value()[0])
        return result


def scale_for(op: Any, world_size: int) -> tuple[float | None, float | None]:
    """Return (factor before, divisor after) the sum for a reduction operator.

    Raises:
        ValueError: an operator that is not a sum.
    """
    if op == dist.ReduceOp.SUM:
        return None, None
    if op == dist.ReduceOp.AVG:
        return None, float(world_size)
    factor = getattr(op, "factor", None)
    if isinstance(factor, float):
        return factor, None
    raise ValueError(f"the copy path sums only, asked for {op}")


def chunk_sizes(numel: int, parts: int) -> list[int]:
    """Split `numel` elements into `parts` contiguous chunks, the first ones one element longer."""
    base, extra = divmod(numel, parts)
    return [base + (1 if i < extra else 0) for i in range(parts)]


def sum_in_rank_order(parts: list[torch.Tensor], op: Any) -> torch.Tensor:
    """Sum equal-shaped tensors first to last, scaled as the operator says."""
    before, after = scale_for(op, len(parts))
    total = parts[0].clone() if before is None else parts[0] * before
    for part in parts[1:]:
        total += part if before is None else part * before
    return total if after is None else total.div_(after)


class PeerCopyPath:
    """Peer copies on CPU: every rank sends its chunk straight to each peer.

    Args:
        groups: a gloo group for each rank tuple, used by nothing else. timeout_s: bound on every wait.
    """

    name = "copy_engine"

    def __init__(self, groups: dict[tuple[int, ...], dist.ProcessGroup], *, timeout_s: float) -> None:
        self.groups = groups
        self._timeout = timedelta(seconds=timeout_s)
        self.memory_bytes = 0

    def supports(self, kind: str, num_bytes: int, group: dist.ProcessGroup) -> bool:
        """Return True for groups that were prepared in attach."""
        return torch_api.group_ranks(group) in self.groups

    def _exchange(
        self, sends: list[torch.Tensor], receives: list[torch.Tensor], group: dist.ProcessGroup
    ) -> None:
        """Send `sends[i]` to rank i of the group and receive `receives[i]` from it, all i but oneself."""
        ranks = torch_api.group_ranks(group)
        lane = self.groups[ranks]
        me, world = dist.get_rank(lane), len(ranks)
        works = []
        for distance in range(1, world):
            to, source = (me + distance) % world, (me - distance) % world
            works.append(dist.isend(sends[to], group=lane, group_dst=to))
            works.append(dist.irecv(receives[source], group=lane, group_src=source))
        for work in works:
            if work is not None:
                work.wait(self._timeout)

    def all_gather(
        self, output: torch.Tensor, tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool
    ) -> dist.Work | None:
        """Copy the own shard to every peer."""
        me, world = group.rank(), group.size()
        slots = list(output.view(-1).chunk(world))
        if slots[me].data_ptr() != tensor.data_ptr():
            slots[me].copy_(tensor.view(-1))
        self._exchange([slots[me]] * world, slots, group)
        return None

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, group: dist.ProcessGroup, op: Any, async_op: bool
    ) -> dist.Work | None:
        """Copy each peer its chunk, then sum the chunks received in rank order."""
        me, world = group.rank(), group.size()
        chunks = list(tensor.view(-1).chunk(world))
        received = [torch.empty_like(chunks[me]) for _ in range(world)]
        received[me] = chunks[me]
        self._exchange(chunks, received, group)
        output.view(-1).copy_(sum_in_rank_order(received, op))
        return None

    def all_reduce(self, tensor: torch.Tensor, group: dist.ProcessGroup, op: Any) -> Future[torch.Tensor]:
        """Reduce-scatter and all-gather by peer copies, in place."""
        me, world = group.rank(), group.size()
        chunks = list(torch.split(tensor.view(-1), chunk_sizes(tensor.numel(), world)))
        received = [torch.empty_like(chunks[me]) for _ in range(world)]
        received[me] = chunks[me]
        self._exchange(chunks, received, group)
        chunks[me].copy_(sum_in_rank_order(received, op))
        self._exchange([chunks[me]] * world, chunks, group)
        future: Future[torch.Tensor] = Future()
        future.set_result(tensor)
        return future
