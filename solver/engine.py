"""Solving one point: clock sets, pattern tree, CP-SAT, exact labels, cross-check, tie-break, judge.

Clock sets and the pattern tree (no OR-Tools) each find plans and a bound in their own way. Where they do not
both reach the stated gap, CP-SAT starts from the best plan, improves it and bounds it in its way; where no two
agree then, an exact dynamic programme decides if the problem is small enough. The judge re-computes the
result. What is reported is never OR-Tools' bound alone. Whatever two of them disagree on is an error.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np

from solver.bounds.clock_sets import ClockSets
from solver.bounds.labels import LEAST_WORK, exact_optimum
from solver.bounds.levels import LevelSearch
from solver.bounds.price_table import price_table
from solver.bounds.tree import PatternTree
from solver.check import Judged, binding_power_mw, judge, require_valid
from solver.errors import ContradictionError
from solver.governor import settled
from solver.heuristic import best_greedy
from solver.plan import Goal, calm, totals_of
from solver.problem import Limits, Problem
from solver.solution import Objective, Solution, Status
from solver.tables import Ints, Tables, build_tables, worst_case

PROOF_GAP = 1e-3  # a point counts as proven when its bound is this close and both methods agree
TREE_GAP = 5e-4  # where the tree stops: half the proof gap leaves room for ties
TREE_NODES = 400
_LEAST_SEGMENTS, _MOST_SEGMENTS = 3, 6
_WORK_PER_S, _MOST_WORK = 2_000_000, 4_000_000  # of the exact dynamic programme
_LEAST_CPSAT_S = 0.1  # building the model alone takes about as long


@dataclass(frozen=True, kw_only=True)
class Progress:
    """State of a running solve: best value and bound (us or mJ), relative gap, seconds since the start."""

    best: float | None
    bound: float
    gap: float
    elapsed_s: float


ProgressFn = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to solve.

    Attributes:
        time_limit_s: wall time. deterministic_time: OR-Tools' machine-independent clock; with it, the tree
            is limited by nodes alone, so that the answer is the same on any machine.
        seed: random seed. gap: relative gap at which a search may stop (0: exact). tie: share of the objective
            given up for fewer changes from stock. robust: optimise the 90 % worst case.
        tree, sets, cpsat: whether to use the pattern tree, clock sets, CP-SAT (for comparisons and tests).
    """

    time_limit_s: float = 10.0
    deterministic_time: float | None = None
    seed: int = 0
    gap: float = 9e-4
    tie: float = 1e-4
    robust: bool = False
    tree: bool = True
    sets: bool = True
    cpsat: bool = True


class Engine:
    """Solves one problem under changing limits, keeping what was proven on the way.

    Args:
        problem: the instance. settings: how to solve.

    Attributes:
        last: table rows of the last plan found, to start the next point from.
        sets: bounds by clock sets, None where sums would leave 64 bits.

    Raises:
        ProblemError: the problem makes no sense.
    """

    def __init__(self, problem: Problem, settings: Settings) -> None:
        require_valid(problem)
        self._power_mw = binding_power_mw(problem)
        self.problem = problem = replace(
            problem, limits=replace(problem.limits, average_power_mw=self._power_mw)
        )
        self.settings = settings
        self.tables = build_tables(worst_case(problem) if settings.robust else problem)
        self.last: Ints | None = None
        self.sets: ClockSets | None = None
        self._search: LevelSearch | PatternTree | None = None
        if self.tables is not None:
            self._search = LevelSearch(self.tables) if problem.governed else PatternTree(self.tables)
            prices = price_table(self.tables) if settings.sets else None
            self.sets = None if prices is None else ClockSets(self.tables, prices)

    def solve(
        self,
        objective: Objective,
        limits: Limits,
        *,
        time_limit_s: float,
        start: Ints | None = None,
        progress: ProgressFn | None = None,
    ) -> Solution:
        """Solve one point.

        Args:
            objective: what is made small. limits: time and energy limits may differ from the problem's,
                the others may not (the tables were built for them).
            time_limit_s: wall time. start: a plan (table rows) to begin with, if it meets the limits.
            progress: called when the best plan or the bound moves.

        Raises:
            ContradictionError: two methods disagree.
        """
        began = time.monotonic()
        if self.tables is None or self._search is None:
            return _no_plan(Status.INFEASIBLE, objective, "memory: a span has no option within it", began)
        limits = replace(limits, average_power_mw=self._power_mw)
        tables = replace(self.tables, problem=replace(self.tables.problem, limits=limits))
        run = _Run(self, tables, objective, began, time_limit_s, progress)
        run.offer(start)
        if find_spec("ortools") is None:
            run.offer(best_greedy(tables, run.goal))
            return run.result(Status.HEURISTIC, 0.0, "")
        solution = run.prove(self._search)
        self.last = run.best
        return solution


class _Run:
    """One solve in progress."""

    def __init__(
        self,
        engine: Engine,
        tables: Tables,
        objective: Objective,
        began: float,
        time_limit_s: float,
        progress: ProgressFn | None,
    ) -> None:
        self.engine, self.tables, self.began = engine, tables, began
        self.settings = engine.settings
        self.goal = Goal.of(tables, objective)
        self.until = began + time_limit_s
        self.progress = progress
        self.best: Ints | None = None
        self.value = math.inf
        self.interrupted = False
        self._shown = (math.inf, -math.inf)

    def accept(self, picked: Ints) -> bool:
        return not judge(self.tables.problem, self.tables.choices(picked.tolist())).violations

    def offer(self, picked: Ints | None) -> None:
        """Take a plan if it is better and the judge finds nothing wrong with it."""
        if picked is None:
            return
        value = float(self.goal.value(totals_of(self.tables, picked)))
        if value < self.value and self.accept(picked):
            self.best, self.value = picked, value

    def show(self, value: float, bound: float) -> None:
        value = min(value, self.value)
        bound = max(bound, self._shown[1]) if math.isfinite(bound) else self._shown[1]
        if self.progress is None or (value, bound) == self._shown:
            return
        self._shown = (value, bound)
        known = math.isfinite(value)
        self.progress(
            Progress(
                best=value if known else None,
                bound=bound,
                gap=_gap(value, bound) if known else 1.0,
                elapsed_s=time.monotonic() - self.began,
            )
        )

    def prove(self, tree: LevelSearch | PatternTree) -> Solution:
        proofs: dict[str, float] = {}
        if self.engine.sets is not None:
            proofs["clock-sets"] = self._clock_sets(self.engine.sets)
        if self.settings.tree and not self.interrupted:
            proofs["lagrangian"] = self._search(tree)
        in_time = self.until - time.monotonic() > _LEAST_CPSAT_S or not proofs
        settled = self._agreed(proofs, min(self.settings.gap, PROOF_GAP)) >= 2
        if self.settings.cpsat and not self.interrupted and in_time and not settled:
            proofs["cp-sat"] = self._cpsat(tree, self._level_floors(proofs))
        if self._agreed(proofs, PROOF_GAP) < 2 and not self.interrupted:
            below = self.value * (1 - min(self.settings.gap, PROOF_GAP))
            left_s = self.until - time.monotonic() if self.settings.deterministic_time is None else math.inf
            work = round(min(max(left_s * _WORK_PER_S, LEAST_WORK), _MOST_WORK))
            exact = exact_optimum(self.tables, self.goal, below=below, max_work=work)
            if exact is not None:
                proofs["dp"] = exact if exact <= below or math.isinf(below) else math.floor(below) + 1.0
        self._cross_check(proofs)
        if math.isinf(self.value) and any(math.isinf(b) and b > 0 for b in proofs.values()):
            names = "+".join(n for n, b in proofs.items() if math.isinf(b) and b > 0)
            return self.result(Status.INFEASIBLE, math.inf, names)
        own = [b for n, b in proofs.items() if n != "cp-sat"] or list(proofs.values())
        bound = min(max(own, default=0.0), self.value)
        agreed = [n for n, b in proofs.items() if _gap(self.value, b) <= PROOF_GAP]
        proven = len(agreed) >= 2
        self._break_ties(bound)
        status = Status.OPTIMAL if proven else Status.FEASIBLE if self.best is not None else Status.UNKNOWN
        return self.result(status, bound, "+".join(agreed or proofs))

    def _agreed(self, proofs: dict[str, float], gap: float) -> int:
        """How many proofs reach the gap, or agree that nothing meets the limits."""
        if math.isinf(self.value):
            return sum(math.isinf(b) and b > 0 for b in proofs.values())
        return sum(_gap(self.value, b) <= gap for b in proofs.values())

    def _clock_sets(self, sets: ClockSets) -> float:
        found = sets.search(
            self.goal, gap=min(TREE_GAP, self.settings.gap), accept=self.accept, start=self.best
        )
        self.offer(found.picked)
        self.interrupted = found.interrupted
        self.show(found.value, found.bound)
        return found.bound

    def _search(self, tree: LevelSearch | PatternTree) -> float:
        exact = self.settings.deterministic_time is not None
        share = 0.6 if self.settings.cpsat else 1.0
        found = tree.search(
            self.goal,
            gap=min(TREE_GAP, self.settings.gap),
            deadline=math.inf if exact else self.began + share * (self.until - self.began),
            accept=self.accept,
            start=self.best,
            max_nodes=TREE_NODES,
            progress=self.show,
        )
        self.offer(found.picked)
        self.interrupted = found.interrupted
        if self.best is None and not math.isinf(found.bound):
            self.offer(best_greedy(self.tables, self.goal))
        return _whole(found.bound)

    def _level_floors(self, proofs: dict[str, float]) -> Sequence[float]:
        """What clock sets prove of each level of a governed clock, to spare CP-SAT most of them.

        Their own proof is then part of CP-SAT's and no longer a method by itself.
        """
        sets = self.engine.sets
        if sets is None or not self.tables.problem.governed:
            return ()
        if self._agreed({"clock-sets": proofs["clock-sets"]}, PROOF_GAP):
            return ()
        del proofs["clock-sets"]
        return sets.level_floors(self.goal)

    def _cpsat(self, tree: LevelSearch | PatternTree, floors: Sequence[float]) -> float:
        """Run CP-SAT; its bound speaks for the stays it models, the tree's for plans with more.

        Where plans with more stays cannot be excluded, it runs again with more segments.
        """
        if not isinstance(tree, PatternTree) or self.tables.one_clock or self.tables.free_switches:
            return self._cpsat_once(1, floors)
        stays = 1 if self.best is None else _stays(self.tables, self.best)
        segments = min(max(stays + 1, _LEAST_SEGMENTS), len(self.tables.chain))
        room = min(_MOST_SEGMENTS, len(self.tables.chain))
        while True:
            beyond = _whole(tree.bound_beyond(self.goal, segments))
            bound = self._cpsat_once(segments)
            settled = beyond >= min(bound, self.value * (1 - self.settings.gap))
            if settled or segments >= room or self.interrupted or time.monotonic() > self.until:
                return min(bound, beyond)
            segments = room

    def _cpsat_once(self, segments: int, floors: Sequence[float] = ()) -> float:
        from solver.cpsat.run import Effort, run_cpsat

        outcome = run_cpsat(
            self.tables,
            self.goal.objective,
            Effort(
                time_limit_s=self.until - time.monotonic(),
                deterministic_time=self.settings.deterministic_time,
                seed=self.settings.seed,
                relative_gap=self.settings.gap,
            ),
            num_segments=segments,
            hint=self.best,
            level_floors=floors,
            on_solution=lambda value, _: self.show(value, -math.inf),
        )
        if outcome.picked is not None:
            self._expect_valid(outcome.picked)
            self.offer(outcome.picked)
        if not outcome.proven and self.settings.deterministic_time is None:
            self.interrupted = time.monotonic() < self.until - 0.2  # OR-Tools takes Ctrl-C for itself
        return outcome.bound

    def _expect_valid(self, picked: Ints) -> None:
        broken = judge(self.tables.problem, self.tables.choices(picked.tolist())).violations
        if broken:
            raise ContradictionError(f"CP-SAT offers a plan that breaks its limits: {'; '.join(broken)}")

    def _cross_check(self, proofs: dict[str, float]) -> None:
        """No proven bound may lie above a plan that the judge accepts."""
        for name, bound in proofs.items():
            if bound > self.value + 0.5:
                raise ContradictionError(
                    f"{name} proves that nothing is below {bound}, yet the judge accepts a plan at "
                    f"{self.value} ({self.goal.objective}); please report the problem file"
                )

    def _break_ties(self, bound: float) -> None:
        """Within noise, the plan with fewer changes from stock wins; a proven point stays proven."""
        if self.best is None or not self.settings.tie:
            return
        room = self.value * self.settings.tie
        if _gap(self.value, bound) <= PROOF_GAP:
            room = min(room, bound / (1 - PROOF_GAP) - self.value)
        calmer = calm(self.tables, self.goal, self.best, math.floor(self.value + max(room, 0.0)))
        if self.accept(calmer):
            self.best = calmer

    def result(self, status: Status, bound: float, certificate: str) -> Solution:
        objective = self.goal.objective
        if self.best is None:
            reason = "" if status is Status.INFEASIBLE else "no plan was found; that proves nothing"
            missing = Status.UNKNOWN if status is Status.HEURISTIC else status
            return replace(
                _no_plan(missing, objective, reason, self.began),
                certificate=certificate,
                interrupted=self.interrupted,
            )
        choices = self.tables.choices(self.best.tolist())
        optimised = judge(self.tables.problem, choices)
        value = self.goal.value(totals_of(self.tables, self.best))
        judged_value = optimised.time_us if objective is Objective.TIME else optimised.energy_mj
        if judged_value != value or optimised.violations:
            raise ContradictionError(
                f"the judge finds {judged_value} {optimised.violations}, the model {value}"
            )
        choices, nominal = _at_own_clock(self.engine.problem, choices)
        _, worst = _at_own_clock(worst_case(self.engine.problem), choices)
        return Solution(
            status=status,
            objective=objective,
            choices=choices,
            time_us=nominal.time_us,
            energy_mj=nominal.energy_mj,
            bound=bound,
            certificate=certificate,
            gap=_gap(value, bound),
            switches=nominal.switches,
            changes=nominal.changes,
            worst_time_us=worst.time_us,
            worst_energy_mj=worst.energy_mj,
            interrupted=self.interrupted,
            solve_s=time.monotonic() - self.began,
        )


def _at_own_clock(problem: Problem, choices: tuple[int, ...]) -> tuple[tuple[int, ...], Judged]:
    """The plan at the clock it runs at by a problem's figures, and what it then amounts to."""
    choices = settled(problem, choices)
    return choices, judge(replace(problem, limits=Limits(), governed=False), choices)


def _stays(tables: Tables, picked: Ints) -> int:
    clocks = np.array([tables.kinds[k].clock[m] for k, m in zip(tables.chain, picked, strict=True)])
    return 1 + int((clocks[1:] != clocks[:-1]).sum())


def _whole(bound: float) -> float:
    """A bound on an integer objective, rounded up to the next integer it proves."""
    return float(math.ceil(bound - 1e-6 * max(abs(bound), 1.0) * 1e-3)) if math.isfinite(bound) else bound


def _gap(value: float, bound: float) -> float:
    if not value or not math.isfinite(value):
        return 0.0 if value == 0 else 1.0
    return max(value - bound, 0.0) / value


def _no_plan(status: Status, objective: Objective, reason: str, began: float) -> Solution:
    return Solution(
        status=status, objective=objective, gap=1.0, reason=reason, solve_s=time.monotonic() - began
    )
