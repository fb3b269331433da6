"""How ranks tell each other things: JSON bytes and float vectors over a small group of its own.

The group is gloo's beside NCCL. Nothing is pickled, and every wait has a timeout no longer than the process group's.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from kareus.runtime import torch_api


class Pending(Protocol):
    """An exchange under way."""

    def result(self, timeout_s: float) -> list[list[float]] | None:
        """Return one vector per rank, or None where it did not arrive in time."""


class Exchange(Protocol):
    """How ranks tell each other things."""

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's JSON-encodable value, in rank order; blocks."""

    def compare(self, vector: list[float]) -> list[list[float]]:
        """Return every rank's float vector of equal length, in rank order; one collective, blocks."""

    def broadcast(self, data: bytes) -> bytes:
        """Return rank 0's bytes; blocks."""

    def start(self, vector: list[float]) -> Pending:
        """Begin to gather one float vector of equal length from every rank; does not block."""

    def all_true(self, mine: bool, timeout_s: float) -> bool | None:
        """Return whether every rank said True, None where one did not answer in time; blocks."""


class _DonePending:
    def __init__(self, vectors: list[list[float]]) -> None:
        self._vectors = vectors

    def result(self, timeout_s: float) -> list[list[float]]:
        return self._vectors


class AloneExchange:
    """A job of one process, or torch's fake process group, where nobody answers."""

    def gather(self, value: Any) -> list[Any]:
        """Return the own value."""
        return [value]

    def compare(self, vector: list[float]) -> list[list[float]]:
        """Return the own vector."""
        return [vector]

    def broadcast(self, data: bytes) -> bytes:
        """Return the own bytes."""
        return data

    def start(self, vector: list[float]) -> Pending:
        """Return the own vector."""
        return _DonePending([vector])

    def all_true(self, mine: bool, timeout_s: float) -> bool | None:
        """Return the own answer."""
        return mine


class _GroupPending:
    def __init__(self, work: dist.Work, buffer: torch.Tensor, keep: torch.Tensor) -> None:
        self._work, self._buffer, self._keep = work, buffer, keep

    def result(self, timeout_s: float) -> list[list[float]] | None:
        try:
            self._work.wait(timedelta(seconds=timeout_s))
        except RuntimeError:
            return None
        return [[float(x) for x in row] for row in self._buffer.tolist()]


class GroupExchange:
    """Exchange over a process group.

    Args:
        group: a group of all ranks. device: where its tensors must be ("cpu" with gloo).
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.device = group, device
        self.world_size = dist.get_world_size(group)

    def gather(self, value: Any) -> list[Any]:
        """Gather JSON values: first their lengths, then the padded bytes."""
        data = msgspec.json.encode(value)
        length = torch.tensor([len(data)], dtype=torch.int64, device=self.device)
        lengths = [torch.zeros_like(length) for _ in range(self.world_size)]
        dist.all_gather(lengths, length, group=self.group)
        sizes = [int(item) for item in lengths]
        mine = torch.zeros(max(sizes), dtype=torch.uint8)
        mine[: len(data)] = torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
        mine = mine.to(self.device)
        parts = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(parts, mine, group=self.group)
        return [
            msgspec.json.decode(part.cpu().numpy().tobytes()[:size])
            for part, size in zip(parts, sizes, strict=True)
        ]

    def compare(self, vector: list[float]) -> list[list[float]]:
        """All-gather float64 vectors.

        Raises:
            RuntimeError: of torch, after the group's timeout.
        """
        work, rows, _ = self._gather_vectors(vector)
        work.wait()
        return [[float(x) for x in row] for row in rows.tolist()]

    def broadcast(self, data: bytes) -> bytes:
        """Broadcast rank 0's bytes: first the length, then the content."""
        source = dist.get_global_rank(self.group, 0)
        length = torch.tensor([len(data)], dtype=torch.int64, device=self.device)
        dist.broadcast(length, src=source, group=self.group)
        content = torch.zeros(int(length), dtype=torch.uint8)
        if dist.get_rank(self.group) == 0 and data:
            content = torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
        content = content.to(self.device)
        if int(length):
            dist.broadcast(content, src=source, group=self.group)
        return content.cpu().numpy().tobytes()

    def start(self, vector: list[float]) -> Pending:
        """Start an asynchronous all-gather of float64 vectors."""
        return _GroupPending(*self._gather_vectors(vector))

    def all_true(self, mine: bool, timeout_s: float) -> bool | None:
        """All-reduce one number: with a thousand ranks some ten messages each, not a thousand."""
        flag = torch.tensor([float(mine)], device=self.device)
        try:
            work = dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=self.group, async_op=True)
            work.wait(timedelta(seconds=timeout_s))
        except RuntimeError:
            return None
        return bool(flag.item())

    def _gather_vectors(self, vector: list[float]) -> tuple[dist.Work, torch.Tensor, torch.Tensor]:
        """Return the all-gather under way, its rows, and the own vector, which must live as long."""
        mine = torch.tensor(vector, dtype=torch.float64, device=self.device)
        rows = torch.zeros(self.world_size, len(vector), dtype=torch.float64, device=self.device)
        work = dist.all_gather(list(rows.unbind(0)), mine, group=self.group, async_op=True)
        return work, rows, mine


def make_exchange(device: torch.device) -> Exchange:
    """Create the exchange of this job; every rank must call it.

    The group is gloo's, so that nothing of it ever touches a GPU stream; where torch was built without
    gloo the default group carries the few blocking exchanges of attach.
    """
    if dist.get_world_size() == 1 or torch_api.backend_name() == "fake":
        return AloneExchange()
    if not dist.is_gloo_available():
        return GroupExchange(dist.group.WORLD, device)  # type: ignore[arg-type]
    timeout = timedelta(seconds=min(60.0, torch_api.group_timeout_s()))
    group = dist.new_group(backend="gloo", timeout=timeout, group_desc="kareus_control")
    return GroupExchange(group, torch.device("cpu"))
