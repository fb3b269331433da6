"""A text file in Prometheus' exposition format, for node_exporter's textfile collector.

One file a rank, replaced as a whole every few seconds, so that a reader never sees half of one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from kareus.runtime.records import StepRecord, Tally

EVERY_S = 10.0
METRICS: tuple[tuple[str, str, Callable[[StepRecord], float | None]], ...] = (
    ("kareus_step_seconds", "Time of the newest step.", lambda r: r.time_us / 1e6),
    ("kareus_step_joules", "Energy of the newest step, one GPU.", lambda r: r.energy_j),
    (
        "kareus_step_exposed_seconds",
        "Time compute waited for communication in the newest step.",
        lambda r: None if r.exposed_comm_us is None else r.exposed_comm_us / 1e6,
    ),
)


def exposition(
    records: list[StepRecord], *, rank: int, state: str, steps: int, counts: dict[str, int]
) -> str:
    """Return the metrics of one rank as text.

    Args:
        records: the newest ones, oldest first; each arm's newest is shown.
        rank: of this process. state: of the session. steps: that ended. counts: of the unusual.
    """
    who = f'rank="{rank}"'
    lines = [
        "# HELP kareus_steps_total Steps that ended.",
        "# TYPE kareus_steps_total counter",
        f"kareus_steps_total{{{who}}} {steps}",
        "# HELP kareus_state 1 for what the session is doing.",
        "# TYPE kareus_state gauge",
        f'kareus_state{{{who},state="{state}"}} 1',
    ]
    newest = {record.arm: record for record in records}
    for name, text, value in METRICS:
        known = [(arm, value(record)) for arm, record in sorted(newest.items())]
        rows = [f'{name}{{{who},arm="{arm}"}} {found:.9g}' for arm, found in known if found is not None]
        if rows:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", *rows]
    lines += ["# HELP kareus_events_total Unusual events, by code.", "# TYPE kareus_events_total counter"]
    lines += [f'kareus_events_total{{{who},code="{code}"}} {count}' for code, count in sorted(counts.items())]
    return "\n".join(lines) + "\n"


class PrometheusFile:
    """Writes the metrics of a session at step boundaries; a session's follower.

    Args:
        directory: where `kareus-rank<N>.prom` is kept. tally: counts failures, and its counts are shown.
        records, state: the session's, read when a file is due.
        every_s: least time between two files. now_s: clock, seconds.
    """

    def __init__(
        self,
        directory: str,
        tally: Tally,
        *,
        records: Callable[[], list[StepRecord]],
        state: Callable[[], str],
        every_s: float = EVERY_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = Path(directory) / f"kareus-rank{tally.rank}.prom"
        self._tally, self._records, self._state = tally, records, state
        self._every_s, self._now_s = every_s, now_s
        self._due_s = now_s()
        self._steps = 0

    def on_step(self, step_index: int) -> None:
        """Write the file where it is due."""
        self._steps = step_index + 1
        now = self._now_s()
        if now >= self._due_s:
            self._due_s = now + self._every_s
            self._write()

    def finish(self) -> None:
        """Write the last state."""
        self._write()

    def _write(self) -> None:
        text = exposition(
            self._records(),
            rank=self._tally.rank,
            state=self._state(),
            steps=self._steps,
            counts=dict(self._tally.counts),
        )
        beside = self.path.with_suffix(".tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(text)
            os.replace(beside, self.path)
        except OSError as error:
            self._tally.add("metrics_failed", f"cannot write {self.path}: {error}; training goes on without")
