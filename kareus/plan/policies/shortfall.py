"""Why a policy has no figure to show in a comparison, in words: a dash alone leaves the reader guessing."""

from __future__ import annotations

from collections.abc import Sequence

from solver import Solution, Status


def of_points(points: Sequence[tuple[int, int]], limit_us: int, energy_mj: int) -> str:
    """Return what all plans of a policy lack, "" where some plan meets each limit.

    Args:
        points: (time_us, energy_mj) of every plan of the policy, at least one.
        limit_us: time allowed. energy_mj: stock's energy.
    """
    fastest, least = min(t for t, _ in points), min(e for _, e in points)
    found = []
    if fastest > limit_us:
        found.append(f"{_within(limit_us)}, its fastest takes {fastest / 1e3:.2f} ms")
    if least > energy_mj:
        found.append(f"{_WITHOUT_MORE}, its least needs {least / 1e3:.2f} J, stock {energy_mj / 1e3:.2f} J")
    return "; ".join(found)


def of_solves(energy: Solution, time: Solution, limit_us: int, time_limit_s: float) -> str:
    """Return which of two solves has no plan and whether that is proven, "" where both have one.

    Args:
        energy: least energy within `limit_us`. time: least time within stock's energy.
        time_limit_s: of each solve.
    """
    pairs = ((energy, _within(limit_us)), (time, _WITHOUT_MORE))
    return "; ".join(
        f"{what}, {_known(solution, time_limit_s)}" for solution, what in pairs if not solution.choices
    )


_WITHOUT_MORE = "no plan without more energy than stock"


def _within(limit_us: int) -> str:
    return f"no plan within {limit_us / 1e3:.2f} ms"


def _known(solution: Solution, time_limit_s: float) -> str:
    if solution.status is Status.INFEASIBLE:
        return f"proven{f' ({solution.reason})' if solution.reason else ''}"
    return f"none found in {time_limit_s:g} s, which proves nothing; allow more with --time-limit"
