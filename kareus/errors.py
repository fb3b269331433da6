"""The error tree of Kareus.

    KareusError (exit 1)
    |- UsageError (2)            a flag or call that makes no sense
    |- InputError (3)            a file that cannot be used
    |- InfeasibleError (4)       limits no schedule can meet
    |- TimeLimitError (5)        no solution before the limit
    |- HardwareError (6)         a device that does not answer or cannot do it
    |  `- PermissionDenied (6)   the device can, this user may not
    `- MismatchError (7)         a schedule made for another job

A message says what was expected, what was found, where, and what to do about it. After `attach` has
returned, none of these is ever raised into a training loop.
"""

from __future__ import annotations


class KareusError(Exception):
    """Base of every error Kareus raises on purpose.

    Attributes:
        exit_code: what the command line returns when this error reaches it.
    """

    exit_code = 1


class UsageError(KareusError):
    """A combination of arguments that makes no sense."""

    exit_code = 2


class InputError(KareusError):
    """A file or directory that cannot be used as it is."""

    exit_code = 3


class InfeasibleError(KareusError):
    """Limits that no schedule can meet; the message names the least possible."""

    exit_code = 4


class TimeLimitError(KareusError):
    """The time limit passed before any solution was found."""

    exit_code = 5


class HardwareError(KareusError):
    """A device or driver that does not answer or cannot do what was asked."""

    exit_code = 6


class PermissionDenied(HardwareError):
    """The device could, but this user may not; the message names the remedy."""


class MismatchError(KareusError):
    """A schedule that was made for another model, world size or collective sequence."""

    exit_code = 7
