"""Exchange clock steps between neighbours: one operation faster, the next one slower, wherever that saves energy.

Rounding an operation down leaves time over, which often is too short for its own next option and long enough
for a neighbour's. Here every edge is looked at in turn with the rest of the schedule held: the two operations
share the time between what must have ended before them and what must not start later, and get the pair of
options that fits there at least energy. Where two operations wait for one, hurrying it often pays only if both
use the time, so an operation and all that follow it are looked at together as well. Operations are pushed
against what comes before them, so time left over is carried along the graph; every other round runs from the
end.

Everything runs over all plans at once: arrays are [operation, plan].
"""

from __future__ import annotations

import numpy as np

from solver.slack_round import Choices, Floats, Graph, option_durations
from solver.slack_search import SearchSpace

_EPS_US = 1e-3
_CHUNK = 256  # plans at once: their arrays stay in the processor's cache


def exchange_steps(
    space: SearchSpace,
    choices: Choices,
    deadline_us: Floats,
    *,
    rounds: int,
    start_us: Floats | None = None,
    jointly: bool = True,
) -> Choices:
    """Improve plans, each within its deadline.

    Args:
        space: what is searched. choices: int16[n, p].
        deadline_us: float64[p], met by each plan.
        rounds: passes over all edges, alternating in direction.
        start_us: float64[n, p], a schedule of these plans; None is each operation's earliest start.
        jointly: let an operation also exchange with all that follow it at once, in every other pair of rounds.

    Returns:
        int16[n, p]: plans that meet the deadlines and need no more energy than those given.
    """
    parts = []
    for first in range(0, choices.shape[1], _CHUNK):
        chunk = slice(first, first + _CHUNK)
        schedule = _Schedule(
            space, choices[:, chunk], deadline_us[chunk], None if start_us is None else start_us[:, chunk]
        )
        for number in range(rounds):
            graph = space.graph if number % 2 == 0 else space.graph.reverse()
            schedule.sweep(graph, jointly and number // 2 % 2 == 1)
            schedule.turn()
        parts.append(schedule.choices)
    return np.concatenate(parts, axis=1)


class _Schedule:
    """Plans with explicit starts and ends; `turn` reverses time, so that one sweep serves both directions."""

    def __init__(
        self, space: SearchSpace, choices: Choices, deadline_us: Floats, start_us: Floats | None
    ) -> None:
        duration = option_durations(space.table_of, space.times, choices)
        self.choices = choices.copy()
        self._start = space.graph.starts(duration) if start_us is None else start_us.copy()
        self._end = self._start + duration
        self._deadline = deadline_us
        self._plans = np.arange(choices.shape[1])
        self._tables = [(space.times[k], space.energies[k]) for k in space.table_of]

    def turn(self) -> None:
        self._start, self._end = self._deadline - self._end, self._deadline - self._start

    def sweep(self, graph: Graph, jointly: bool) -> None:
        for v in graph.order:
            earliest = self._ended(graph.before[v], but=-1)
            following = _next_to(graph, v)
            for group in [following] if jointly or len(following) < 2 else [(w,) for w in following]:
                self._exchange(graph, v, group, earliest)

    def _exchange(self, graph: Graph, v: int, following: tuple[int, ...], earliest: Floats) -> None:
        """Give `v` and what follows it the best options that fit between their other neighbours."""
        times, energies = self._tables[v]
        end = earliest + times[:, None]
        energy = np.broadcast_to(energies[:, None], end.shape).copy()
        now = energies[self.choices[v]]
        until = self._deadline
        for u in graph.after[v]:
            if u not in following:
                until = np.minimum(until, self._start[u])
        energy[end > until + _EPS_US] = np.inf
        options, others = [], []
        for w in following:
            next_times, next_energies = self._tables[w]
            other = self._ended(graph.before[w], but=v)
            room = self._started(graph.after[w], but=-1) - np.maximum(end, other)
            fits = np.searchsorted(next_times, room + _EPS_US, side="right") - 1
            energy += np.where(fits < 0, np.inf, next_energies[fits])
            now = now + next_energies[self.choices[w]]
            options.append(fits)
            others.append(other)
        best = energy.argmin(axis=0)
        take = energy[best, self._plans] <= now
        self.choices[v] = np.where(take, best, self.choices[v])
        self._place(v, earliest)
        for w, fits, other in zip(following, options, others, strict=True):
            self.choices[w] = np.where(take, fits[best, self._plans], self.choices[w])
            self._place(w, np.maximum(self._end[v], other))

    def _place(self, v: int, start: Floats) -> None:
        self._start[v] = start
        self._end[v] = start + self._tables[v][0][self.choices[v]]

    def _ended(self, before: tuple[int, ...], but: int) -> Floats:
        latest = np.zeros(len(self._plans))
        for u in before:
            if u != but:
                latest = np.maximum(latest, self._end[u])
        return latest

    def _started(self, after: tuple[int, ...], but: int) -> Floats:
        first = self._deadline
        for u in after:
            if u != but:
                first = np.minimum(first, self._start[u])
        return first


def _next_to(graph: Graph, v: int) -> tuple[int, ...]:
    """Successors of `v`, each once, that do not also follow another successor."""
    after = tuple(dict.fromkeys(graph.after[v]))
    return tuple(w for w in after if not any(w in graph.after[u] for u in after))
