"""An independent judge: what a choice of options amounts to, and which rules it breaks.

No OR-Tools, no search, no shared arithmetic with the models: integers and loops only, so that a mistake in a
model cannot hide here. Every plan the package returns has been through `judge`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from solver.errors import ProblemError
from solver.problem import Option, Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What a plan amounts to.

    Attributes:
        time_us: makespan with switches and carried communication.
        energy_mj: dynamic energy, switches and static power over the makespan, rounded up.
        switches: changes of clock, the wrap-around of a cyclic step included.
        memory_bytes: largest option memory plus the memory of every distinct rung used.
        changes: knobs that differ from stock, summed over the chain.
        violations: one sentence for each broken rule; empty for a valid plan.
    """

    time_us: int
    energy_mj: int
    switches: int
    memory_bytes: int
    changes: int
    violations: tuple[str, ...]


LARGEST = 10**15  # of any number: every sum the methods make of them then fits 64 bits or is refused by them
LARGEST_STEP = 10**12  # us (eleven days) and mJ (a gigajoule) of a whole step
LARGEST_HELD_NJ = 2 * 10**18  # power limit times time of a whole step


def require_valid(problem: Problem) -> None:
    """Raise ProblemError for a problem that makes no sense, naming the place in JSON-path form."""

    def check(good: bool, path: str, expected: str, found: object) -> None:
        if not good:
            raise ProblemError(f"{path}: expected {expected}, found {found!r}")

    def check_size(value: int, path: str) -> None:
        check(value >= 0, path, "a number that is not negative", value)
        check(value <= LARGEST, path, f"at most {LARGEST:.0e}", value)

    clocks = problem.clocks_mhz
    check(len(clocks) > 0, "clocks_mhz", "at least one clock level", clocks)
    check(list(clocks) == sorted(set(clocks)), "clocks_mhz", "ascending distinct MHz", clocks)
    check(len(problem.kinds) > 0, "kinds", "at least one span kind", problem.kinds)
    check(len(problem.chain) > 0, "chain", "at least one span", problem.chain)
    for name in (
        "static_power_mw",
        "switch_time_us",
        "switch_energy_mj",
        "min_dwell_us",
        "max_rungs",
        "rung_memory_bytes",
    ):
        check_size(getattr(problem, name), name)
    for name in ("time_us", "energy_mj", "average_power_mw", "memory_bytes"):
        if getattr(problem.limits, name) is not None:
            check_size(getattr(problem.limits, name), f"limits.{name}")
    for i, k in enumerate(problem.chain):
        check(0 <= k < len(problem.kinds), f"chain[{i}]", f"an index below {len(problem.kinds)}", k)
    for k, kind in enumerate(problem.kinds):
        check(len(kind.options) > 0, f"kinds[{k}].options", "at least one option", kind.options)
        check(0 <= kind.stock < len(kind.options), f"kinds[{k}].stock", "an index into options", kind.stock)
        for m, option in enumerate(kind.options):
            where = f"kinds[{k}].options[{m}]"
            check(0 <= option.clock < len(clocks), f"{where}.clock", "an index into clocks_mhz", option.clock)
            for name in (
                "time_us",
                "energy_mj",
                "memory_bytes",
                "changes",
                "worst_time_us",
                "worst_energy_mj",
                "carry_us",
            ):
                check_size(getattr(option, name), f"{where}.{name}")
    for name, most in zip(("us", "mJ"), _most(problem), strict=True):
        check(most <= LARGEST_STEP, "chain", f"a step of at most {LARGEST_STEP:.0e} {name} in all", most)
    cap = binding_power_mw(problem)
    if cap is not None:
        held_nj = cap * _most(problem)[0]
        path = "limits.average_power_mw"
        check(
            held_nj <= LARGEST_HELD_NJ, path, f"at most {LARGEST_HELD_NJ:.0e} nJ in the longest step", held_nj
        )
    if problem.governed:
        check(
            cap is not None,
            "limits.average_power_mw",
            "the power the governor holds, since governed is true",
            None,
        )
        for k, kind in enumerate(problem.kinds):
            seen: set[tuple[int, str]] = set()
            for m, option in enumerate(kind.options):
                choice = option.clock, decision_of(option)
                expected = "a decision that no other option has at its clock, since governed is true"
                check(choice not in seen, f"kinds[{k}].options[{m}].decision", expected, choice[1])
                seen.add(choice)


def binding_power_mw(problem: Problem) -> int | None:
    """The average power limit (mW), or the least that forbids the same plans where it is far beyond any plan."""
    cap = problem.limits.average_power_mw
    if cap is None:
        return None
    fastest = [min(min(o.time_us, o.worst_time_us or o.time_us) for o in k.options) for k in problem.kinds]
    least_us = max(sum(fastest[k] for k in problem.chain), 1)
    return min(cap, -(-_most(problem)[1] * 1_000_000 // least_us))


def _most(problem: Problem) -> tuple[int, int]:
    """Time (us) and energy (mJ) that no plan of a problem can exceed."""
    slowest = [max(max(o.time_us, o.worst_time_us) + o.carry_us for o in k.options) for k in problem.kinds]
    dearest = [max(max(o.energy_mj, o.worst_energy_mj) for o in k.options) for k in problem.kinds]
    time_us = sum(slowest[k] + problem.switch_time_us for k in problem.chain)
    energy_mj = sum(dearest[k] + problem.switch_energy_mj for k in problem.chain)
    return time_us, energy_mj + static_energy_mj(problem.static_power_mw, time_us)


def judge(problem: Problem, choices: Sequence[int]) -> Judged:
    """Judge a plan.

    Args:
        problem: the instance.
        choices: option index (into the span's kind) for each span of the chain.

    Raises:
        ProblemError: when `choices` does not even have the shape of a plan.
    """
    if len(choices) != len(problem.chain):
        raise ProblemError(f"choices: expected {len(problem.chain)} (one a span), found {len(choices)}")
    chosen: list[Option] = []
    for i, (k, m) in enumerate(zip(problem.chain, choices, strict=True)):
        options = problem.kinds[k].options
        if not 0 <= m < len(options):
            raise ProblemError(f"choices[{i}]: expected an index below {len(options)}, found {m}")
        chosen.append(options[m])
    clocks = [o.clock for o in chosen]
    switches = sum(a != b for a, b in pairwise(clocks))
    if problem.cyclic and clocks[0] != clocks[-1]:
        switches += 1
    time_us = sum(o.time_us + o.carry_us for o in chosen) + switches * problem.switch_time_us
    dynamic_mj = sum(o.energy_mj for o in chosen) + switches * problem.switch_energy_mj
    energy_mj = dynamic_mj + static_energy_mj(problem.static_power_mw, time_us)
    rungs = {rung for o in chosen for rung in o.rungs}
    memory = max(o.memory_bytes for o in chosen) + problem.rung_memory_bytes * len(rungs)
    broken = _limit_violations(problem, time_us, energy_mj, memory)
    broken += _rung_violations(problem, rungs)
    broken += _clock_violations(problem, chosen, switches)
    if problem.governed:
        broken += _governor_violations(problem, choices, clocks[0])
    return Judged(
        time_us=time_us,
        energy_mj=energy_mj,
        switches=switches,
        memory_bytes=memory,
        changes=sum(o.changes for o in chosen),
        violations=tuple(broken),
    )


def static_energy_mj(static_power_mw: int, time_us: int) -> int:
    """Static energy over `time_us` in whole millijoules, rounded up (mW times us is nJ)."""
    return -(-static_power_mw * time_us // 1_000_000)


def _limit_violations(problem: Problem, time_us: int, energy_mj: int, memory: int) -> list[str]:
    limits = problem.limits
    broken = []
    if limits.time_us is not None and time_us > limits.time_us:
        broken.append(f"time {time_us} us exceeds the limit of {limits.time_us} us")
    if limits.energy_mj is not None and energy_mj > limits.energy_mj:
        broken.append(f"energy {energy_mj} mJ exceeds the limit of {limits.energy_mj} mJ")
    if limits.memory_bytes is not None and memory > limits.memory_bytes:
        broken.append(f"memory {memory} bytes exceeds the limit of {limits.memory_bytes} bytes")
    cap = limits.average_power_mw
    if cap is not None and energy_mj * 1_000_000 > cap * time_us:
        average = energy_mj * 1_000_000 / time_us if time_us else float("inf")
        broken.append(f"average power {average:.0f} mW exceeds the limit of {cap} mW")
    return broken


def _rung_violations(problem: Problem, rungs: set[tuple[str, int]]) -> list[str]:
    budgets: dict[str, set[int]] = {}
    for key, budget in rungs:
        budgets.setdefault(key, set()).add(budget)
    return [
        f"ladder {key!r} uses {len(used)} budgets {sorted(used)}, at most {problem.max_rungs} allowed"
        for key, used in sorted(budgets.items())
        if len(used) > problem.max_rungs
    ]


def _clock_violations(problem: Problem, chosen: list[Option], switches: int) -> list[str]:
    broken = []
    if (problem.uniform_clock or problem.governed) and switches:
        broken.append(f"{switches} clock switches where the whole step must run at one clock")
    if not switches or not problem.min_dwell_us:
        return broken
    stays: list[tuple[int, int]] = []  # (clock, time) of each stay in order
    for option in chosen:
        length = option.time_us + option.carry_us
        if stays and stays[-1][0] == option.clock:
            stays[-1] = (option.clock, stays[-1][1] + length)
        else:
            stays.append((option.clock, length))
    if problem.cyclic:
        if stays[0][0] == stays[-1][0]:
            stays[0] = (stays[0][0], stays[0][1] + stays.pop()[1])
    else:  # the first and the last stay are not between two switches
        stays = stays[1:-1]
    for clock, length in stays:
        if length < problem.min_dwell_us:
            broken.append(
                f"a stay of {length} us at {problem.clocks_mhz[clock]} MHz is shorter than "
                f"the dwell of {problem.min_dwell_us} us"
            )
    return broken


def decision_of(option: Option) -> str:
    """Name of the choice an option is at every clock."""
    return option.decision or option.label


def _governor_violations(problem: Problem, choices: Sequence[int], clock: int) -> list[str]:
    """The hardware would run any higher level at which the same decisions stay within the power limit."""
    cap = problem.limits.average_power_mw
    if cap is None:
        return []
    for higher in range(clock + 1, len(problem.clocks_mhz)):
        time_us = dynamic_mj = 0
        for k, m in zip(problem.chain, choices, strict=True):
            kind = problem.kinds[k]
            name = decision_of(kind.options[m])
            twins = [o for o in kind.options if o.clock == higher and decision_of(o) == name]
            if not twins:
                break
            time_us += twins[0].time_us + twins[0].carry_us
            dynamic_mj += twins[0].energy_mj
        else:
            energy_mj = dynamic_mj + static_energy_mj(problem.static_power_mw, time_us)
            if energy_mj * 1_000_000 <= cap * time_us:
                return [
                    f"the governor would run {problem.clocks_mhz[higher]} MHz, not "
                    f"{problem.clocks_mhz[clock]} MHz: average power stays within {cap} mW there"
                ]
    return []
