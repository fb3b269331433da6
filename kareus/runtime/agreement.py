"""Ranks agree before anything is installed.

One small vector of digests a rank shows whether all hold the same schedule, model and settings; that is the
whole cost of agreement where they do. Where they do not, rank 0's schedule and everybody's problems follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec
import torch.distributed as dist

from kareus.errors import InputError, MismatchError
from kareus.runtime.exchange import Exchange
from kareus.schedule import SCHEMA, Fingerprint, Schedule
from kareus.schema import decode_document

MAX_DIFFERENCES = 12
DIGEST_BYTES = 6  # what a float64 holds exactly
GROUPS_IN_VECTOR = 4  # evenly spaced rank tuples a rank can name in the vector: HSDP has two

Ranks = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What all ranks settled on.

    Attributes:
        schedule: rank 0's, the same object content everywhere; None for a job without one.
        problems: why it may not be replayed, the same list on every rank; empty when it fits.
        warnings: differences in conditions (torch, GPU, ...) that only re-arm the guard.
        tuples: rank tuples of every rank's groups, sorted.
    """

    schedule: Schedule | None
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    tuples: tuple[Ranks, ...] = ()


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
        "ddp_bucket_cap_mb", "ddp_bucket_cap_mb_list", "clocks", "rank_clocks", "compute_sm_margin",
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
    tuples: list[Ranks],
) -> Agreement:
    """Compare schedules, jobs and settings over all ranks; every rank returns the same answer.

    A rank without a schedule takes rank 0's, so that one file on one host is enough.

    Args:
        schedule: what this rank was given. local_problem: why it could not be read, "" otherwise.
        job: this rank's fingerprint. settings: arguments of attach that must be equal on all ranks.
        environment_problem: a variable that overrides the schedule's budgets, "" otherwise.
        tuples: ranks of the groups that this rank communicates in.
    """
    own = [text for text in (local_problem, environment_problem) if text]
    fits = schedule is None or not schedule.fingerprint.differences(job)
    warnings = _condition_warnings(schedule, job)
    data = schedule.to_bytes() if schedule is not None else b""
    # A digest of the units too, since every rank receives every answer: a thousand lists would be megabytes.
    shape = sha256(msgspec.json.encode((job.wrapper, job.world_size, job.units))).digest()
    digests = [
        float(bool(own) or not fits),
        *_digest(data),
        *_digest(shape),
        *_digest(msgspec.json.encode(sorted(settings.items()))),
        *_digest(msgspec.json.encode(warnings)),
    ]
    rows = exchange.compare(digests + _tuple_words(tuples))
    everyone = _tuples_of([row[len(digests) :] for row in rows])
    if everyone is None:
        everyone = _exchange_tuples(exchange, tuples)
    if all(row[: len(digests)] == [0.0, *digests[1:]] for row in rows):
        return Agreement(schedule=schedule, warnings=tuple(warnings), tuples=everyone)
    problems, chosen, answers = _settle(exchange, schedule, data, job, settings, own, shape.hex())
    return Agreement(
        schedule=chosen,
        problems=tuple(problems),
        warnings=tuple(_merge(answers, "warnings")),
        tuples=everyone,
    )


def _settle(
    exchange: Exchange,
    schedule: Schedule | None,
    data: bytes,
    job: Fingerprint,
    settings: dict[str, str],
    own: list[str],
    shape: str,
) -> tuple[list[str], Schedule | None, list[dict[str, Any]]]:
    """Take rank 0's schedule and collect what every rank has against it: (problems, schedule, answers)."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    chosen, problems = _decode(exchange.broadcast(data))
    problems += own
    if schedule is not None and chosen is None and not problems:
        problems.append("a schedule was given here, rank 0 has none")
    if chosen is not None:
        if settings.get("mode") == "None":
            settings = {**settings, "mode": "replay"}  # given nothing itself, this rank does what rank 0 does
        if schedule is not None and schedule.digest() != chosen.digest():
            problems += describe_difference(schedule, chosen)
        problems += chosen.fingerprint.differences(job)
    answers = exchange.gather(
        {
            "problems": problems[:MAX_DIFFERENCES],
            "warnings": _condition_warnings(chosen, job),
            "settings": settings,
            "shape": shape,
        }
    )
    return _merge(answers, "problems") + _unequal(answers, rank), chosen, answers


def _condition_warnings(schedule: Schedule | None, job: Fingerprint) -> list[str]:
    """Name conditions of the schedule that this job does not have."""
    made = schedule.fingerprint.conditions if schedule is not None else {}
    return [
        f"schedule was made with {name} {value}, this job has {job.conditions[name]}"
        for name, value in made.items()
        if name in job.conditions and job.conditions[name] != value
    ]


def _digest(data: bytes) -> list[float]:
    """Two words of a SHA-256 that a float64 holds exactly: 96 bits."""
    digest = sha256(data).digest()
    return [float(int.from_bytes(digest[at : at + DIGEST_BYTES], "little")) for at in (0, DIGEST_BYTES)]


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


def _tuple_words(tuples: list[Ranks]) -> list[float]:
    """Return rank tuples in a fixed number of words: how many, then (first, count, stride); -1 if they do not fit."""
    packed = [_packed(ranks) for ranks in tuples]
    room = 3 * GROUPS_IN_VECTOR
    if len(packed) > GROUPS_IN_VECTOR or any(row[0] == 0 for row in packed):
        return [-1.0] + [0.0] * room
    words = [float(number) for row in packed for number in row[1:]]
    return [float(len(packed)), *words, *[0.0] * (room - len(words))]


def _tuples_of(rows: list[list[float]]) -> tuple[Ranks, ...] | None:
    """Return all rank tuples of all ranks' words; None where those of one rank did not fit."""
    if any(row[0] < 0 for row in rows):
        return None
    packed = {(1, *map(int, row[at : at + 3])) for row in rows for at in range(1, 1 + 3 * int(row[0]), 3)}
    return tuple(sorted(_unpacked(list(row)) for row in packed))


def _exchange_tuples(exchange: Exchange, mine: list[Ranks]) -> tuple[Ranks, ...]:
    """The same for tuples of any number and shape, as JSON."""
    rows = (row for answer in exchange.gather([_packed(ranks) for ranks in mine]) for row in answer)
    return tuple(sorted({_unpacked(row) for row in rows}))


def _packed(ranks: Ranks) -> list[int]:
    """Evenly spaced ranks as (1, first, count, stride): a thousand ranks of one group in three numbers."""
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    even = stride > 0 and ranks == tuple(range(ranks[0], ranks[0] + len(ranks) * stride, stride))
    return [1, ranks[0], len(ranks), stride] if even else [0, *ranks]


def _unpacked(row: list[int]) -> Ranks:
    return tuple(range(row[1], row[1] + row[2] * row[3], row[3])) if row[0] else tuple(row[1:])


def mismatch_error(problems: tuple[str, ...]) -> MismatchError:
    """Return the error that attach raises on all ranks."""
    shown = "; ".join(problems[:MAX_DIFFERENCES])
    more = len(problems) - MAX_DIFFERENCES
    tail = f"; and {more} more" if more > 0 else ""
    return MismatchError(
        f"this schedule cannot be replayed here: {shown}{tail}. Give every rank the same schedule, made for "
        'this model and world size, or train as stock with attach(..., on_mismatch="stock")'
    )
