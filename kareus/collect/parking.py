"""Several sessions on one model, one in force at a time.

A parked session keeps its communicators and its agreed plan, and has nothing in the model: no hook, no
wrapped method, no prefetch list. Switching costs microseconds, where attaching again would build
communicators.
"""

from __future__ import annotations

from typing import Any


class Parking:
    """Takes a session's driver out of the model and puts it back.

    Args:
        session: an attached `kareus.runtime.Session`; it starts in force.
    """

    def __init__(self, session: Any) -> None:
        self.session = session
        self.parked = False
        self._arm = session.conductor.arm

    def park(self) -> None:
        """Leave the model as it was before the session was attached; a second call does nothing."""
        if self.parked:
            return
        session = self.session
        self._arm = session.conductor.arm
        session.conductor.arm = "stock"  # the driver gives the user's prefetch lists back only for this arm
        session.driver.on_arm()
        session.driver.uninstall()
        session.rest(True)
        self.parked = True

    def resume(self) -> None:
        """Take hold of the model again, with the arm that was in force; a second call does nothing."""
        if not self.parked:
            return
        session = self.session
        session.driver.install()
        session.conductor.arm = self._arm
        session.driver.on_arm()
        session.rest(False)
        self.parked = False

    def close(self) -> None:
        """Detach, parked or not."""
        self.resume()  # detach takes the driver out itself
        self.session.detach()
