"""Finds out when ranks stop issuing the same collectives, and which collective somebody waits for.

Each rank folds what it issues into a hash that is compared at agreed boundaries. Should a collective not
end, a watchdog thread names it, and posts where this rank stands so that the others can say who is
elsewhere. It only ever reports: torch's own timeout decides what happens then.
"""

from __future__ import annotations

import threading
import time
import zlib
from dataclasses import dataclass
from typing import Any

from kareus.runtime.records import Tally
from kareus.runtime.streams import Timeline
from kareus.schedule import CollectiveKey

STORE_PREFIX = "kareus/waiting"


class IssueLog:
    """The collectives of one step in issue order, and a 32-bit hash of everything ranks must share."""

    def __init__(self) -> None:
        self.keys: list[CollectiveKey] = []
        self.value = 0

    def note(
        self, key: CollectiveKey, path: str, num_ctas: int, num_bytes: int, *, evaluating: bool = False
    ) -> None:
        """Add one issue. Collectives of an evaluation count for the hash only."""
        text = f"{key.kind}|{key.unit}|{key.phase}|{key.ordinal}|{path}|{num_ctas}|{num_bytes}"
        self.value = zlib.crc32(text.encode(), self.value)
        if not evaluating:
            self.keys.append(key)

    @property
    def digest(self) -> str:
        """The hash in hexadecimal."""
        return f"{self.value:08x}"


@dataclass(slots=True)
class _Flight:
    key: CollectiveKey
    since: float
    mark: Any = None
    issued: bool = False
    reported: bool = False


class Watch:
    """Collectives in flight, looked at by a daemon thread.

    Args:
        rank, world_size: of this process. timeline: asks whether marks have passed. tally: reports.
        after_s: a collective that lasts longer is named, once.
        store: torch's key-value store where ranks post what they wait for, None to name only this rank's.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        timeline: Timeline,
        tally: Tally,
        after_s: float,
        store: Any = None,
    ) -> None:
        self._rank, self._world_size = rank, world_size
        self._timeline, self._tally, self._after_s, self._store = timeline, tally, after_s, store
        self._lock = threading.Lock()
        self._flights: dict[int, _Flight] = {}
        self._next = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.messages: list[str] = []

    def start(self) -> None:
        """Start the watchdog thread."""
        self._thread = threading.Thread(target=self._run, name="kareus-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns within a moment."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def enter(self, key: CollectiveKey) -> int:
        """Note that a collective is being issued; returns its token."""
        with self._lock:
            self._next += 1
            self._flights[self._next] = _Flight(key, time.monotonic())
            return self._next

    def leave(self, token: int, mark: Any) -> None:
        """Note that the issuing call returned; `mark` is passed by the device when the work is done."""
        with self._lock:
            if mark is None:
                self._flights.pop(token, None)
                return
            flight = self._flights.get(token)
            if flight is not None:
                flight.mark, flight.issued = mark, True
            if len(self._flights) > 64:
                self._sweep()

    def _sweep(self) -> None:
        done = [t for t, f in self._flights.items() if f.issued and self._timeline.is_done(f.mark)]
        for token in done:
            del self._flights[token]

    def _run(self) -> None:
        period = max(0.05, min(1.0, self._after_s / 4))
        while not self._stop.wait(period):
            try:
                self.check()
            except Exception as error:  # a watchdog must not be what breaks
                self._tally.add("watchdog_failed", f"the watchdog stopped: {error}")
                return

    def check(self) -> None:
        """Look once, and report every collective that has waited too long."""
        now = time.monotonic()
        with self._lock:
            self._sweep()
            late = [f for f in self._flights.values() if now - f.since > self._after_s and not f.reported]
            if not late:
                return
            first = min(late, key=lambda f: f.since)
            for flight in late:
                flight.reported = True
        message = f"has waited {now - first.since:.1f} s in {first.key}"
        others = self._post_and_read(str(first.key))
        if others:
            message += "; " + "; ".join(others)
        message += "; every rank must issue the same collectives in the same order"
        self.messages.append(message)
        self._tally.add("collective_waits", message)

    def _post_and_read(self, mine: str) -> list[str]:
        """Post the own position, and say what other ranks have posted; never waits for them."""
        if self._store is None:
            return []
        try:
            self._store.set(f"{STORE_PREFIX}/{self._rank}", mine)
            found = []
            for rank in range(min(self._world_size, 64)):
                name = f"{STORE_PREFIX}/{rank}"
                if rank == self._rank or not self._store.check([name]):
                    continue
                theirs = self._store.get(name).decode()
                found.append(f"rank {rank} waits in {theirs}{'' if theirs == mine else ' (another one)'}")
        except RuntimeError:
            return []
        return found
