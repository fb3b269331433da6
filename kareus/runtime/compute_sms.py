"""Keeps some SMs free of the model's own kernels, where this torch can.

Two ways behind one Protocol. The BLAS carve-out is a hint that cuBLASLt, CUTLASS and FlashAttention-3
read at launch; it had no effect on the default BLAS of an H200 and slowed the step with cuBLASLt. A
green-context stream limits every kernel launched on it; on an H200 it brought nothing either
(tests/bench). Both are off unless a schedule asks for them, and a profile decides whether it does.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from kareus.runtime.records import Tally

GRANULARITY = 8  # SMs; compute capability 9.0 (CUDA driver API, Green Contexts)


class ComputeLimit(Protocol):
    """A way to keep SMs free."""

    name: str

    def enter(self, margin: int) -> None:
        """Keep `margin` SMs free of compute kernels from now on."""

    def leave(self) -> None:
        """Let compute use every SM again."""


class Carveout:
    """The process-wide carve-out of torch's BLAS calls (torch >= 2.7)."""

    name = "carveout"

    def __init__(self) -> None:
        self._before: int | None = None

    @staticmethod
    def available() -> bool:
        """Return whether this torch has it."""
        return hasattr(torch._C, "_set_sm_carveout_experimental")

    def enter(self, margin: int) -> None:
        """Set the carve-out; what was set before is kept for `leave`."""
        getter: Any = getattr(torch._C, "_get_sm_carveout_experimental", lambda: None)
        self._before = getter()
        torch._C._set_sm_carveout_experimental(margin)

    def leave(self) -> None:
        """Set what was set before."""
        setter: Any = torch._C._set_sm_carveout_experimental
        setter(self._before)


class GreenStream:
    """A stream of a green context, made the current stream between two step boundaries (torch >= 2.11).

    The context itself is never made current: NCCL and cudaSetDevice switch contexts behind its back.
    """

    name = "green_context"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._context: Any = None
        self._stream: Any = None
        self._margin = 0
        self._outer: Any = None

    @staticmethod
    def available() -> bool:
        """Return whether this torch makes streams of green contexts."""
        contexts = getattr(torch.cuda, "green_contexts", None)
        kind = getattr(contexts, "GreenContext", None)
        return kind is not None and hasattr(kind, "Stream") and hasattr(kind, "create")

    def enter(self, margin: int) -> None:
        """Make a stream on all SMs but `margin` (rounded up to what the hardware splits by) current."""
        total = torch.cuda.get_device_properties(self._device).multi_processor_count
        wanted = max(GRANULARITY, (total - margin) // GRANULARITY * GRANULARITY)
        if self._stream is None or self._margin != margin:
            contexts: Any = torch.cuda.green_contexts
            try:
                self._context = contexts.GreenContext.create(
                    num_sms=wanted, device_id=self._device.index or 0
                )
            except TypeError:  # 2.10 and 2.11 take positions
                self._context = contexts.GreenContext.create(wanted, self._device.index or 0)
            self._stream, self._margin = self._context.Stream(), margin
        self._outer = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(self._outer)
        torch.cuda.set_stream(self._stream)

    def leave(self) -> None:
        """Go back to the stream that was current before."""
        if self._outer is not None:
            self._outer.wait_stream(self._stream)
            torch.cuda.set_stream(self._outer)
            self._outer = None


class ComputeSms:
    """Switches a limit with the arm.

    Args:
        limit: how. margin: SMs to keep free. tally: counts failures, after which it stays off.
    """

    def __init__(self, limit: ComputeLimit, margin: int, tally: Tally) -> None:
        self._limit, self._margin, self._tally = limit, margin, tally
        self._inside = False
        self._broken = False

    def on_arm(self, *, scheduled: bool) -> None:
        """Enter with the schedule, leave with stock."""
        if self._broken or scheduled == self._inside:
            return
        try:
            if scheduled:
                self._limit.enter(self._margin)
            else:
                self._limit.leave()
            self._inside = scheduled
        except (RuntimeError, AttributeError, ValueError) as error:
            self._broken = True
            self._tally.add("compute_sms_failed", f"{self._limit.name} failed and stays off: {error}")

    def finish(self) -> None:
        """Leave for good."""
        self.on_arm(scheduled=False)


def open_compute_sms(
    margin: int | None, device: torch.device, tally: Tally, *, prefer: str = "carveout"
) -> ComputeSms | None:
    """Return the switch for a schedule's `compute_sm_margin`, None where it is off or unavailable.

    Args:
        prefer: "carveout" or "green_context".
    """
    if margin is None or margin <= 0:
        return None
    if prefer == "green_context" and device.type == "cuda" and GreenStream.available():
        return ComputeSms(GreenStream(device), margin, tally)
    if Carveout.available():
        return ComputeSms(Carveout(), margin, tally)
    tally.add("compute_sms_unavailable", "this torch cannot keep SMs free of compute kernels")
    return None
