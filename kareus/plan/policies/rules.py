"""Rules for choosing a point, as users write them: `edp`, `slowdown=5%`, `carbon=420,50`.

least-energy                    the lowest point
fastest                         the first point
slowdown=PERCENT                least energy within this slowdown of stock (of the fastest point elsewhere)
deadline=TIME                   least energy that ends in time: 118ms, 2.5s
energy=JOULES                   least time within an energy budget
power=WATTS                     least time at an average power of at most a cap
edp, ed2p                       least energy x time, energy x time^2
carbon=G_PER_KWH[,G_PER_H]      least grams of CO2 equivalent, with an hourly rate for the time
money=PER_KWH,PER_HOUR          least money: electricity and the hourly price of the machines
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kareus.errors import UsageError
from kareus.plan.policies import choose
from kareus.plan.policies.choose import Point

SYNTAX = (
    "least-energy, fastest, slowdown=5%, deadline=118ms, energy=80J, power=500W, edp, ed2p, "
    "carbon=G_PER_KWH[,G_PER_H], money=PER_KWH,PER_HOUR"
)

Pick = Callable[[Sequence[Point], float | None], Point]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One way to choose.

    Attributes:
        text: as the user wrote it. pick: (points, reference time in seconds or None) -> one of them.
    """

    text: str
    pick: Pick

    def __call__(self, points: Sequence[Point], reference_time_s: float | None = None) -> Point:
        """Choose.

        Raises:
            InfeasibleError: no point keeps the rule's limit; names the least possible.
        """
        return self.pick(points, reference_time_s)


def parse_rule(text: str) -> Rule:
    """Return the rule a text describes.

    Raises:
        UsageError: an unknown name, a figure that is missing, superfluous, negative or not a number.
    """
    name, _, figures = text.strip().partition("=")
    if name not in _MAKERS:
        raise UsageError(f"rule {text!r}: expected one of {SYNTAX}")
    least, most, units, make = _MAKERS[name]
    parts = [part.strip() for part in figures.split(",")] if figures else []
    if not least <= len(parts) <= most:
        wanted = str(least) if least == most else f"{least} or {most}"
        raise UsageError(f"rule {text!r}: expected {wanted} figures, found {len(parts)}; rules are {SYNTAX}")
    return Rule(text=text.strip(), pick=make(*(_figure(part, units, text) for part in parts)))


def _figure(text: str, units: dict[str, float], rule: str) -> float:
    scale = 1.0
    for unit in sorted(units, key=len, reverse=True):
        if text.endswith(unit):
            text, scale = text.removesuffix(unit).strip(), units[unit]
            break
    try:
        value = float(text) * scale
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(
            f"rule {rule!r}: expected a number of at least 0, found {text!r}; rules are {SYNTAX}"
        )
    return value


def _least_energy() -> Pick:
    def pick(points: Sequence[Point], reference: float | None) -> Point:
        choose.check_points(points)
        return min(points, key=lambda p: (p.energy_j, p.time_s))

    return pick


def _fastest() -> Pick:
    def pick(points: Sequence[Point], reference: float | None) -> Point:
        choose.check_points(points)
        return min(points, key=lambda p: (p.time_s, p.energy_j))

    return pick


def _plain(rule: Callable[..., Point]) -> Callable[..., Pick]:
    return lambda *figures: lambda points, reference: rule(points, *figures)


def _delay(exponent: float) -> Callable[[], Pick]:
    return lambda: lambda points, reference: choose.energy_delay(points, exponent)


def _slowdown(percent: float) -> Pick:
    return lambda points, reference: choose.within_slowdown(points, percent, reference)


_MAKERS: dict[str, tuple[int, int, dict[str, float], Callable[..., Pick]]] = {
    "least-energy": (0, 0, {}, _least_energy),
    "fastest": (0, 0, {}, _fastest),
    "slowdown": (1, 1, {"%": 1.0}, _slowdown),
    "deadline": (1, 1, {"s": 1.0, "ms": 1e-3, "us": 1e-6}, _plain(choose.deadline)),
    "energy": (1, 1, {"J": 1.0, "kJ": 1e3}, _plain(choose.energy_budget)),
    "power": (1, 1, {"W": 1.0, "kW": 1e3}, _plain(choose.power_cap)),
    "edp": (0, 0, {}, _delay(1.0)),
    "ed2p": (0, 0, {}, _delay(2.0)),
    "carbon": (1, 2, {}, _plain(choose.carbon)),
    "money": (2, 2, {}, _plain(choose.money)),
}
