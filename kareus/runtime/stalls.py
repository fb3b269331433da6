"""How long the compute stream stood still for FSDP2's collectives, from pairs of timing events.

Only on devices with streams, and only in sampled steps: with gloo the time inside the blocking call is
the exposed time already. A wait is the time from where compute arrived to where the collective ended, if
that is later.
"""

from __future__ import annotations

from typing import Any

from kareus.runtime import torch_api
from kareus.runtime.conductor import Conductor


class Stalls:
    """Collects (arrived, ended) marks into the step's measure.

    Args:
        conductor: whose measure they go to; `sampling` turns collection on.
    """

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._streams = conductor.timeline.device.type != "cpu"
        self._arrived: Any = None
        self._gathers: dict[str, Any] = {}
        self._reduce: Any = None
        self._reduce_waited = True
        self._last_compute: Any = None

    @property
    def _on(self) -> bool:
        device = self._conductor.timeline.device
        return self._streams and self._conductor.sampling and not torch_api.is_capturing(device)

    def _add(self, arrived: Any, ended: Any) -> None:
        self._conductor.measure.stalls.append((arrived, ended))

    def arrive(self) -> None:
        """Note that compute has come to where a unit's parameters are needed."""
        self._arrived = self._conductor.timeline.mark(timing=True) if self._on else None

    def gather_issued(self, unit: str) -> None:
        """Note the end of the all-gather that was just issued."""
        if self._on:
            self._gathers[unit] = self._conductor.last_end

    def gathered(self, unit: str) -> None:
        """Pair the arrival with the end of the unit's all-gather, if there was one."""
        ended = self._gathers.pop(unit, None)
        if ended is not None and self._arrived is not None:
            self._add(self._arrived, ended)

    def reduce_issued(self) -> None:
        """Note the end of the reduce-scatter that was just issued."""
        if self._on:
            self._reduce, self._reduce_waited = self._conductor.last_end, False

    def before_reduce(self) -> None:
        """Compute waits here for the previous reduce-scatter's buffer (one is kept by default)."""
        if self._on and not self._reduce_waited:
            self._add(self._conductor.timeline.mark(timing=True), self._reduce)
            self._reduce_waited = True

    def after_reduce(self) -> None:
        """Note the last compute of the backward pass so far."""
        if self._on:
            self._last_compute = self._conductor.timeline.mark(timing=True)

    def end_step(self) -> None:
        """Pair the end of backward with the end of the last reduce-scatter, and start afresh."""
        if self._last_compute is not None and self._reduce is not None and not self._reduce_waited:
            self._add(self._last_compute, self._reduce)
        self._gathers.clear()
        self._arrived = self._reduce = self._last_compute = None
        self._reduce_waited = True
