"""How long the compute stream stood still for FSDP2's collectives, from pairs of timing events.

Only on devices with streams: with gloo the time inside the blocking call is the exposed time already. The
marks are read when the step's record is written, long after. A wait is the time from where compute
arrived to where the collective ended, if that is later.
"""

from __future__ import annotations

from typing import Any

from kareus.runtime import torch_api
from kareus.runtime.conductor import Conductor


class Stalls:
    """Collects (arrived, ended) marks into the step's measure.

    Args:
        conductor: whose measure they go to.

    Attributes:
        enabled: the device has streams.
    """

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self.enabled = conductor.timeline.device.type != "cpu"
        self._arrived: Any = None
        self._gathers: dict[str, Any] = {}
        self._reduce: Any = None
        self._reduce_waited = True
        self._last_compute: Any = None

    def _mark(self) -> Any:
        timeline = self._conductor.timeline
        return None if torch_api.is_capturing(timeline.device) else timeline.mark(timing=True)

    def _add(self, arrived: Any, ended: Any) -> None:
        if arrived is not None and ended is not None:
            self._conductor.measure.stalls.append((arrived, ended))

    def arrive(self) -> None:
        """Note that compute has come to where a unit's parameters are needed."""
        if self.enabled:
            self._arrived = self._mark()

    def gather_issued(self, unit: str) -> None:
        """Note the end of the all-gather that was just issued."""
        if self.enabled:
            self._gathers[unit] = self._conductor.last_end

    def gathered(self, unit: str) -> None:
        """Pair the arrival with the end of the unit's all-gather, if there was one."""
        if self.enabled:
            self._add(self._arrived, self._gathers.pop(unit, None))

    def reduce_issued(self) -> None:
        """Note the end of the reduce-scatter that was just issued."""
        if self.enabled:
            self._reduce, self._reduce_waited = self._conductor.last_end, False

    def before_reduce(self) -> None:
        """Compute waits here for the previous reduce-scatter's buffer (one is kept by default)."""
        if self.enabled and not self._reduce_waited:
            self._add(self._mark(), self._reduce)
            self._reduce_waited = True

    def after_reduce(self) -> None:
        """Note the last compute of the backward pass so far."""
        if self.enabled:
            self._last_compute = self._mark()

    def end_step(self) -> None:
        """Pair the end of backward with the end of the last reduce-scatter, and start afresh."""
        if not self._reduce_waited:
            self._add(self._last_compute, self._reduce)
        self._gathers.clear()
        self._arrived = self._reduce = self._last_compute = None
        self._reduce_waited = True
