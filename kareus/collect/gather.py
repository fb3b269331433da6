"""Brings files to rank 0 where ranks do not share a folder, in pieces of bounded size.

Every wait has a timeout: a rank that has died costs its own file and one timeout, not the job.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from kareus.errors import InputError
from kareus.schema import write_bytes

PIECE_BYTES = 4 << 20


class Link(Protocol):
    """Blocking exchange between the ranks of a job."""

    rank: int
    world_size: int

    def all(self, value: Any) -> list[Any]:
        """Return every rank's value in rank order; None for a rank that did not answer."""

    def send(self, data: bytes) -> bool:
        """Send bytes to rank 0; False where it did not take them in time."""

    def receive(self, rank: int, size: int) -> bytes | None:
        """Receive bytes from a rank; None where they did not come in time."""


class AloneLink:
    """A job of one process, or torch's fake group."""

    rank = 0
    world_size = 1

    def all(self, value: Any) -> list[Any]:
        """Return the own value."""
        return [value]

    def send(self, data: bytes) -> bool:
        """Refuse: there is nobody to send to."""
        return False

    def receive(self, rank: int, size: int) -> bytes | None:
        """Return nothing: there is nobody to receive from."""
        return None


class GlooLink:
    """Exchange over a gloo group of its own, so that nothing of it touches a GPU stream.

    Args:
        group: gloo group of all ranks. timeout_s: of every wait.
    """

    def __init__(self, group: dist.ProcessGroup, *, timeout_s: float) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._group = group
        self._timeout = timedelta(seconds=timeout_s)
        self._broken = False

    def _wait(self, works: list[Any]) -> bool:
        try:
            for work in works:
                work.wait(self._timeout)
        except RuntimeError:
            self._broken = True  # a gloo pair that timed out cannot be used again
        return not self._broken

    def all(self, value: str) -> list[str | None]:
        """Gather short texts (at most 4096 bytes each)."""
        row = torch.zeros(4096, dtype=torch.uint8)
        data = value.encode()[:4096]
        row[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else row[:0]
        if self._broken:
            return [value if rank == self.rank else None for rank in range(self.world_size)]
        rows = [torch.zeros_like(row) for _ in range(self.world_size)]
        try:
            ok = self._wait([dist.all_gather(rows, row, group=self._group, async_op=True)])
        except RuntimeError:  # a peer that closed its socket raises at once
            self._broken, ok = True, False
        if not ok:
            return [value if rank == self.rank else None for rank in range(self.world_size)]
        return [bytes(r.numpy().tobytes()).rstrip(b"\0").decode(errors="replace") for r in rows]

    def send(self, data: bytes) -> bool:
        """Send pieces to rank 0, each acknowledged by being received."""
        try:
            for start in range(0, len(data), PIECE_BYTES):
                piece = torch.from_numpy(np.frombuffer(data[start : start + PIECE_BYTES], np.uint8).copy())
                if not self._wait([dist.isend(piece, 0, group=self._group)]):
                    return False
        except RuntimeError:
            self._broken = True
        return not self._broken

    def receive(self, rank: int, size: int) -> bytes | None:
        """Receive pieces from a rank."""
        if self._broken:
            return None
        parts: list[bytes] = []
        try:
            for start in range(0, size, PIECE_BYTES):
                piece = torch.empty(min(PIECE_BYTES, size - start), dtype=torch.uint8)
                if not self._wait([dist.irecv(piece, rank, group=self._group)]):
                    return None
                parts.append(piece.numpy().tobytes())
        except RuntimeError:
            self._broken = True
            return None
        return b"".join(parts)


def make_link(timeout_s: float) -> AloneLink | GlooLink:
    """Create the link of this job; every rank must call it at the same place."""
    if not dist.is_initialized() or dist.get_world_size() == 1 or "fake" in str(dist.get_backend()):
        return AloneLink()
    if not dist.is_gloo_available():
        return AloneLink()
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s), group_desc="kareus_collect")
    return GlooLink(group, timeout_s=timeout_s)


def sees_folder(directory: Path, link: Link) -> list[bool | None]:
    """Return, for each rank, whether rank 0 sees what it writes in the directory; None: no answer."""
    nonce = uuid.uuid4().hex[:12]
    probe = directory / f".kareus-probe-{link.rank}-{nonce}"
    try:
        probe.touch()
    except OSError:
        nonce = "-"  # cannot write here at all: the files must travel
    names = link.all(f".kareus-probe-{link.rank}-{nonce}")
    seen = [None if name is None else (directory / name).exists() for name in names]
    verdict = link.all("".join("?" if s is None else "y" if s else "n" for s in seen))[0]
    with contextlib.suppress(OSError):
        probe.unlink()
    if verdict is None:
        return [None] * link.world_size
    return [{"y": True, "n": False}.get(mark) for mark in verdict]


def bring_files(
    directory: Path, link: Link, seen: list[bool | None], names: Callable[[int], list[str]], local: Path
) -> list[str]:
    """Send the files of ranks that rank 0 does not see, one rank after another.

    Args:
        directory: where rank 0 puts them. seen: of `sees_folder`. names: file names of a rank.
        local: where this rank wrote its own.

    Returns:
        Sentences on what did not arrive (rank 0 only).
    """
    problems: list[str] = []
    # Read before announcing the sizes: what was announced must be sent, or the peer waits for it.
    mine = [_content(local / name) for name in names(link.rank)] if seen[link.rank] is False else []
    sizes = link.all(",".join(str(len(data)) for data in mine))
    for rank in range(1, link.world_size):
        answer = sizes[rank]
        if seen[rank] is not False:
            continue
        if answer is None:
            problems.append(f"rank {rank} did not answer; its files are missing")
            continue
        for index, (name, text) in enumerate(zip(names(rank), answer.split(","), strict=True)):
            size = int(text)
            if size <= 0:
                continue
            if link.rank == rank:
                link.send(mine[index])
            elif link.rank == 0:
                data = link.receive(rank, size)
                if data is None:
                    problems.append(
                        f"{name} of rank {rank} did not arrive; it stays on its own host in {local}"
                    )
                    continue
                try:
                    write_bytes(directory / name, data)
                except InputError as error:
                    problems.append(f"{name} of rank {rank}: {error}")
    return problems


def _content(path: Path) -> bytes:
    """Return a file's bytes, none where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
