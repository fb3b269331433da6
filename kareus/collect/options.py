"""What a recording is asked for, from arguments or from the environment `kareus run` sets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kareus.errors import UsageError

VARIABLES = {
    "wait": "KAREUS_COLLECT_WAIT",
    "warmup": "KAREUS_COLLECT_WARMUP",
    "active": "KAREUS_COLLECT_ACTIVE",
    "max_mb": "KAREUS_COLLECT_MAX_MB",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectOptions:
    """One profiler window.

    Attributes:
        wait: steps before it, in which nothing of the collector runs. warmup: steps the profiler runs
            without keeping anything (its own start-up distorts them). active: steps recorded.
        max_mb: largest trace file of a rank, megabytes compressed; beyond it the file is thinned, then cut
            at a step boundary, and says so.
        modules: annotate every submodule in forward and backward, which launch points need.
    """

    wait: int = 5
    warmup: int = 2
    active: int = 3
    max_mb: float = 64.0
    modules: bool = True

    def __post_init__(self) -> None:
        if self.wait < 0 or self.warmup < 1 or self.active < 1 or not self.max_mb > 0:
            raise UsageError(
                f"collect: expected wait >= 0, warmup >= 1, active >= 1 and max_mb > 0, found "
                f"wait={self.wait} warmup={self.warmup} active={self.active} max_mb={self.max_mb}"
            )

    @property
    def steps_needed(self) -> int:
        """Steps a job must train for the recording to be whole."""
        return self.wait + self.warmup + self.active


def options_from(environment: Mapping[str, str]) -> CollectOptions:
    """Return the options in environment variables, defaults where they are unset.

    Raises:
        UsageError: a value that is not a number, or out of range.
    """
    defaults = CollectOptions()
    return CollectOptions(
        wait=_whole(environment, "wait", defaults.wait),
        warmup=_whole(environment, "warmup", defaults.warmup),
        active=_whole(environment, "active", defaults.active),
        max_mb=_number(environment, "max_mb", defaults.max_mb),
    )


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(VARIABLES[name])
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{VARIABLES[name]}={text!r}: expected a number; correct or unset it")
    return value


def _whole(environment: Mapping[str, str], name: str, default: int) -> int:
    value = _number(environment, name, default)
    if value != int(value):
        raise UsageError(f"{VARIABLES[name]}={value:g}: expected a whole number; correct or unset it")
    return int(value)
