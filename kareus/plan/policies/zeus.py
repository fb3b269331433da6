"""Zeus: find the power limit that suits a job while it trains.

Limits are tried from the highest down, each for a few warm-up steps and one measured window; a rule then
picks one (You et al., NSDI'23; algorithm of Zeus 0.16). The search is a state machine the training loop
calls; what it measures with and what it sets limits with are handed in, so the same object runs beside a
GPU, in tests and on recorded tables.

Every rank must see the same figures, so that all choose alike: hand in `reduce` to sum energy and take the
longest time over ranks.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

import msgspec

from kareus import schema
from kareus.errors import InputError, UsageError

logger = logging.getLogger(__name__)

T = TypeVar("T")

PROFILE_SCHEMA = "kareus.power_profile/1"
DEFAULT_ETA = 0.5
DEFAULT_STEP_W = 25


class LimitCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the same work cost at one power limit: all ranks' energy, the slowest rank's time."""

    power_limit_w: int
    time_s: float
    energy_j: float


class _ProfileDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: str
    limits: list[LimitCost]


Rule = Callable[[Sequence[LimitCost]], LimitCost]


def least_energy(costs: Sequence[LimitCost]) -> LimitCost:
    """Pick the limit of least energy."""
    return min(costs, key=lambda c: (c.energy_j, c.time_s))


def least_time(costs: Sequence[LimitCost]) -> LimitCost:
    """Pick the fastest limit, the lower one among equals."""
    return min(costs, key=lambda c: (c.time_s, c.power_limit_w))


@dataclass(frozen=True, kw_only=True, slots=True)
class CostRule:
    """Zeus's cost: `eta * energy + (1 - eta) * max_power * world_size * time`, in joules.

    Attributes:
        max_power_w: highest limit of one GPU. world_size: GPUs of the *job*: energy is summed over all of
            them, so a count of this process's GPUs alone would shift the balance.
        eta: 1 is energy only, 0 time only.
    """

    max_power_w: float
    world_size: int
    eta: float = DEFAULT_ETA

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1 or self.world_size < 1 or not self.max_power_w > 0:
            raise UsageError(
                "expected eta in 0..1, at least one GPU and a positive power, "
                f"found {self.eta}, {self.world_size} and {self.max_power_w} W"
            )

    def cost_j(self, *, time_s: float, energy_j: float) -> float:
        """Cost of some work, in joules."""
        return self.eta * energy_j + (1 - self.eta) * self.max_power_w * self.world_size * time_s

    def __call__(self, costs: Sequence[LimitCost]) -> LimitCost:
        """Pick the limit of least cost."""
        return min(costs, key=lambda c: (self.cost_j(time_s=c.time_s, energy_j=c.energy_j), c.power_limit_w))


@dataclass(frozen=True, kw_only=True, slots=True)
class MaxSlowdownRule:
    """The lowest limit whose time is at most `factor` times that of the highest limit."""

    factor: float

    def __post_init__(self) -> None:
        if not self.factor >= 1:
            raise UsageError(
                f"expected a slowdown factor of at least 1, found {self.factor}; 1.05 allows 5 %"
            )

    def __call__(self, costs: Sequence[LimitCost]) -> LimitCost:
        """Pick the lowest limit that is fast enough; the highest always is."""
        reference = max(costs, key=lambda c: c.power_limit_w)
        allowed = [c for c in costs if c.time_s <= self.factor * reference.time_s]
        return min(allowed, key=lambda c: c.power_limit_w)


def power_limits(min_w: float, max_w: float, step_w: float = DEFAULT_STEP_W) -> tuple[int, ...]:
    """Return limits in whole watts from the highest to the lowest, `step_w` apart.

    Raises:
        UsageError: an empty range or a step below 1 W.
    """
    if not 0 < min_w <= max_w or step_w < 1:
        raise UsageError(
            f"expected 0 < least <= most watts and a step of at least 1 W, found {min_w}, {max_w}, {step_w}"
        )
    count = int((math.floor(max_w) - min_w) // step_w) + 1
    return tuple(int(math.floor(max_w) - i * step_w) for i in range(count))


class Meter(Protocol):
    """Measures one window; `end` returns (seconds, joules) of this rank's GPUs since `begin`."""

    def begin(self) -> None:
        """Start a window, after the work already issued has finished."""

    def end(self) -> tuple[float, float]:
        """Close the window, once its work has finished."""

    def cancel(self) -> None:
        """Drop the window."""


class State(StrEnum):
    """Where the search stands."""

    READY = "ready"
    WARM_UP = "warm_up"
    MEASURE = "measure"
    DONE = "done"


class PowerLimitSearch:
    """Tries power limits during training and settles on one.

    Call `on_step_begin` before each step and `on_epoch_end` after each epoch. Errors of the meter or the
    limiter end the search, with the highest limit asked for once more, a warning and `failure` set; they
    never reach the training loop.

    Args:
        limits_w: limits to try; tried from the highest down.
        rule: picks among the measured limits.
        meter: measures this rank.
        set_limit: sets this rank's limit in watts.
        reduce: maps this rank's (time_s, energy_j) to the job's: longest time, summed energy.
        wait_steps: steps before the first limit. warm_up_steps: dropped at each limit.
        measure_steps: of one window.

    Raises:
        UsageError: no limits, or a window of no steps.
    """

    def __init__(
        self,
        limits_w: Iterable[int],
        rule: Rule,
        meter: Meter,
        set_limit: Callable[[int], None],
        *,
        reduce: Callable[[float, float], tuple[float, float]] = lambda time_s, energy_j: (time_s, energy_j),
        wait_steps: int = 1,
        warm_up_steps: int = 10,
        measure_steps: int = 40,
    ) -> None:
        self.limits_w = tuple(sorted(set(limits_w), reverse=True))
        if not self.limits_w or measure_steps < 1 or min(wait_steps, warm_up_steps) < 0:
            raise UsageError(
                "expected at least one limit, a window of at least one step and waits of at least 0, "
                f"found {len(self.limits_w)}, {measure_steps}, {wait_steps} and {warm_up_steps}"
            )
        self.rule = rule
        self.state = State.READY
        self.chosen_w: int | None = None
        self.failure: str | None = None
        self.costs: list[LimitCost] = []
        self._meter, self._set_limit, self._reduce = meter, set_limit, reduce
        self._wait, self._warm_up, self._measure = wait_steps, warm_up_steps, measure_steps
        self._left = wait_steps
        self._trouble: str | None = None

    @property
    def done(self) -> bool:
        """Whether a limit has been settled on."""
        return self.state == State.DONE

    def on_step_begin(self) -> None:
        """Advance; call right before each training step."""
        if self.done:
            return
        if self._left > 0:
            self._left -= 1
            return
        self._guarded(self._advance)

    def on_epoch_end(self) -> None:
        """An unfinished window is dropped and its limit tried again, at the highest limit meanwhile."""
        if self.state in (State.WARM_UP, State.MEASURE):
            self._guarded(self._interrupt)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Settle at once from a saved profile.

        Raises:
            InputError: not a profile, or one without any of this search's limits.
        """
        document = schema.read_document(path, _ProfileDocument, PROFILE_SCHEMA)
        costs = [c for c in document.limits if c.power_limit_w in self.limits_w]
        if not costs:
            raise InputError(
                f"{path}: expected costs for some of {self.limits_w} W, found none; measure again"
            )
        self.costs = costs
        self._guarded(self._settle)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was measured, for `load`."""
        schema.write_document(path, _ProfileDocument(schema=PROFILE_SCHEMA, limits=self.costs))

    def _advance(self) -> None:
        if self.state == State.MEASURE:
            # A rank in trouble still takes part in the reduction, with NaN, so that all ranks stop together.
            time_s, energy_j = self._reduce(*(self._local(self._meter.end) or (math.nan, math.nan)))
            if not (0 < time_s < math.inf and 0 < energy_j < math.inf):
                raise ValueError(
                    self._trouble or f"a window of {self._measure} steps read {time_s} s, {energy_j} J"
                )
            limit = self.limits_w[len(self.costs)]
            self.costs.append(LimitCost(power_limit_w=limit, time_s=time_s, energy_j=energy_j))
            if len(self.costs) == len(self.limits_w):
                self._settle()
                return
        if self.state in (State.READY, State.MEASURE):
            self._local(lambda: self._set_limit(self.limits_w[len(self.costs)]))
            self.state, self._left = State.WARM_UP, self._warm_up
            if self._left > 0:
                self._left -= 1
                return
        self._local(self._meter.begin)
        self.state, self._left = State.MEASURE, self._measure - 1

    def _interrupt(self) -> None:
        if self.state == State.MEASURE:
            self._local(self._meter.cancel)
        self._local(lambda: self._set_limit(self.limits_w[0]))
        self.state, self._left = State.READY, self._wait

    def _settle(self) -> None:
        chosen = self.rule(self.costs).power_limit_w
        self._set_limit(chosen)
        self.chosen_w, self.state = chosen, State.DONE

    def _local(self, action: Callable[[], T]) -> T | None:
        """Run what can fail on one rank alone; after a failure nothing more is tried on this rank."""
        if self._trouble is None:
            try:
                return action()
            except Exception as error:
                self._trouble = f"{type(error).__name__}: {error}"
        return None

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self.failure = str(error)
            self.state = State.DONE
            logger.warning(
                "power limit search stopped: %s; training goes on at %d W", error, self.limits_w[0]
            )
            try:
                self._set_limit(self.limits_w[0])
            except Exception as again:
                logger.warning("could not return to %d W: %s", self.limits_w[0], again)
