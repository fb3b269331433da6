"""The solver's progress on stderr: one live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO

from kareus.report.numbers import percent, plain

_LIVE_S = 0.1  # redraw no more often than the eye follows
_PLAIN_S = 5.0  # a log file needs no more
_CLEAR = "\r\x1b[K"


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
        self._start = clock()
        self._shown_at: float | None = None
        self._drawn = False

    def __enter__(self) -> SolverProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._drawn and self._live:
            self._write(_CLEAR)

    def __call__(
        self,
        best: float | None = None,
        bound: float | None = None,
        gap: float | None = None,
        elapsed_s: float | None = None,
        *,
        unit: str = "",
        label: str = "",
    ) -> None:
        """Take one report from the solver.

        Args:
            best: value of the best plan so far, None before the first.
            bound: proven lower bound in the same unit, None before the first.
            gap: relative; worked out from both where it is None.
            elapsed_s: since the solve began; since this object was made where it is None.
            unit: of best and bound, "mJ" or "us". label: what is being solved, "point 3 of 20".
        """
        if self.quiet:
            return
        now = self._clock()
        wait = _LIVE_S if self._live else _PLAIN_S
        if self._shown_at is not None and now - self._shown_at < wait:
            return
        self._shown_at = now
        line = describe(
            best, bound, gap, now - self._start if elapsed_s is None else elapsed_s, unit=unit, label=label
        )
        self._write(_CLEAR + line if self._live else line + "\n")
        self._drawn = True

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
            self._file.flush()
        except (OSError, ValueError):  # closed pipe, full disk, closed file
            self.quiet = True


def describe(
    best: float | None, bound: float | None, gap: float | None, elapsed_s: float, *, unit: str, label: str
) -> str:
    """Return one progress line: "1.2 s  best 86400 mJ  bound 86360 mJ  gap 0.05 %"."""
    if gap is None and best is not None and bound is not None and best:
        gap = (best - bound) / best
    parts = [f"{elapsed_s:.1f} s"]
    if label:
        parts.append(label)
    parts.append(f"best {_value(best, unit)}")
    parts.append(f"bound {_value(bound, unit)}")
    parts.append(f"gap {percent(gap, 2)}" if gap is not None else "gap unknown")
    return plain("  ".join(parts))


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "none yet"
    return f"{value:.0f} {unit}" if unit else f"{value:.0f}"
