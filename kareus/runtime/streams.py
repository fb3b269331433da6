"""Streams, events and timers behind one Protocol, so that the same code runs on CUDA and on CPU.

On CPU collectives of gloo complete inside the call: there is nothing to wait for, and a "mark" is the
host clock. On CUDA a mark is an event on the current stream.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Timeline(Protocol):
    """What the runtime needs of a device: marks in stream order, waits for them, elapsed time."""

    device: torch.device

    def mark(self, *, timing: bool = False) -> Any:
        """Record a mark on the current stream."""

    def wait(self, mark: Any) -> None:
        """Make the current stream wait for a mark that has been recorded."""

    def is_done(self, mark: Any) -> bool:
        """Return whether the device has passed a mark, without waiting."""

    def finish(self, mark: Any) -> None:
        """Block the CPU until the device has passed a mark."""

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Return microseconds between two timing marks that are done."""

    def current_stream(self) -> Any:
        """Return the current stream, None where there are none."""

    def wait_stream(self, waiter: Any, other: Any) -> None:
        """Make one stream wait for what another has been given so far."""


class CpuTimeline:
    """Host clock marks; waits are no-ops because CPU work is in order."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def mark(self, *, timing: bool = False) -> float:
        """Return the host clock in seconds."""
        return time.perf_counter()

    def wait(self, mark: float) -> None:
        """Do nothing: the CPU is past every mark it made."""

    def is_done(self, mark: float) -> bool:
        """Return True: the CPU is past every mark it made."""
        return True

    def finish(self, mark: float) -> None:
        """Do nothing: the CPU is past every mark it made."""

    def elapsed_us(self, start: float, end: float) -> float:
        """Return microseconds between two marks."""
        return (end - start) * 1e6

    def current_stream(self) -> None:
        """Return None: there are no streams."""

    def wait_stream(self, waiter: None, other: None) -> None:
        """Do nothing."""


class CudaTimeline:
    """CUDA events of one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self, *, timing: bool = False) -> torch.cuda.Event:
        """Record an event on the current stream."""
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait(self, mark: torch.cuda.Event) -> None:
        """Make the current stream wait for a recorded event."""
        torch.cuda.current_stream(self.device).wait_event(mark)

    def is_done(self, mark: torch.cuda.Event) -> bool:
        """Query an event."""
        return bool(mark.query())  # type: ignore[no-untyped-call]

    def finish(self, mark: torch.cuda.Event) -> None:
        """Block until an event has passed."""
        mark.synchronize()

    def elapsed_us(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Return microseconds between two timing events."""
        return float(start.elapsed_time(end)) * 1e3

    def current_stream(self) -> torch.cuda.Stream:
        """Return the current stream of the device."""
        return torch.cuda.current_stream(self.device)

    def wait_stream(self, waiter: torch.cuda.Stream, other: torch.cuda.Stream) -> None:
        """Make one stream wait for another."""
        waiter.wait_stream(other)


def timeline_for(device: torch.device) -> Timeline:
    """Return the timeline of a device."""
    return CudaTimeline(device) if device.type == "cuda" else CpuTimeline()
