"""Run a callback when this process ends by exit, exception, SIGTERM or SIGINT (SIGKILL: see watchdog)."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ExitHook:
    """Calls `callback` once, at the first of the ways a process can end, and lets the end go on.

    A signal handler that was there before runs afterwards; a signal that was ignored, or is handled by
    code outside Python, is left alone. A forked child never runs the callback.

    Attributes:
        signals: those that are watched; empty where the hook was not made on the main thread.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self.signals: tuple[signal.Signals, ...] = ()
        self._callback = callback
        self._pid = os.getpid()
        self._previous: dict[int, Any] = {}
        self._done = False
        self._handler = self._on_signal  # one object, so that `cancel` can recognise it
        atexit.register(self._run)
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                previous = signal.getsignal(number)
                if previous is not None and previous is not signal.SIG_IGN:
                    self._previous[number] = previous
                    signal.signal(number, self._handler)
                    self.signals = (*self.signals, number)

    def cancel(self) -> None:
        """Take the hook away again, where nobody has put another handler on top of it."""
        self._done = True
        atexit.unregister(self._run)
        if threading.current_thread() is threading.main_thread():
            for number, previous in self._previous.items():
                if signal.getsignal(number) is self._handler:
                    signal.signal(number, previous)

    def _run(self) -> None:
        if not self._done and os.getpid() == self._pid:
            self._done = True
            self._callback()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._run()
        previous = self._previous[number]
        if callable(previous):
            previous(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
