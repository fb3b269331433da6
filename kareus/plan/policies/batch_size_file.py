"""A batch-size search that outlives its process: recurring jobs are separate runs of a program.

The file holds the search's settings and what happened, in order; reading it plays that again, draws included,
so a search continues exactly as if it had never stopped.
"""

from __future__ import annotations

import os

import msgspec

from kareus import schema
from kareus.errors import InputError, UsageError
from kareus.plan.policies.batch_size import BatchSizeSearch

SCHEMA = "kareus.batch_size/1"


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A run that began (no cost) or ended (its cost, and whether it met its target)."""

    size: int
    cost: float | None = None
    reached: bool = False


class Recurring(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a search and its history."""

    schema: str
    sizes: list[int]
    default: int
    beta: float = 2.0
    rounds: int = 2
    window: int = 0
    seed: int = 0
    events: list[Event] = []

    def search(self) -> BatchSizeSearch:
        """Return the search as it stands after all events.

        Raises:
            UsageError: settings that make no sense. InputError: a history the settings cannot have led to.
        """
        found = BatchSizeSearch(
            self.sizes, self.default, beta=self.beta, rounds=self.rounds, window=self.window, seed=self.seed
        )
        for number, event in enumerate(self.events):
            if event.cost is not None:
                found.report(event.size, event.cost, event.reached)
            elif (size := found.next()) != event.size:
                raise InputError(
                    f"event {number}: expected a run of size {size}, found {event.size}; the file was edited, or "
                    "another version wrote it: begin a new one"
                )
        return found

    def begun(self) -> tuple[int, Recurring]:
        """Return the size of the next run, and the record with that run begun."""
        size = self.search().next()
        return size, self._with(Event(size=size))

    def ended(self, size: int, cost: float, reached: bool) -> Recurring:
        """Return the record with a run ended.

        Raises:
            UsageError: a size that is not allowed, or a cost that is not a positive number.
        """
        self.search().report(size, cost, reached)
        return self._with(Event(size=size, cost=cost, reached=reached))

    def _with(self, event: Event) -> Recurring:
        return msgspec.structs.replace(self, events=[*self.events, event])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record; no reader sees half of it."""
        schema.write_document(path, self)


def begin(sizes: list[int], default: int, *, beta: float = 2.0, window: int = 0, seed: int = 0) -> Recurring:
    """Return a record without history.

    Raises:
        UsageError: settings that make no sense, as in `BatchSizeSearch`.
    """
    if not sizes or min(sizes) < 1:
        raise UsageError(f"expected batch sizes of at least 1, found {sizes}")
    record = Recurring(
        schema=SCHEMA, sizes=sorted(set(sizes)), default=default, beta=beta, window=window, seed=seed
    )
    record.search()
    return record


def load(path: str | os.PathLike[str]) -> Recurring:
    """Read a record.

    Raises:
        InputError: unreadable, another schema, or a history the settings cannot have led to.
    """
    record = schema.read_document(path, Recurring, SCHEMA)
    try:
        record.search()
    except (UsageError, InputError) as error:
        raise InputError(f"{path}: {error}") from error
    return record
