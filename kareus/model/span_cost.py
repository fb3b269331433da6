"""Prices settings of a span by the fluid model, vectorised over settings.

Time runs from the span's first compute op until its compute is done and every collective it must wait for
has finished (the barrier model). Between two events (a collective starts, ends, or is waited for) the set
of running collectives is constant, so an op's stretch and a collective's bandwidth beside it are constant
too; prefix sums over the span's ops for each such set turn "when does this collective end" into a search.
The loop is over events, never over settings: there are about two for each collective.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kareus.model import rates
from kareus.model.cost import Z90, CostModel
from kareus.model.lanes import latest_starts, number_lanes, previous
from kareus.model.prefix_sums import PrefixSums
from kareus.model.span_work import SpanConfigs, SpanCosts, SpanWork
from kareus.model.uncertainty import uncertainty
from kareus.trace.types import F64, I64, CollectiveKind

_EPS = 1e-9
MAX_LEVELS = 48  # distinct collectives in one call: sets of them are bit masks
_LISTED = 1 << 20  # sets of running collectives that are looked up by their bits
_CHUNK = 8192  # settings advanced together, few enough to stay in the cache
_UNSETTLED = "the span evaluator made no progress; this is a bug in kareus.model.span_cost"


def evaluate(work: SpanWork, configs: SpanConfigs, cost: CostModel) -> SpanCosts:
    """Return time and dynamic energy of every setting.

    Args:
        work: the span, k collectives. configs: n settings. cost: the model.

    Returns:
        Prices, float[n] each.

    Raises:
        ValueError: shapes that do not belong together.
    """
    n, k = configs.num_ctas.shape
    if k != len(work.kind) or configs.position.shape != (n, k):
        raise ValueError(
            f"settings have shapes {configs.num_ctas.shape} and {configs.position.shape}, expected both [n, "
            f"{len(work.kind)}] for this span's collectives"
        )
    return _Evaluation(work, configs, cost).run()


class _Evaluation:
    """State of one call: numpy columns over settings, advanced event by event."""

    def __init__(self, work: SpanWork, configs: SpanConfigs, cost: CostModel) -> None:
        self.work, self.cost, self.coef = work, cost, cost.coefficients
        n, k = configs.num_ctas.shape
        m = len(work.alone_us)
        self.n, self.k, self.m = n, k, m
        self.clocks, self.clock = np.unique(configs.sm_clock_mhz, return_inverse=True)
        self.levels, self.level = self._levels(configs)
        lanes = number_lanes(work, configs)
        self.previous = previous(lanes)
        self.start_at = np.maximum(np.clip(configs.position, 0, m), work.ready[None, :]).astype(float)
        required = np.broadcast_to(work.required_at[None, :], (n, k)).astype(float)
        waits = configs.serialise[:, None] | (configs.position == work.blocks_at[None, :])
        self.required = np.where(waits, np.minimum(self.start_at, required), required)
        self.start_at = np.minimum(self.start_at, latest_starts(lanes, self.required))
        self.serialised, self.num_ctas = configs.serialise, configs.num_ctas
        self.tables = PrefixSums(len(self.levels))
        self.base_time = np.stack(
            [work.alone_us * rates.clock_time(self.coef, work.kernel_class, f) for f in self.clocks]
        )

    def _levels(self, configs: SpanConfigs) -> tuple[list[tuple[int, rates.Flow]], I64]:
        """Number the distinct (group, kind, budget, scale); a running set is a bit mask of these."""
        numbers: dict[tuple[int, rates.Flow], int] = {}
        level = np.zeros(configs.num_ctas.shape, np.int64)
        for j in range(self.k):
            for ctas in np.unique(configs.num_ctas[:, j]):
                flow = rates.Flow(
                    kind=int(self.work.kind[j]), num_ctas=int(ctas), scale=float(self.work.scale[j])
                )
                number = numbers.setdefault((int(self.work.group[j]), flow), len(numbers))
                level[configs.num_ctas[:, j] == ctas, j] = number
        if len(numbers) > MAX_LEVELS:
            raise ValueError(
                f"{len(numbers)} distinct collectives and budgets in one call; at most {MAX_LEVELS} fit"
            )
        return list(numbers), level

    def run(self) -> SpanCosts:
        n, k = self.n, self.k
        self.position, self.time, self.exposed = np.zeros(n), np.zeros(n), np.zeros(n)
        self.started, self.finished = np.zeros((n, k), bool), np.zeros((n, k), bool)
        self.resident = np.zeros((n, k))
        self.remaining = self._work_bytes()
        order = np.argsort(self.clock, kind="stable")  # settings of one clock share tables
        for first in range(0, n, _CHUNK):
            self._settle(order[first : first + _CHUNK])
        carry = self._carry()
        return self._costs(carry)

    def _settle(self, live: I64) -> None:
        """Advance these settings, event by event, until each has done all it waits for."""
        started, finished, remaining = self.started, self.finished, self.remaining
        for _ in range(6 * self.k + 8):
            self._start(live, started, finished)
            waits = ~finished[live] & (self.required[live] <= self.m)
            live = live[(self.position[live] < self.m) | waits.any(axis=1)]
            if not len(live):
                return
            active = started[live] & ~finished[live]
            table = self._rows(self.clock[live], active, live)
            target = self._target(live, started, finished)
            moving = target > self.position[live] + _EPS
            step, done = self._step(live, table, active, remaining[live], target, moving)
            self.time[live] += step
            self.exposed[live] += np.where(moving, 0.0, step)
            self.resident[live] += np.where(active, step[:, None], 0.0)
            self._advance(live, table, active, remaining, step, target, moving, done)
            finished[live] |= active & done
        raise RuntimeError(_UNSETTLED)

    def _work_bytes(self) -> F64:
        """Bytes of each collective, its latency counted as bytes, float[n, k]."""
        wire = [
            rates.wire_bytes(int(kind), size, int(ranks))
            for kind, size, ranks in zip(
                self.work.kind, self.work.num_bytes, self.work.group_size, strict=True
            )
        ]
        self.wire = np.array(wire)
        extra = np.zeros((len(self.levels), len(self.clocks)))
        for row, (_, flow) in enumerate(self.levels):
            for column, clock in enumerate(self.clocks):
                rate = rates.alone_bytes_per_us(self.coef, flow, float(clock))
                extra[row, column] = rates.latency_us(self.coef, flow) * rate
        if not self.k:
            return np.zeros((self.n, 0))
        return np.asarray(self.wire[None, :] + extra[self.level, self.clock[:, None]])

    def _start(self, live: I64, started: NDArray[np.bool_], finished: NDArray[np.bool_]) -> None:
        if not self.k:
            return
        before = self.previous[live]
        free = (before < 0) | np.take_along_axis(finished[live], np.maximum(before, 0), axis=1)
        started[live] |= free & (self.start_at[live] <= self.position[live, None] + _EPS)

    def _target(self, live: I64, started: NDArray[np.bool_], finished: NDArray[np.bool_]) -> F64:
        """The position compute may run to before the next start or wait."""
        target = np.full(len(live), float(self.m))
        if self.k:
            position = self.position[live, None]
            ahead = ~started[live] & (self.start_at[live] > position + _EPS)
            starts = np.where(ahead, self.start_at[live], np.inf).min(axis=1)
            waits = np.where(finished[live], np.inf, self.required[live]).min(axis=1)
            target = np.minimum(target, np.minimum(starts, waits))
        return np.asarray(np.maximum(target, self.position[live]))

    def _rows(self, clock: I64, active: NDArray[np.bool_], live: I64) -> I64:
        """Table row of each setting's running set, built when first met."""
        bits = np.where(active, np.left_shift(np.int64(1), self.level[live]), 0).sum(axis=1) if self.k else 0
        code = bits * len(self.clocks) + clock
        largest = int(code.max(initial=0))
        if largest < _LISTED:  # marking what occurs is several times faster than sorting
            number = np.zeros(largest + 1, np.int32)
            number[code] = 1
            for one in np.flatnonzero(number).tolist():
                number[one] = self._row(one)
            self.tables.freeze()
            return np.asarray(number[code])
        codes, inverse = np.unique(code, return_inverse=True)
        numbers = np.array([self._row(int(one)) for one in codes], np.int64)
        self.tables.freeze()
        return np.asarray(numbers[inverse])

    def _row(self, code: int) -> int:
        tables = self.tables
        if code not in tables.row_of:
            mask, clock = divmod(code, len(self.clocks))
            members = [i for i in range(len(self.levels)) if mask >> i & 1]
            flows = tuple(self.levels[i][1] for i in members)
            frequency = float(self.clocks[clock])
            stretch, bandwidth = rates.beside(
                self.coef, flows, self.work.kernel_class, self.work.grid, frequency
            )
            duration = self.base_time[clock] * stretch
            moved = np.zeros((len(self.levels), self.m + 1))
            alone = np.zeros(len(self.levels))
            moved[members, 1:] = np.cumsum(bandwidth * duration, axis=1)
            alone[members] = rates.shared_bytes_per_us(self.coef, flows, frequency)
            tables.add(code, np.concatenate([[0.0], np.cumsum(duration)]), moved, alone)
        return tables.row_of[code]

    def _step(
        self,
        live: I64,
        table: I64,
        active: NDArray[np.bool_],
        remaining: F64,
        target: F64,
        moving: NDArray[np.bool_],
    ) -> tuple[F64, NDArray[np.bool_]]:
        """Time to the next event of each setting, and which collectives end with it."""
        times, moved = self.tables.time, self.tables.moved
        here = times.at(table, self.position[live])
        until = np.where(moving, times.at(table, target) - here, np.inf)
        ends = np.full((len(live), self.k), np.inf)
        for j in range(self.k):
            chosen = np.flatnonzero(active[:, j])
            if not len(chosen):
                continue
            row, level = table[chosen], self.level[live[chosen], j]
            still = remaining[chosen, j] / np.maximum(self.tables.alone[row, level], _EPS)
            flat = row * len(self.levels) + level
            goal = moved.at(flat, self.position[live[chosen]]) + remaining[chosen, j]
            beside = times.at(row, moved.find(flat, goal)) - here[chosen]
            beside = np.where(goal > moved.last(flat), np.inf, beside)
            ends[chosen, j] = np.where(moving[chosen], beside, still)
        step = np.minimum(until, ends.min(axis=1)) if self.k else until
        if not np.isfinite(step).all():
            raise RuntimeError(_UNSETTLED)
        return step, ends <= step[:, None] + _EPS

    def _advance(
        self,
        live: I64,
        table: I64,
        active: NDArray[np.bool_],
        remaining: F64,
        step: F64,
        target: F64,
        moving: NDArray[np.bool_],
        done: NDArray[np.bool_],
    ) -> None:
        before = self.position[live]
        times, moved, alone = self.tables.time, self.tables.moved, self.tables.alone
        goal = times.at(table, before) + step
        after = np.where(moving, np.minimum(times.find(table, goal), target), before)
        reached = moving & (goal >= times.at(table, target) - _EPS)
        after = np.where(reached, target, after)
        for j in range(self.k):
            chosen = np.flatnonzero(active[:, j])
            row, level = table[chosen], self.level[live[chosen], j]
            flat = row * len(self.levels) + level
            gone = np.where(
                moving[chosen],
                moved.at(flat, after[chosen]) - moved.at(flat, before[chosen]),
                step[chosen] * alone[row, level],
            )
            left = np.maximum(remaining[live[chosen], j] - gone, 0.0)
            remaining[live[chosen], j] = np.where(done[chosen, j], 0.0, left)
        self.position[live] = after

    def _carry(self) -> F64:
        """What the span does not wait for runs on alone, one after another."""
        carry = np.zeros(self.n)
        for j in range(self.k):
            chosen = np.flatnonzero(~self.finished[:, j])
            rate = np.array(
                [
                    [rates.alone_bytes_per_us(self.coef, flow, float(f)) for f in self.clocks]
                    for _, flow in self.levels
                ]
            )
            left = self.remaining[chosen, j] / rate[self.level[chosen, j], self.clock[chosen]]
            carry[chosen] += left
            self.resident[chosen, j] += left
        return carry

    def _spreads(self) -> tuple[F64, F64]:
        """Standard deviations of bandwidth and communication energy by what carries each setting, float[n] each."""
        bandwidth, energy = np.zeros(self.n), np.zeros(self.n)
        copied, of = np.unique(self.num_ctas == 0, axis=0, return_inverse=True)
        for number, engine in enumerate(copied):
            kinds = [CollectiveKind(kind) for kind in self.work.kind[~engine]]
            spread = uncertainty(self.cost, kinds, copies=bool(engine.any()))
            here = of.reshape(-1) == number
            bandwidth[here], energy[here] = spread.bandwidth, spread.communication
        return bandwidth, energy

    def _costs(self, carry: F64) -> SpanCosts:
        coef, work = self.coef, self.work
        time, exposed, resident = self.time, self.exposed, self.resident
        if self.k:
            extra = self.serialised * coef.serialise_us * self.k
            time, exposed = time + extra, exposed + extra
        compute = np.array(
            [rates.compute_energy_j(coef, work.kernel_class, work.alone_us, f).sum() for f in self.clocks]
        )
        residence = np.array([rates.flow_power_w(coef, flow) for _, flow in self.levels])
        communication = np.zeros(self.n)
        for j in range(self.k):
            per_level = np.array([rates.flow_energy_j(coef, flow, self.wire[j]) for _, flow in self.levels])
            communication += per_level[self.level[:, j]] + residence[self.level[:, j]] * resident[:, j] * 1e-6
        energy = compute[self.clock] + communication
        free = self.base_time.sum(axis=1)[self.clock]
        contention = np.maximum(time - exposed - free, 0.0)
        bandwidth, carried = self._spreads()
        known = uncertainty(self.cost, ())
        time_sd = np.sqrt(
            (known.time * time) ** 2 + (bandwidth * exposed) ** 2 + (known.contention * contention) ** 2
        )
        energy_sd = np.sqrt((known.energy * energy) ** 2 + (carried * communication) ** 2)
        return SpanCosts(
            time_us=time,
            energy_j=energy,
            exposed_us=exposed,
            carry_us=carry,
            time_hi_us=time + Z90 * time_sd,
            energy_hi_j=energy + Z90 * energy_sd,
        )
