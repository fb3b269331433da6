"""When steps end on the device, for the step times a manifest states.

The CPU returns from a step long before the GPU has done its work, so on CUDA a boundary is an event on the
stream the optimizer used, read once the recording is over; nothing waits for it meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch


class TimingEvent(Protocol):
    """The part of torch.cuda.Event used here."""

    def record(self) -> None:
        """Take the time when the work queued so far on the current stream is done."""

    def elapsed_time(self, later: Any) -> float:
        """Milliseconds until a later event, both done."""


def timing_event() -> TimingEvent:
    """Return a CUDA event that keeps the time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class StepClock:
    """Boundaries between steps, by number.

    Args:
        on_gpu: steps run on a CUDA device. make_event: of timing events there.
    """

    def __init__(self, on_gpu: bool, make_event: Callable[[], TimingEvent] = timing_event) -> None:
        self._make_event = make_event if on_gpu else None
        self._marks: dict[int, TimingEvent | float] = {}

    def mark(self, boundary: int) -> None:
        """Note that step `boundary - 1` has been launched to its end (0: before the first step)."""
        if self._make_event is None:
            self._marks[boundary] = time.perf_counter()
            return
        event = self._make_event()
        event.record()
        self._marks[boundary] = event

    def step_ms(self, first: int, last: int) -> list[float]:
        """Return times of the steps between boundaries `first` and `last`, milliseconds, as far as marked.

        On CUDA the device must have been waited for.
        """
        lengths: list[float] = []
        for boundary in range(first, last):
            begin, end = self._marks.get(boundary), self._marks.get(boundary + 1)
            if isinstance(begin, float) and isinstance(end, float):
                lengths.append((end - begin) * 1e3)
            elif begin is not None and end is not None and not isinstance(begin, float):
                lengths.append(begin.elapsed_time(end))
        return lengths
