"""The copy-engine path on CUDA: peer copies over symmetric memory inside one host.

Each rank puts its bytes into a buffer all peers can read, a barrier on the stream tells them, and they
pull with plain device-to-device copies, which the copy engines carry without holding an SM. Two slots
alternate: a rank writes a slot again only after the barrier of the use in between, which every peer
enters after it has read, so one barrier a use is enough and no buffer is rewritten before it was read.

A barrier that waits longer than its timeout traps on the device, which torch reports as a CUDA error:
a peer that died or stopped ends in torch's error, not in a hang. NVLink multicast is never used.
Source: torch.distributed._symmetric_memory, CUDA backend (torch 2.9 to 2.14).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from kareus.runtime import torch_api
from kareus.runtime.fingerprint import Job
from kareus.runtime.paths import Future, chunk_sizes, sum_in_rank_order
from kareus.runtime.records import Tally
from kareus.schedule import COPY_SLOTS, Path, Schedule

REDUCE_BYTES = {"bf16": 4, "fp16": 4, "fp32": 4, "fp64": 8}  # widest type gradients are reduced in
MARGIN = 1.05  # DDP closes a bucket with the gradient that fills it


@dataclass(kw_only=True)
class Lane:
    """Symmetric buffers of one rank tuple for one kind of collective.

    Attributes:
        handle: torch's symmetric-memory handle of the buffer. slot_bytes: size of each of the slots.
        rank, world_size: in the group. uses: collectives carried so far. last: event after the newest.
    """

    buffer: torch.Tensor
    handle: Any
    slot_bytes: int
    rank: int
    world_size: int
    uses: int = 0
    last: torch.cuda.Event | None = None


class SymmetricPath:
    """Collectives by peer copies.

    Args:
        lanes: by (ranks, kind). device: of this rank. timeout_s: of every barrier.
    """

    name = "copy_engine"

    def __init__(
        self, lanes: dict[tuple[tuple[int, ...], str], Lane], device: torch.device, *, timeout_s: float
    ) -> None:
        self._lanes, self._device = lanes, device
        self._timeout_ms = int(timeout_s * 1000)
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self.memory_bytes = sum(lane.slot_bytes * COPY_SLOTS for lane in lanes.values())

    def supports(self, kind: str, num_bytes: int, group: dist.ProcessGroup) -> bool:
        """Return whether the lane exists and its slot is large enough; all ranks see the same sizes."""
        lane = self._lanes.get((torch_api.group_ranks(group), kind))
        if lane is None:
            return False
        needed = num_bytes // lane.world_size if kind == "all_gather" else num_bytes
        return needed <= lane.slot_bytes and not torch_api.is_capturing(self._device)

    def _publish(self, lane: Lane, tensor: torch.Tensor) -> int:
        """Copy a tensor into the next slot and tell the peers; returns the slot's offset in bytes."""
        stream = torch.cuda.current_stream(self._device)
        if lane.last is not None:
            stream.wait_event(lane.last)
        slot = lane.uses % COPY_SLOTS
        lane.uses += 1
        offset = slot * lane.slot_bytes
        size = tensor.numel() * tensor.element_size()
        lane.buffer[offset : offset + size].copy_(tensor.view(-1).view(torch.uint8))
        lane.handle.barrier(slot, self._timeout_ms)
        return offset

    def _peer(self, lane: Lane, peer: int, offset: int, like: torch.Tensor) -> torch.Tensor:
        """Return a view of a peer's buffer with the shape and dtype of `like`."""
        found: torch.Tensor = lane.handle.get_buffer(
            peer, (like.numel(),), like.dtype, offset // like.element_size()
        )
        return found

    def _finish(self, lane: Lane) -> None:
        lane.last = torch.cuda.Event()  # type: ignore[no-untyped-call]
        lane.last.record(torch.cuda.current_stream(self._device))

    def _pull(self, lane: Lane, offset: int, parts: list[torch.Tensor], *, stride: int) -> None:
        """Copy from each peer, nearest neighbour first, what it published `stride` bytes into its slot."""
        for distance in range(1, lane.world_size):
            peer = (lane.rank + distance) % lane.world_size
            parts[peer].copy_(self._peer(lane, peer, offset + stride, parts[peer]))

    def all_gather(
        self, output: torch.Tensor, tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool
    ) -> dist.Work | None:
        """Publish the shard and pull every peer's."""
        lane = self._lanes[(torch_api.group_ranks(group), "all_gather")]
        parts = list(output.view(-1).chunk(lane.world_size))
        offset = self._publish(lane, tensor)
        if parts[lane.rank].data_ptr() != tensor.data_ptr():
            parts[lane.rank].copy_(tensor.view(-1))
        self._pull(lane, offset, parts, stride=0)
        self._finish(lane)
        return None

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, group: dist.ProcessGroup, op: Any, async_op: bool
    ) -> dist.Work | None:
        """Publish the whole input, pull the own chunk from every peer, sum in rank order."""
        lane = self._lanes[(torch_api.group_ranks(group), "reduce_scatter")]
        chunks = list(tensor.view(-1).chunk(lane.world_size))
        offset = self._publish(lane, tensor)
        mine = chunks[lane.rank]
        parts = [mine if peer == lane.rank else torch.empty_like(mine) for peer in range(lane.world_size)]
        self._pull(lane, offset, parts, stride=lane.rank * mine.numel() * mine.element_size())
        output.view(-1).copy_(sum_in_rank_order(parts, op))
        self._finish(lane)
        return None

    def all_reduce(self, tensor: torch.Tensor, group: dist.ProcessGroup, op: Any) -> Future[torch.Tensor]:
        """Reduce-scatter and all-gather on a stream of the path's own, in place."""
        lane = self._lanes[(torch_api.group_ranks(group), "all_reduce")]
        caller = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(caller)
        future: Future[torch.Tensor] = Future(devices=[self._device])
        with torch.cuda.stream(self._stream):
            tensor.record_stream(self._stream)
            sizes = chunk_sizes(tensor.numel(), lane.world_size)
            chunks = list(torch.split(tensor.view(-1), sizes))
            mine = chunks[lane.rank]
            offset = self._publish(lane, tensor)
            parts = [mine if peer == lane.rank else torch.empty_like(mine) for peer in range(lane.world_size)]
            start = sum(sizes[: lane.rank]) * tensor.element_size()
            self._pull(lane, offset, parts, stride=start)
            mine.copy_(sum_in_rank_order(parts, op))
            offset = self._publish(lane, mine)
            self._pull(lane, offset, chunks, stride=0)
            self._finish(lane)
            future.set_result(tensor)
        return future


def slot_sizes(schedule: Schedule, job: Job, *, shards: int) -> dict[str, int]:
    """Return the bytes a slot needs for each kind of collective the schedule sends by copy engine.

    Args:
        schedule: the agreed one. job: the model. shards: ranks of the smallest group; HSDP shards over fewer
            than all.
    """
    sizes: dict[str, int] = {}
    units = {unit.name: unit for unit in schedule.fingerprint.units}
    for decision in schedule.decisions:
        if decision.path is not Path.COPY_ENGINE:
            continue
        kind, unit = decision.collective.kind, units.get(decision.collective.unit)
        if kind == "all_reduce":
            needed = _bucket_bytes(job)
        elif unit is None:
            continue
        elif kind == "all_gather":
            width = {"fp32": 4, "fp64": 8, "uint8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}.get(unit.dtype, 2)
            needed = -(-unit.numel // shards) * width
        else:
            needed = unit.numel * REDUCE_BYTES.get(unit.dtype, 4)
        sizes[kind] = max(sizes.get(kind, 0), -(-needed // 256) * 256)
    return sizes


def _bucket_bytes(job: Job) -> int:
    """Return a bound on a DDP bucket: the cap, plus the gradient that closes it."""
    model: Any = job.root
    largest = max(p.numel() * p.element_size() for p in torch_api.ddp_parameters(model))
    cap = int(getattr(model, "bucket_bytes_cap", 25 * 1024 * 1024))
    return int((cap + largest) * MARGIN)


def make_symmetric_path(
    schedule: Schedule, job: Job, tuples: list[tuple[int, ...]], *, timeout_s: float, tally: Tally
) -> SymmetricPath | None:
    """Allocate the buffers; a collective call. Returns None on every rank where any rank cannot.

    Args:
        tuples: rank tuples of the groups in use whose ranks share a host, equal on all ranks.
    """
    lanes: dict[tuple[tuple[int, ...], str], Lane] = {}
    problem = ""
    try:
        lanes = _allocate(slot_sizes(schedule, job, shards=min(map(len, tuples))), job, tuples)
    except (RuntimeError, ImportError, AttributeError) as error:
        problem = f"symmetric memory: {error}"
    answer = torch.tensor([1 if problem else 0], device=job.device)
    dist.all_reduce(answer, op=dist.ReduceOp.MAX)
    if int(answer):
        why = problem or "another rank cannot"
        tally.add("copy_engine_unavailable", f"the copy-engine path is not available ({why}); NCCL is used")
        return None
    return SymmetricPath(lanes, job.device, timeout_s=timeout_s)


def _allocate(
    sizes: dict[str, int], job: Job, tuples: list[tuple[int, ...]]
) -> dict[tuple[tuple[int, ...], str], Lane]:
    import torch.distributed._symmetric_memory as symmetric

    lanes: dict[tuple[tuple[int, ...], str], Lane] = {}
    for ranks in sorted(tuples):
        group = torch_api.new_group(list(ranks), description="kareus_symmetric")
        if job.rank not in ranks or list(ranks) != sorted(ranks):
            continue
        dist.all_reduce(torch.zeros(1, device=job.device), group=group)
        for kind in sorted(sizes):
            buffer = symmetric.empty(sizes[kind] * COPY_SLOTS, dtype=torch.uint8, device=job.device)
            handle = symmetric.rendezvous(buffer, group.group_name)
            lanes[(ranks, kind)] = Lane(
                buffer=buffer,
                handle=handle,
                slot_bytes=sizes[kind],
                rank=ranks.index(job.rank),
                world_size=len(ranks),
            )
    return lanes
