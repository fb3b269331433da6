"""The pilot: which arm each step runs, and whether the schedule has earned its place.

A schedule starts when ranks have agreed that every rank issues the same collectives, step after step.
Then blocks of scheduled and stock steps alternate. The figure is the slowest rank's step time and the sum
of energy; all ranks compute the verdict from the same gathered numbers, so none decides alone. Clearly
worse: stock, at once; two pairs that look worse are enough, because stock is always safe. Better: the
schedule stays. Inconclusive when the blocks are used up: stock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kareus.runtime.records import Arm

Verdict = Literal["better", "worse", "undecided"]
WORSE_RATIO = 1.03  # more than 3 % over what the schedule promised
MIN_PAIRS = 2  # before a schedule may stay; one is enough to send it away
MIN_ENERGY_S = 3.0  # the H200's energy counter moves every 100 ms; shorter windows are worthless


@dataclass(frozen=True, kw_only=True)
class GuardSettings:
    """How the guard measures.

    Attributes:
        block: steps of a block. drop: first steps of a block that are not counted.
        max_pairs: blocks of each arm before it gives up. lag: steps between the end of a block and the
            boundary where its figures are used, during which they travel; they run as stock.
        enabled: False replays without proof.
    """

    block: int = 10
    drop: int = 2
    max_pairs: int = 4
    lag: int = 4
    enabled: bool = True


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Scheduled against stock.

    Attributes:
        time_ratio: median scheduled over median stock step time, slowest rank.
        low, high: 95 % bootstrap interval of it. energy_ratio: of summed energy, None unless measured
            over at least 3 s in each arm. num_scheduled, num_stock: steps compared.
        verdict: what follows.
    """

    time_ratio: float
    low: float
    high: float
    energy_ratio: float | None
    num_scheduled: int
    num_stock: int
    verdict: Verdict


def compare_arms(
    scheduled_us: list[float],
    stock_us: list[float],
    *,
    scheduled_energy_j: float | None = None,
    stock_energy_j: float | None = None,
    promised_ratio: float = 1.0,
) -> Comparison:
    """Compare step times of two arms; the same numbers give the same answer on every rank.

    Args:
        scheduled_us, stock_us: slowest rank's step times in microseconds.
        scheduled_energy_j, stock_energy_j: mean energy of a step over all ranks, joules.
        promised_ratio: predicted scheduled over stock time; a schedule may trade time for energy.
    """
    scheduled, stock = np.asarray(scheduled_us), np.asarray(stock_us)
    random = np.random.default_rng(0)
    draws = 1000
    ratios = np.median(random.choice(scheduled, (draws, len(scheduled))), axis=1) / np.median(
        random.choice(stock, (draws, len(stock))), axis=1
    )
    ratio = float(np.median(scheduled) / np.median(stock))
    low, high = (float(x) for x in np.quantile(ratios, (0.025, 0.975)))
    energy = None
    if scheduled_energy_j is not None and stock_energy_j:
        energy = scheduled_energy_j / stock_energy_j
    allowed = max(1.0, promised_ratio)
    verdict: Verdict = "undecided"
    if ratio > WORSE_RATIO * allowed and low > allowed:
        verdict = "worse"
    elif high < 1.0 or (energy is not None and energy < 0.99 and high < WORSE_RATIO * allowed):
        verdict = "better"
    return Comparison(
        time_ratio=ratio,
        low=low,
        high=high,
        energy_ratio=energy,
        num_scheduled=len(scheduled),
        num_stock=len(stock),
        verdict=verdict,
    )


@dataclass(kw_only=True)
class _ArmData:
    times_us: list[float] = field(default_factory=list)
    energy_j: float = 0.0
    seconds: float = 0.0
    steps: int = 0
    has_energy: bool = True


class Guard:
    """Plays the blocks and holds the verdict.

    Args:
        settings: see GuardSettings. promised_ratio: see `compare_arms`.
    """

    def __init__(self, settings: GuardSettings, *, promised_ratio: float = 1.0) -> None:
        self.settings = settings
        self._promised = promised_ratio
        self._arms = {"scheduled": _ArmData(), "stock": _ArmData()}
        self._pair_ratios: list[float] = []
        self.comparison: Comparison | None = None
        self.decided: Verdict | None = None if settings.enabled else "better"

    @property
    def period(self) -> int:
        """Steps of one pair of blocks with the stock steps that bridge the lag."""
        return 2 * self.settings.block + self.settings.lag

    def arm(self, position: int) -> Arm:
        """Return the arm of the step at a position counted from where the guard began."""
        if self.decided is not None:
            return "scheduled" if self.decided == "better" else "stock"
        return "scheduled" if position % self.period < self.settings.block else "stock"

    def block_ending(self, position: int) -> Arm | None:
        """Return the arm of the block whose last step is at `position`, None where none ends."""
        at = position % self.period
        if at == self.settings.block - 1:
            return "scheduled"
        return "stock" if at == 2 * self.settings.block - 1 else None

    def add_block(self, arm: Arm, times_us: list[list[float]], energy_j: list[float]) -> None:
        """Take in one block of every rank.

        Args:
            arm: of the block. times_us: for each rank, the block's step times in microseconds.
            energy_j: for each rank, energy of the counted steps in joules, NaN unknown.
        """
        slowest = [max(times) for times in zip(*times_us, strict=True)][self.settings.drop :]
        data = self._arms[arm]
        data.times_us += slowest
        data.seconds += sum(slowest) / 1e6
        data.steps += len(slowest)
        if any(math.isnan(value) for value in energy_j):
            data.has_energy = False
        else:
            data.energy_j += sum(energy_j)
        if arm == "stock":
            self._judge()

    def _judge(self) -> None:
        scheduled, stock = self._arms["scheduled"], self._arms["stock"]
        long_enough = min(scheduled.seconds, stock.seconds) >= MIN_ENERGY_S
        known = scheduled.has_energy and stock.has_energy and long_enough
        self.comparison = compare_arms(
            scheduled.times_us,
            stock.times_us,
            scheduled_energy_j=scheduled.energy_j / scheduled.steps if known else None,
            stock_energy_j=stock.energy_j / stock.steps if known else None,
            promised_ratio=self._promised,
        )
        counted = self.settings.block - self.settings.drop
        newest = np.median(scheduled.times_us[-counted:]) / np.median(stock.times_us[-counted:])
        self._pair_ratios.append(float(newest))
        if self.comparison.verdict == "worse" or self._is_better():
            self.decided = self.comparison.verdict
        elif self._looks_worse():
            self.decided = "worse"
        elif len(self._pair_ratios) >= self.settings.max_pairs:
            self.decided = "undecided"

    def _looks_worse(self) -> bool:
        """On a noisy machine proof of harm takes long, and stock costs nothing: two bad pairs are enough."""
        assert self.comparison is not None
        bad = WORSE_RATIO * max(1.0, self._promised)
        enough = len(self._pair_ratios) >= MIN_PAIRS
        return enough and self.comparison.verdict == "undecided" and self.comparison.time_ratio > bad

    def _is_better(self) -> bool:
        """Steps of one block share what else the machine does, so one pair never proves a gain."""
        assert self.comparison is not None
        allowed = 1.0 if self.comparison.energy_ratio is None else WORSE_RATIO * max(1.0, self._promised)
        enough = len(self._pair_ratios) >= MIN_PAIRS
        return self.comparison.verdict == "better" and enough and max(self._pair_ratios) < allowed
