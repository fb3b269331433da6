"""Recording inside a running job: a profiler window, and settings measured in place.

`kareus.attach(mode="collect")` and `mode="profile"` start these; a training script never calls them.
"""

from __future__ import annotations

import os
from typing import Any

from kareus.collect.collector import Collector
from kareus.collect.gather import make_link
from kareus.collect.options import CollectOptions, options_from
from kareus.errors import UsageError

__all__ = ["CollectOptions", "Collector", "start"]

LINK_TIMEOUT_S = 60.0


def start(session: Any, options: CollectOptions | None = None) -> Any:
    """Begin what a session's mode asks for; all ranks call it in `attach`.

    Args:
        session: a `kareus.runtime.Session` with `mode` "collect" or "profile", or "replay" with a place to record.
        options: of the window; by default from the environment.

    Returns:
        Something with `on_step(step_index)` and `finish()`.

    Raises:
        UsageError: no directory to write into, or options out of range.
    """
    target = session.collect_dir
    if not target:
        raise UsageError(
            f'attach(mode="{session.mode}") found no place to write to; set KAREUS_COLLECT=DIR or '
            "KAREUS_PROFILE=FILE, or start the job with kareus run --collect DIR -- torchrun ..."
        )
    if session.mode == "profile":
        from kareus.collect.sweep import start_sweep

        return start_sweep(session, target)
    chosen = options or options_from(os.environ)
    if session.mode == "replay":
        from kareus.collect.under_schedule import UnderSchedule

        return UnderSchedule(session, target, chosen, make_link(LINK_TIMEOUT_S))
    return Collector(session.job, target, chosen, make_link(LINK_TIMEOUT_S))
