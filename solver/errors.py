"""What can go wrong inside the solver. The package is a leaf, so it has its own small tree."""

from __future__ import annotations


class SolverError(Exception):
    """Base of every error the solver raises on purpose."""


class ProblemError(SolverError, ValueError):
    """A problem that makes no sense; the message names the place, what was expected and what was found."""


class ContradictionError(SolverError):
    """Two methods disagree about a proven bound or about feasibility: one of them is wrong.

    It is never swallowed: the plan may still be good, but nothing that was proven about it can be trusted.
    """
