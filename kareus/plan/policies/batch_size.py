"""Zeus: find the batch size of a job that recurs, one run at a time.

Two rounds of pruning walk from the default size downwards and then upwards, each way until a run misses its
target or passes `beta` times the least cost. The survivors are arms of a Gaussian bandit with Thompson
sampling (You et al., NSDI'23). A run is stopped early when it passes the same bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from kareus.errors import UsageError


@dataclass(slots=True)
class _Arm:
    costs: list[float] = field(default_factory=list)

    def draw(self, generator: np.random.Generator, window: int) -> float:
        """A sample of the mean cost: normal with the history's own variance as the known one, flat prior."""
        recent = self.costs[-window:] if window else self.costs
        spread = float(np.std(recent) / math.sqrt(len(recent)))
        return float(np.mean(recent)) + spread * float(generator.standard_normal())


class BatchSizeSearch:
    """Proposes a batch size for each recurrence of a job and learns from what it cost.

    Usage: `size = search.next()`, train, at the end of each epoch `search.should_stop(cost_so_far)`, then
    `search.report(size, cost, reached)`. Runs that overlap get the cheapest size known.

    Args:
        sizes: allowed batch sizes. default: where to begin, one of them.
        beta: runs may cost this many times the least seen. rounds: of pruning.
        window: costs each arm remembers, 0 for all. seed: of the draws.

    Raises:
        UsageError: a default that is not among the sizes, or a beta not above 1.
    """

    def __init__(
        self,
        sizes: Iterable[int],
        default: int,
        *,
        beta: float = 2.0,
        rounds: int = 2,
        window: int = 0,
        seed: int = 0,
    ) -> None:
        self.sizes = tuple(sorted(set(sizes)))
        if default not in self.sizes or not beta > 1 or rounds < 1 or window < 0:
            raise UsageError(
                f"expected the default among {self.sizes}, beta above 1, at least one round and a window of "
                f"at least 0, found {default}, {beta}, {rounds} and {window}"
            )
        self.default, self.beta = default, beta
        self.survivors = self.sizes
        self._rounds_left, self._window = rounds, window
        self._generator = np.random.default_rng(seed)
        self._arms: dict[int, _Arm] = {}
        self._round: dict[int, float] = {}
        self._queue: list[int] = []
        self._running: list[int] = []
        self._least = math.inf
        self._begin_round()

    @property
    def pruning(self) -> bool:
        """Whether the search still prunes; afterwards it samples."""
        return self._rounds_left > 0

    @property
    def cost_bound(self) -> float:
        """What a run may cost before it is stopped; infinite until one has succeeded."""
        return self.beta * self._least

    @property
    def best(self) -> int:
        """The size of least mean cost so far, the default before any success."""
        known = {size: float(np.mean(arm.costs)) for size, arm in self._arms.items() if arm.costs}
        return min(known, key=lambda s: known[s]) if known else self.default

    def should_stop(self, cost_so_far: float) -> bool:
        """Whether a run that has cost this much should be given up."""
        return cost_so_far > self.cost_bound

    def next(self) -> int:
        """Return the batch size of the next run."""
        if self._running and self.pruning:
            return self.best  # pruning is sequential; a concurrent run uses what is known
        if self.pruning:
            size = self._queue[0]
        else:
            fresh = [s for s in self.survivors if len(self._arms[s].costs) < 2]
            if fresh:
                size = int(self._generator.choice(fresh))
            else:
                draws = {s: self._arms[s].draw(self._generator, self._window) for s in self.survivors}
                size = min(draws, key=lambda s: draws[s])
        self._running.append(size)
        return size

    def report(self, size: int, cost: float, reached: bool) -> None:
        """Learn from a finished or stopped run.

        Args:
            size: its batch size. cost: what it cost, in any one unit. reached: whether it met its target.

        Raises:
            UsageError: a size that is not allowed, or a cost that is not a positive number.
        """
        if size not in self.sizes or not (math.isfinite(cost) and cost > 0):
            raise UsageError(f"expected a positive cost for one of {self.sizes}, found {cost} for {size}")
        expected = size in self._running
        if expected:
            self._running.remove(size)
        kept = reached and cost <= self.cost_bound
        if reached:
            self._least = min(self._least, cost)
        if kept or not self.pruning:
            # A stopped run cost at least what had been spent, so it counts at that, never as cheap.
            self._arms.setdefault(size, _Arm()).costs.append(
                cost if reached else max(cost, self._finite_bound(cost))
            )
        if self.pruning and expected and self._queue and size == self._queue[0]:
            self._walk(size, cost, kept)

    def _finite_bound(self, cost: float) -> float:
        return self.cost_bound if math.isfinite(self.cost_bound) else cost

    def _begin_round(self) -> None:
        start = self.survivors.index(self.default)
        self._down = list(self.survivors[:start][::-1])
        self._up = list(self.survivors[start + 1 :])
        self._round = {}
        self._queue = [self.default]
        self._direction = 0

    def _walk(self, size: int, cost: float, kept: bool) -> None:
        if kept:
            self._round[size] = cost
        if self._direction == 0 or not kept or not self._remaining():
            self._direction += 1
        if self._direction == 1 and not self._down:
            self._direction = 2
        if self._remaining():
            self._queue = [self._remaining().pop(0)]
            return
        # Round over. Should everything have failed, the default is all there is to go on with.
        self.survivors = tuple(sorted(self._round)) or (self.default,)
        if self._round:
            self.default = min(self._round, key=lambda s: self._round[s])
        self._rounds_left -= 1
        if self.pruning:
            self._begin_round()
            return
        self._queue = []
        for survivor in self.survivors:
            self._arms.setdefault(survivor, _Arm())

    def _remaining(self) -> list[int]:
        return {1: self._down, 2: self._up}.get(self._direction, [])
