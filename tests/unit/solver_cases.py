"""Tiny random problems and their brute-force answers, shared by the solver's tests."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from solver import Limits, Objective, Option, Problem, SpanKind, judge


def tiny_problem(seed: int) -> Problem:
    """Three to six spans of one to three kinds, up to three clocks, every feature on in some seeds."""
    rng = random.Random(seed)
    clocks = tuple(1000 + 100 * i for i in range(rng.randint(1, 3)))
    kinds = []
    for k in range(rng.randint(1, 3)):
        options = [
            Option(
                label=f"o{m}",
                decision=f"d{m // len(clocks)}",
                clock=m % len(clocks),
                time_us=rng.randint(5, 40) * 10,
                energy_mj=rng.randint(5, 60),
                memory_bytes=rng.choice((0, 0, 10, 30)),
                rungs=(("ag", rng.randint(1, 3)),) if rng.random() < 0.7 else (),
                changes=rng.randint(0, 2),
                carry_us=rng.choice((0, 0, 0, 20)),
            )
            for m in range(rng.randint(2, 5))
        ]
        kinds.append(SpanKind(name=f"k{k}", options=tuple(options)))
    chain = tuple(rng.randrange(len(kinds)) for _ in range(rng.randint(3, 6)))
    if rng.random() < 0.4:
        chain = tuple(sorted(chain))
    return Problem(
        clocks_mhz=clocks,
        kinds=tuple(kinds),
        chain=chain,
        static_power_mw=rng.choice((0, 37_000, 100_000)),
        switch_time_us=rng.choice((0, 30, 200)),
        switch_energy_mj=rng.choice((0, 0, 3)),
        min_dwell_us=rng.choice((0, 0, 0, 300)),
        cyclic=rng.random() < 0.7,
        uniform_clock=rng.random() < 0.2,
        max_rungs=rng.choice((1, 2, 4)),
        rung_memory_bytes=rng.choice((0, 15)),
    )


def all_plans(problem: Problem) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(len(problem.kinds[k].options)) for k in problem.chain)))


def brute_force(problem: Problem, objective: Objective) -> int | None:
    """Best objective over every plan the judge accepts, None where there is none."""
    values = []
    for plan in all_plans(problem):
        judged = judge(problem, plan)
        if not judged.violations:
            values.append(judged.time_us if objective is Objective.TIME else judged.energy_mj)
    return min(values, default=None)


def with_limits(problem: Problem, seed: int) -> tuple[Problem, Objective]:
    """Limits somewhere between trivial and impossible, and an objective."""
    rng = random.Random(seed * 7919 + 1)
    free = judge(problem, rng.choice(all_plans(problem)))
    limits = Limits(
        time_us=rng.choice((None, int(free.time_us * rng.uniform(0.6, 1.2)))),
        energy_mj=rng.choice((None, None, int(free.energy_mj * rng.uniform(0.6, 1.2)))),
        average_power_mw=rng.choice(
            (None, None, int(free.energy_mj * 1e6 / free.time_us * rng.uniform(0.7, 1.1)))
        ),
        memory_bytes=rng.choice((None, None, 45)),
    )
    return replace(problem, limits=limits), rng.choice((Objective.ENERGY, Objective.TIME))
