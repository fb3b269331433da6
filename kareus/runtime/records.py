"""StepRecords and counters: what replay did and measured, one JSON line per step.

Writing never disturbs training: the first failure is logged, later ones are only counted.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import msgspec

SCHEMA = "kareus.step_record/1"
Arm = Literal["observe", "stock", "scheduled"]

log = logging.getLogger("kareus")


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one step measured on one rank.

    Attributes:
        step: index since attach. rank: who measured. arm: which decisions were in force.
        time_us: from one step boundary to the next, device time where there is one.
        energy_j: of this rank's GPU over the step: mean power of the window it lies in, times `time_us`;
            None where nothing is measured or another process counts this GPU.
        energy_window_s: length of that window, of which the counter's period of 100 ms or so is uncertain.
        energy_source: of the window's energy, "counter" or "power" (integrated); "" or "none" without.
        exposed_comm_us: time the compute stream (the CPU with gloo) stood waiting for collectives.
        num_collectives: issued in the step. issue_hash: of their keys, groups, sizes and order.
        sm_clock_mhz: at the end of the step, None unknown.
        fallback: why stock is in force although a schedule was given, "" otherwise.
        unplanned: collectives the schedule does not know. missed: launch points that were not met in time.
    """

    step: int
    rank: int
    arm: Arm
    time_us: float
    energy_j: float | None = None
    energy_window_s: float | None = None
    energy_source: str = ""
    exposed_comm_us: float | None = None
    num_collectives: int = 0
    issue_hash: str = ""
    sm_clock_mhz: int | None = None
    fallback: str = ""
    unplanned: int = 0
    missed: int = 0
    schema: str = SCHEMA


class Tally:
    """Counts of everything unusual; each kind is logged once a rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.counts: Counter[str] = Counter()

    def add(self, code: str, text: str = "", *, count: int = 1) -> None:
        """Count an event and log its text the first time."""
        if text and code not in self.counts:
            log.warning("kareus rank %d: %s", self.rank, text)
        self.counts[code] += count


class RecordWriter:
    """Appends StepRecords to `records-rank<N>.jsonl` in a directory; keeps the newest in memory.

    Args:
        directory: None keeps records in memory only. rank: of this process. tally: counts failures.
        keep: how many records stay in memory.
    """

    def __init__(self, directory: str | None, rank: int, tally: Tally, *, keep: int = 4096) -> None:
        self.records: list[StepRecord] = []
        self._keep = keep
        self._tally = tally
        self._path = None if directory is None else Path(directory) / f"records-rank{rank}.jsonl"
        self._file: Any = None
        if self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("ab")
            except OSError as error:
                tally.add(
                    "records_failed", f"cannot write {self._path}: {error}; step records stay in memory"
                )

    def write(self, record: StepRecord) -> None:
        """Keep a record and append it to the file."""
        self.records.append(record)
        if len(self.records) > self._keep:
            del self.records[: self._keep // 2]
        if self._file is None:
            return
        try:
            self._file.write(msgspec.json.encode(record) + b"\n")
            self._file.flush()
        except (OSError, ValueError) as error:
            self._tally.add(
                "records_failed", f"cannot write {self._path}: {error}; step records stay in memory"
            )

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                self._tally.add("records_failed")
            self._file = None


def read_records(path: str) -> list[StepRecord]:
    """Read the records of one rank; a half-written last line is dropped.

    Raises:
        msgspec.ValidationError: a complete line that is not a step record.
    """
    records = []
    for line in Path(path).read_bytes().splitlines():
        try:
            json.loads(line)
        except ValueError:
            continue
        records.append(msgspec.json.decode(line, type=StepRecord))
    return records
