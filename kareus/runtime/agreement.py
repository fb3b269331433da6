"""Ranks agree before anything is installed, and stay in step afterwards.

All exchange is JSON bytes or float vectors over a small group of its own (gloo beside NCCL), never
pickle, and every wait has a timeout no longer than the process group's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from kareus.errors import InputError, MismatchError
from kareus.runtime import torch_api
from kareus.schedule import SCHEMA, Fingerprint, Schedule
from kareus.schema import decode_document

MAX_DIFFERENCES = 12


class Pending(Protocol):
    """An exchange under way."""

    def result(self, timeout_s: float) -> list[list[float]] | None:
        """Return one vector per rank, or None where it did not arrive in time."""


class Exchange(Protocol):
    """How ranks tell each other things."""

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's JSON-encodable value, in rank order; blocks."""

    def broadcast(self, data: bytes) -> bytes:
        """Return rank 0's bytes; blocks."""

    def start(self, vector: list[float]) -> Pending:
        """Begin to gather one float vector of equal length from every rank; does not block."""


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

    def broadcast(self, data: bytes) -> bytes:
        """Return the own bytes."""
        return data

    def start(self, vector: list[float]) -> Pending:
        """Return the own vector."""
        return _DonePending([vector])


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
        mine = torch.tensor(vector, dtype=torch.float64, device=self.device)
        rows = torch.zeros(self.world_size, len(vector), dtype=torch.float64, device=self.device)
        work = dist.all_gather(list(rows.unbind(0)), mine, group=self.group, async_op=True)
        return _GroupPending(work, rows, mine)


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


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What all ranks settled on.

    Attributes:
        schedule: rank 0's, the same object content everywhere; None for a job without one.
        problems: why it may not be replayed, the same list on every rank; empty when it fits.
        warnings: differences in conditions (torch, GPU, ...) that only re-arm the guard.
    """

    schedule: Schedule | None
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def describe_difference(mine: Schedule, other: Schedule) -> list[str]:
    """Return sentences that name where two schedules differ, rank-local one first."""
    found = mine.fingerprint.differences(other.fingerprint)
    keys = [d.collective for d in mine.decisions]
    keys += [d.collective for d in other.decisions if d.collective not in set(keys)]
    for key in keys:
        left, right = mine.decision_for(key), other.decision_for(key)
        for field in ("num_ctas", "path", "launch", "serialise"):
            a, b = getattr(left, field), getattr(right, field)
            if a != b:
                found.append(f"{key}: {field} is {a if a is not None else 'stock'} here, rank 0 has {b}")
    for field in (
        "forward_prefetch", "backward_prefetch", "reduce_scatter_deferral", "separate_reduce_scatter_group",
        "ddp_bucket_cap_mb", "ddp_bucket_cap_mb_list", "clocks", "compute_sm_margin",
    ):  # fmt: skip
        a, b = getattr(mine, field), getattr(other, field)
        if a != b:
            found.append(f"{field} is {a} here, rank 0 has {b}")
    return found or ["the order of decisions differs"]


def agree(
    exchange: Exchange,
    *,
    schedule: Schedule | None,
    local_problem: str,
    job: Fingerprint,
    settings: dict[str, str],
    environment_problem: str,
) -> Agreement:
    """Compare schedules, jobs and settings over all ranks; every rank returns the same answer.

    A rank without a schedule takes rank 0's, so that one file on one host is enough.

    Args:
        schedule: what this rank was given. local_problem: why it could not be read, "" otherwise.
        job: this rank's fingerprint. settings: arguments of attach that must be equal on all ranks.
        environment_problem: a variable that overrides the schedule's budgets, "" otherwise.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    data = schedule.to_bytes() if schedule is not None else b""
    chosen_bytes = exchange.broadcast(data)
    chosen, problems = _decode(chosen_bytes)
    if local_problem:
        problems.append(local_problem)
    if environment_problem:
        problems.append(environment_problem)
    if schedule is not None and chosen is None and not problems:
        problems.append("a schedule was given here, rank 0 has none")
    warnings: list[str] = []
    if chosen is not None:
        if settings.get("mode") == "None":
            settings = {**settings, "mode": "replay"}  # given nothing itself, this rank does what rank 0 does
        if schedule is not None and schedule.digest() != chosen.digest():
            problems += describe_difference(schedule, chosen)
        problems += chosen.fingerprint.differences(job)
        for name, value in chosen.fingerprint.conditions.items():
            if name in job.conditions and job.conditions[name] != value:
                warnings.append(f"schedule was made with {name} {value}, this job has {job.conditions[name]}")
    # A digest, since every rank receives every answer: a thousand lists of units would be megabytes.
    shape = sha256(msgspec.json.encode((job.wrapper, job.world_size, job.units))).hexdigest()
    answers = exchange.gather(
        {"problems": problems[:MAX_DIFFERENCES], "warnings": warnings, "settings": settings, "shape": shape}
    )
    return Agreement(
        schedule=chosen,
        problems=tuple(_merge(answers, "problems") + _unequal(answers, rank)),
        warnings=tuple(_merge(answers, "warnings")),
    )


def _decode(data: bytes) -> tuple[Schedule | None, list[str]]:
    if not data:
        return None, []
    try:
        return decode_document(data, Schedule, SCHEMA, where="schedule of rank 0"), []
    except (InputError, ValueError) as error:
        return None, [str(error)]


def _merge(answers: list[dict[str, Any]], field: str) -> list[str]:
    """Merge sentences of all ranks, naming the rank only where not all say the same."""
    lists = [answer[field] for answer in answers]
    if all(items == lists[0] for items in lists):
        return list(lists[0])
    return [f"rank {rank}: {text}" for rank, items in enumerate(lists) for text in items]


def _unequal(answers: list[dict[str, Any]], rank: int) -> list[str]:
    found = []
    first = answers[0]
    for other, answer in enumerate(answers[1:], start=1):
        if answer["shape"] != first["shape"]:
            found.append(f"rank {other}: the model's units differ from rank 0's")
        for name, value in first["settings"].items():
            theirs = answer["settings"].get(name)
            if theirs != value:
                found.append(f"rank {other}: {name} is {theirs!r}, rank 0 has {value!r}")
    return found


def exchange_tuples(exchange: Exchange, mine: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the rank tuples of every rank's groups, sorted, the same list on every rank.

    Evenly spaced ranks travel as (first, count, stride): a thousand ranks of one group say so in three
    numbers each.
    """
    found = {
        tuple(range(row[1], row[1] + row[2] * row[3], row[3])) if row[0] else tuple(row[1:])
        for rows in exchange.gather([_packed(ranks) for ranks in mine])
        for row in rows
    }
    return sorted(found)


def _packed(ranks: tuple[int, ...]) -> list[int]:
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    even = stride > 0 and ranks == tuple(range(ranks[0], ranks[0] + len(ranks) * stride, stride))
    return [1, ranks[0], len(ranks), stride] if even else [0, *ranks]


def mismatch_error(problems: tuple[str, ...]) -> MismatchError:
    """Return the error that attach raises on all ranks."""
    shown = "; ".join(problems[:MAX_DIFFERENCES])
    more = len(problems) - MAX_DIFFERENCES
    tail = f"; and {more} more" if more > 0 else ""
    return MismatchError(
        f"this schedule cannot be replayed here: {shown}{tail}. Give every rank the same schedule, made for "
        'this model and world size, or train as stock with attach(..., on_mismatch="stock")'
    )
