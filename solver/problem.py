"""The Problem: an integer-tick optimisation instance made of option tables.

It knows nothing of GPUs, traces or PyTorch. A step is a chain of spans; every span is of a kind; every
kind offers options; an option has a clock, a time and a dynamic energy. One option is chosen for every
span of the chain (equal spans may choose differently). Static power is paid for the whole makespan.

Rounding: times are integer microseconds rounded up, energies integer millijoules rounded up, so that a
plan is never promised to be better than the table it came from.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One way to run a span.

    Attributes:
        label: names the choice for the caller; never interpreted here.
        clock: index into `Problem.clocks_mhz`.
        time_us: duration of the span, integer microseconds.
        energy_mj: dynamic energy, integer millijoules (static power is added over the makespan).
        memory_bytes: extra peak memory while the span runs.
        rungs: (ladder key, budget) pairs the option needs a communicator for.
        changes: knobs that differ from stock; fewer wins among equals.
        worst_time_us, worst_energy_mj: 90 % upper figures from the profile's intervals (0: same as nominal).
        carry_us: communication left running into the next span, integer microseconds. It is charged in full
            (the next span starts that much later), so feeding spilling options is safe, never flattering.
        decision: names the same choice at every clock, for `Problem.governed`; empty: the label is that name.
    """

    label: str
    clock: int
    time_us: int
    energy_mj: int
    memory_bytes: int = 0
    rungs: tuple[tuple[str, int], ...] = ()
    changes: int = 0
    worst_time_us: int = 0
    worst_energy_mj: int = 0
    carry_us: int = 0
    decision: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanKind:
    """A kind of span with its options; `stock` is the index of the option stock PyTorch amounts to."""

    name: str
    options: tuple[Option, ...]
    stock: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Upper limits on a step; None is unlimited.

    Attributes:
        time_us: makespan. energy_mj: total energy including static power.
        average_power_mw: energy over makespan. memory_bytes: peak extra memory, ladder included.
    """

    time_us: int | None = None
    energy_mj: int | None = None
    average_power_mw: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A whole step.

    Attributes:
        clocks_mhz: clock levels, ascending; one entry where there is no choice.
        kinds: span kinds. chain: kind index of each span of the step, in order.
        static_power_mw: paid over the makespan.
        switch_time_us, switch_energy_mj: cost of each change of clock between neighbouring spans.
        min_dwell_us: shortest stay at one clock between two switches (the first and the last stay of a
            cyclic step are one stay).
        cyclic: the step repeats, so a last clock that differs from the first costs a switch too.
        uniform_clock: the clock is one for the whole step (governed by the power limit or locked once).
        governed: the clock is not ours: the hardware runs the highest level at which average power stays
            within `limits.average_power_mw`; the solver may not pick a lower one.
        max_rungs: distinct budgets allowed for one ladder key. rung_memory_bytes: memory of each one used.
    """

    clocks_mhz: tuple[int, ...]
    kinds: tuple[SpanKind, ...]
    chain: tuple[int, ...]
    static_power_mw: int = 0
    switch_time_us: int = 0
    switch_energy_mj: int = 0
    min_dwell_us: int = 0
    cyclic: bool = True
    uniform_clock: bool = False
    governed: bool = False
    max_rungs: int = 4
    rung_memory_bytes: int = 0
    limits: Limits = Limits()
