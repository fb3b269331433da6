"""Finds out when ranks stop issuing the same collectives, and which collective somebody waits for.

Each rank folds what it issues into a hash that is compared at agreed boundaries. Should a collective not
end, a watchdog thread names it, and posts where this rank stands so that the others can say who is
elsewhere. It only ever reports: torch's own timeout decides what happens then.
"""

from __future__ import annotations

import threading
import time
import zlib
from typing import Any

from kareus.runtime.records import Tally
from kareus.runtime.streams import Timeline
from kareus.schedule import CollectiveKey

STORE_PREFIX = "kareus/waiting"


def issue_text(key: CollectiveKey, path: str, num_ctas: int, num_bytes: int) -> bytes:
    """Return everything about one issue that ranks must share, as bytes to fold into a hash."""
    return f"{key.kind}|{key.unit}|{key.phase}|{key.ordinal}|{path}|{num_ctas}|{num_bytes}".encode()


class IssueLog:
    """The collectives of one step in issue order, and 32-bit hashes of what ranks must share.

    Attributes:
        keys: what was issued. value: hash of names, paths, budgets, sizes and order. sequence: hash of
            names and order alone, 0 where nothing was issued.
    """

    def __init__(self) -> None:
        self.keys: list[CollectiveKey] = []
        self.value = 0
        self.sequence = 0

    def add(self, key: CollectiveKey, name: bytes, text: bytes, *, evaluating: bool = False) -> None:
        """Add one issue. Collectives of an evaluation count for `value` only.

        Args:
            key: of the collective. name: its name as bytes. text: from `issue_text`.
        """
        self.value = zlib.crc32(text, self.value)
        if not evaluating:
            self.sequence = zlib.crc32(name, self.sequence)
            self.keys.append(key)

    @property
    def digest(self) -> str:
        """`value` in hexadecimal."""
        return f"{self.value:08x}"


class Flight:
    """One collective in flight.

    Attributes:
        key: its name. since_s: `time.perf_counter` when it was about to be issued. mark: passed by the
            device when it is done, None until the issuing call has returned. reported: it was named.
    """

    __slots__ = ("key", "mark", "reported", "since_s")

    def __init__(self, key: CollectiveKey) -> None:
        self.key = key
        self.since_s = time.perf_counter()
        self.mark: Any = None
        self.reported = False


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
        self._flights: dict[Flight, None] = {}  # single operations only: safe between threads without a lock
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

    def enter(self, key: CollectiveKey) -> Flight:
        """Note that a collective is being issued."""
        flight = Flight(key)
        self._flights[flight] = None
        return flight

    def leave(self, flight: Flight, mark: Any) -> None:
        """Note that the issuing call returned; `mark` is passed by the device when the work is done."""
        if mark is None:
            self._flights.pop(flight, None)
            return
        flight.mark = mark
        if len(self._flights) > 64:
            self._sweep()

    def _sweep(self) -> None:
        """Forget what is done, oldest first, up to one that is not."""
        for flight in list(self._flights):
            if flight.mark is None or not self._timeline.is_done(flight.mark):
                return
            self._flights.pop(flight, None)

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
        self._sweep()
        now = time.perf_counter()
        late = [
            f
            for f in list(self._flights)
            if now - f.since_s > self._after_s
            and not f.reported
            and (f.mark is None or not self._timeline.is_done(f.mark))
        ]
        if not late:
            return
        first = min(late, key=lambda f: f.since_s)
        for flight in late:
            flight.reported = True
        message = f"has waited {now - first.since_s:.1f} s in {first.key}"
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
