"""How often a GPU's energy counter moves, measured rather than assumed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

# Both NVIDIA's documentation and two H200s say about 100 ms; used until measured.
ASSUMED_PERIOD_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterPeriod:
    """The update period of an energy counter.

    Attributes:
        period_s: median time between changes; `ASSUMED_PERIOD_S` where too few were seen.
        low_s, high_s: shortest and longest time seen between changes (0 where none).
        num_changes: changes seen.
        measured: False where `period_s` is the assumption.
    """

    period_s: float = ASSUMED_PERIOD_S
    low_s: float = 0.0
    high_s: float = 0.0
    num_changes: int = 0
    measured: bool = False


def measure_counter_period(
    read_mj: Callable[[], int | None],
    *,
    num_changes: int = 12,
    limit_s: float = 2.0,
    poll_s: float = 0.002,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
    stop: Callable[[], bool] = lambda: False,
) -> CounterPeriod:
    """Poll a counter until it has changed `num_changes` times or `limit_s` has passed.

    Args:
        read_mj: reads the counter, mJ; None is a failed read.
        num_changes: changes to wait for; the first one only sets the start.
        limit_s: longest time to spend.
        poll_s: time between reads; also the resolution of the result.
        clock, sleep: for tests. stop: asked between reads; True ends it early.
    """
    start = clock()
    changes: list[float] = []
    last = read_mj()
    while len(changes) < num_changes and clock() - start < limit_s and not stop():
        sleep(poll_s)
        value = read_mj()
        if value is not None and value != last:
            if last is not None:
                changes.append(clock())
            last = value
    intervals = [later - earlier for earlier, later in pairwise(changes)]
    if len(intervals) < 3:
        return CounterPeriod(num_changes=len(changes))
    return CounterPeriod(
        period_s=statistics.median(intervals), low_s=min(intervals), high_s=max(intervals),
        num_changes=len(changes), measured=True,
    )  # fmt: skip
