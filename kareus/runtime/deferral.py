"""Deferral of reduce-scatters, by whole units or until a launch point.

FSDP reduces a unit's gradients as soon as its backward ends. Deferring by k units runs that step when k
more units have ended theirs, so that the next all-gather is issued first; a unit can also be held until
its launch point. It is done by the CPU, in a
first-in first-out order that is the same on all ranks, and whatever is left is run before FSDP's final
callback looks at its units.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from kareus.runtime import torch_api

FINAL = "_root_post_backward_final_callback"


class ReduceDeferral:
    """Queue of postponed `post_backward` calls.

    Args:
        units: how many units later a reduce-scatter is issued; 0 changes nothing.
        active: whether deferral is in force now.
    """

    def __init__(self, units: int, *, active: Callable[[], bool]) -> None:
        self._units, self._active = units, active
        self._queue: deque[tuple[Any, Callable[[], Any]]] = deque()
        self._held: dict[int, Callable[[], Any]] = {}
        self._final = False
        self.dropped = 0

    def post_backward(self, group: Any, run: Callable[[], Any], *, hold: bool = False) -> Any:
        """Run a unit's post-backward now or later.

        Not deferred: units whose gradients are not reduced now, and units with another use still to
        come in this backward, whose partial sums must stay as in stock.

        Args:
            group: the parameter group. run: torch's own method. hold: until `release`.
        """
        if id(group) in self._held:
            self.release(group)
            return None
        waiting = any(queued is group for queued, _ in self._queue)
        if waiting:
            self._run_until(group)
            return None
        if (
            (self._units == 0 and not hold)
            or self._final
            or not self._active()
            or not group.reduce_grads
            or torch_api.remaining_uses(group) > 0
        ):
            return run()
        if hold:
            self._held[id(group)] = run
            return None
        self._queue.append((group, run))
        while len(self._queue) > self._units:
            self._queue.popleft()[1]()
        return None

    def release(self, group: Any) -> None:
        """Run a unit's held post-backward; nothing where none is held."""
        run = self._held.pop(id(group), None)
        if run is not None:
            run()

    def _run_until(self, group: Any) -> None:
        while self._queue:
            queued, run = self._queue.popleft()
            run()
            if queued is group:
                return

    def begin_pass(self) -> None:
        """Drop what an exception left behind: FSDP starts the pass from its own state."""
        self.dropped += len(self._queue) + len(self._held)
        self._queue.clear()
        self._held.clear()
        self._final = False

    def wrap_final_callback(self, state: Any) -> None:
        """Run what is left before FSDP finishes a backward pass."""
        if not hasattr(type(state), FINAL) or FINAL in state.__dict__:
            return
        original = getattr(state, FINAL)

        def final(*args: Any, **kwargs: Any) -> Any:
            while self._queue:
                self._queue.popleft()[1]()
            while self._held:
                self._held.pop(next(iter(self._held)))()
            self._final = True
            try:
                return original(*args, **kwargs)
            finally:
                self._final = False

        setattr(state, FINAL, final)

    def unwrap_final_callback(self, state: Any) -> None:
        """Give the state its own final callback back."""
        state.__dict__.pop(FINAL, None)
