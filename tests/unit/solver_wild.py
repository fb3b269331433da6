"""Small problems at the edges: zero times, huge numbers, single options, repeated units, limits met exactly."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from solver_cases import all_plans

from solver import Limits, Option, Problem, SpanKind, judge

MOST_PLANS = 1500
Number = Callable[[random.Random], int]

STYLES: tuple[Number, ...] = (
    lambda r: 10 * r.randint(1, 60),
    lambda r: r.choice((0, 0, 0, 1, 2, 7)),
    lambda r: r.choice((0, 1, 10**9, r.randint(1, 10**10))),
    lambda r: int(10 ** r.uniform(0, 7)),
    lambda r: 100,
)


def wild_problem(seed: int) -> Problem:
    """Up to 1,500 plans, limits at, just below or beyond what one of them needs."""
    rng = random.Random(seed)
    number = rng.choice(STYLES)
    levels = rng.choice((1, 2, 2, 3))
    kinds = tuple(_kind(rng, number, k, levels) for k in range(rng.randint(1, 3)))
    chain = [rng.randrange(len(kinds)) for _ in range(rng.randint(1, 6))]
    if rng.random() < 0.5:
        chain = (chain[:2] * 4)[: rng.randint(3, 8)]  # a unit that repeats, as the layers of a model do
    while _plans(kinds, chain) > MOST_PLANS:
        chain.pop()
    problem = Problem(
        clocks_mhz=tuple(1000 + 100 * i for i in range(levels)),
        kinds=kinds,
        chain=tuple(chain),
        static_power_mw=rng.choice((0, 1, 1000, 100_000)),
        switch_time_us=rng.choice((0, 0, 30, number(rng))),
        switch_energy_mj=rng.choice((0, 0, 3, number(rng))),
        min_dwell_us=rng.choice((0, 0, 0, 300, number(rng), 10**9)),
        cyclic=rng.random() < 0.6,
        uniform_clock=rng.random() < 0.1,
        max_rungs=rng.choice((0, 1, 2, 4)),
        rung_memory_bytes=rng.choice((0, 0, 15, 10**10)),
    )
    return _limited(rng, problem)


def _kind(rng: random.Random, number: Number, k: int, levels: int) -> SpanKind:
    options = tuple(
        Option(
            label=f"o{m}",
            clock=rng.randrange(levels),
            time_us=number(rng),
            energy_mj=number(rng),
            memory_bytes=rng.choice((0, 0, 10, 10**12)),
            rungs=((rng.choice("ab"), rng.randint(1, 3)),) if rng.random() < 0.4 else (),
            changes=rng.randint(0, 2),
            carry_us=rng.choice((0, 0, 0, number(rng))),
        )
        for m in range(rng.choice((1, 1, 2, 3, 4)))
    )
    return SpanKind(name=f"k{k}", options=options, stock=rng.randrange(len(options)))


def _plans(kinds: tuple[SpanKind, ...], chain: list[int]) -> int:
    count = 1
    for k in chain:
        count *= len(kinds[k].options)
    return count


def _limited(rng: random.Random, problem: Problem) -> Problem:
    one = judge(problem, rng.choice(all_plans(problem)))

    def near(value: float) -> int:
        return max(int(value * rng.choice((0.5, 0.95, 1, 1, 1.05, 2))) + rng.choice((-1, 0, 0, 1)), 0)

    power = near(one.energy_mj * 1e6 / one.time_us) if one.time_us else 100
    governed = rng.random() < 0.25
    return replace(
        problem,
        governed=governed,
        limits=Limits(
            time_us=near(one.time_us) if rng.random() < 0.5 else None,
            energy_mj=near(one.energy_mj) if rng.random() < 0.3 else None,
            average_power_mw=power if governed or rng.random() < 0.3 else None,
            memory_bytes=near(one.memory_bytes) if rng.random() < 0.3 else None,
        ),
    )
