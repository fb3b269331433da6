"""A recording of steps that a schedule is in force in, to compare what was requested with what ran."""

from __future__ import annotations

import sys
from typing import Any

from kareus.collect.collector import Collector
from kareus.collect.gather import AloneLink, GlooLink
from kareus.collect.options import CollectOptions


class UnderSchedule:
    """Counts the collector's steps from where the guard has settled for the schedule.

    All ranks settle at the same boundary, so all record the same steps.

    Args:
        session: that replays. directory, options, link: as for `Collector`.
    """

    def __init__(
        self, session: Any, directory: str, options: CollectOptions, link: AloneLink | GlooLink
    ) -> None:
        self._session = session
        digest = session.schedule.digest()[:12]
        note = (
            f"recorded while the schedule {digest} was in force: not stock, solve stock's recording instead"
        )
        self._collector = Collector(session.job, directory, options, link, notes=(note,))
        self._begun = False

    def on_step(self, step_index: int) -> None:
        """Pass boundaries on from the first one that lies in front of a step under the settled schedule."""
        session = self._session
        self._begun |= session.state == "replay" and session.conductor.arm == "scheduled"
        if self._begun:
            self._collector.on_step(step_index)

    def finish(self) -> None:
        """End the recording; say why there is none where the schedule never stayed in force."""
        if self._begun:
            self._collector.finish()
        elif self._session.job.rank == 0:
            why = self._session.pilot.reason or "the comparison with stock had not ended"
            print(
                f"kareus: recorded nothing: the schedule did not stay in force ({why}); train longer, or "
                "attach with guard=False to record it all the same",
                file=sys.stderr,
            )
