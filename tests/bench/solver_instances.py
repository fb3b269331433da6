"""Generated steps with the shape of Llama FSDP training, for benchmarks and tests of the solver.

The tables come from a small contention model evaluated over SM budget, launch point and clock. They are
synthetic: their figures have the size of an H100-class GPU but are measured on none. Contention and the price
of a CTA are exaggerated so that many options survive (some 930 over nine kinds), which makes it harder.
"""

from __future__ import annotations

import random

import numpy as np

from solver import Limits, Option, Problem, SpanKind

BUDGETS = (1, 2, 4, 8, 12, 16, 24, 32)
NUM_SMS = 132
F0_MHZ = 1980


def clock_levels(count: int) -> tuple[int, ...]:
    return tuple(int(x) for x in np.linspace(990, F0_MHZ, count).round(-1))


def span_options(
    rng: random.Random, compute_ms: float, comm_mb: float, clocks: tuple[int, ...], launches: int
) -> list[Option]:
    """Every (clock, budget, launch point), with the time and energy of a span, non-dominated ones kept."""
    shares = [rng.uniform(0.1, 0.7) for _ in range(launches)]  # memory-bound part of each slice of compute
    waves = rng.uniform(0.3, 0.9)
    options: list[Option] = []
    slice_ms = compute_ms / launches
    for index, mhz in enumerate(clocks):
        f = mhz / F0_MHZ
        volts = 0.65 + 0.35 * f**2
        rows = []
        for budget in BUDGETS if comm_mb else (0,):
            for launch in range(launches if comm_mb else 1):
                rate = ((2.0 * max(budget, 1) * f**0.4) ** -4 + 46.0**-4) ** -0.25
                free = NUM_SMS - 0.9 * budget
                slow = waves * NUM_SMS / free + (1 - waves) * np.ceil(960 / free) / np.ceil(960 / NUM_SMS)
                left, time_ms, active_ms = comm_mb, 0.0, 0.0
                for i, share in enumerate(shares):
                    alone = slice_ms * ((1 - share) / f + share)
                    if i < launch or left <= 0:
                        time_ms += alone
                        continue
                    mixed = slice_ms * ((1 - share) * slow / f + share / (1 - 15.0 * rate / 3350))
                    beside = rate * (1 - 0.5 * share)
                    busy = min(mixed, left / beside)
                    left -= beside * busy
                    time_ms += busy + (1 - busy / mixed) * alone
                    active_ms += busy
                time_ms += max(left, 0.0) / rate
                active_ms += max(left, 0.0) / rate
                energy_j = compute_ms * 0.40 * volts**2 + 0.05 * time_ms * f + comm_mb * 2.2e-5
                energy_j += (0.03 + budget * 2.5e-2 * f * volts**2) * active_ms
                rows.append((time_ms, energy_j, budget, launch))
        rows.sort()
        least = float("inf")
        for time_ms, energy_j, budget, launch in rows:
            if energy_j < least - 1e-9:
                least = energy_j
                options.append(
                    Option(
                        label=f"budget{budget}/launch{launch}/{mhz}",
                        decision=f"budget{budget}/launch{launch}",
                        clock=index,
                        time_us=int(np.ceil(time_ms * 1000)),
                        energy_mj=int(np.ceil(energy_j * 1000)),
                        rungs=(("world/all_gather", budget),) if comm_mb else (),
                        changes=int(budget != 16) + int(launch != 0) + int(index != len(clocks) - 1),
                    )
                )
    return options


def llama_step(
    layers: int,
    *,
    num_clocks: int = 16,
    switch_us: int = 0,
    launches: int = 10,
    max_rungs: int = 4,
) -> Problem:
    """A step of `layers` layers: nine kinds of span, 2 * layers + 4 spans."""
    rng = random.Random(layers)
    clocks = clock_levels(num_clocks)
    shapes = {
        "EMB": (2.0, 380.0), "F": (14.0, 381.0), "FL": (14.0, 0.0), "HEAD": (22.0, 0.0), "BL": (29.0, 381.0),
        "B": (28.0, 762.0), "B1": (28.0, 381.0), "TAIL": (3.0, 380.0), "OPT": (9.0, 0.0),
    }  # fmt: skip
    kinds = []
    for name, (compute_ms, comm_mb) in shapes.items():
        options = span_options(rng, compute_ms, comm_mb, clocks, launches)
        stock = next((i for i, o in enumerate(options) if o.clock == num_clocks - 1), len(options) - 1)
        kinds.append(SpanKind(name=name, options=tuple(options), stock=stock))
    index = {name: i for i, name in enumerate(shapes)}
    names = ["EMB", *["F"] * (layers - 1), "FL", "HEAD", "BL", *["B"] * (layers - 2), "B1", "TAIL", "OPT"]
    return Problem(
        clocks_mhz=clocks,
        kinds=tuple(kinds),
        chain=tuple(index[n] for n in names),
        static_power_mw=115_000,
        switch_time_us=switch_us,
        limits=Limits(),
        max_rungs=max_rungs,
    )
