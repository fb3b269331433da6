"""The solver's progress on stderr: one live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, Protocol

from kareus.report.numbers import percent, plain

_LIVE_S = 0.1  # redraw no more often than the eye follows
_PLAIN_S = 5.0  # a log file needs no more
_CLEAR = "\r\x1b[K"


class Report(Protocol):
    """What a solver reports: `solver.engine.Progress` has this shape."""

    @property
    def best(self) -> float | None:
        """Value of the best plan so far, in the objective's unit (us or mJ); None before the first."""

    @property
    def bound(self) -> float:
        """Proven lower bound in the same unit, -inf before the first."""

    @property
    def gap(self) -> float:
        """Relative distance between both."""

    @property
    def elapsed_s(self) -> float:
        """Since this solve began."""


class SolverProgress:
    """Shows best, bound, gap and elapsed time while a solver runs.

        with SolverProgress() as progress:
            solve(problem, progress=progress)

    A broken stderr never stops a solve: after the first failed write nothing more is shown.

    Attributes:
        quiet: nothing is shown.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        file: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.quiet = quiet
        self._file = sys.stderr if file is None else file
        self._clock = clock
        self._live = self._file.isatty()
        self._shown_at: float | None = None
        self._drawn = False

    def __enter__(self) -> SolverProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._drawn and self._live:
            self._write(_CLEAR)

    def __call__(self, report: Report) -> None:
        """Take one report from the solver."""
        if self.quiet:
            return
        now = self._clock()
        wait = _LIVE_S if self._live else _PLAIN_S
        if self._shown_at is not None and now - self._shown_at < wait:
            return
        self._shown_at = now
        line = describe(report)
        self._write(_CLEAR + line if self._live else line + "\n")
        self._drawn = True

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
            self._file.flush()
        except (OSError, ValueError):  # closed pipe, full disk, closed file
            self.quiet = True


def describe(report: Report) -> str:
    """Return one progress line: "1.2 s  best 86400  bound 86360  gap 0.05 %"."""
    parts = [f"{report.elapsed_s:.1f} s", f"best {_value(report.best)}", f"bound {_value(report.bound)}"]
    known = report.best is not None and math.isfinite(report.gap)
    parts.append(f"gap {percent(report.gap, 2)}" if known else "gap unknown")
    return plain("  ".join(parts))


def _value(value: float | None) -> str:
    return "none yet" if value is None or not math.isfinite(value) else f"{value:.0f}"
