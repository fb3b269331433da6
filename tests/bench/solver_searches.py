"""Searches that treat the step as a black box, for comparison: one option for each kind of span.

Each gets a budget of evaluations of the same tables the solver reads, starts from the fastest plan, and keeps
the cheapest plan that meets the time limit. Choosing per kind is what tuners do; it is also all they could
search, since one option a span would be hundreds of dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from solver import Problem, judge

Plan = tuple[int, ...]


class OutOfBudgetError(Exception):
    """No evaluations left."""


class Game:
    """A problem to search with a limited number of evaluations."""

    def __init__(self, problem: Problem, *, budget: int, seed: int) -> None:
        self.problem, self.budget = problem, budget
        self.rng = np.random.default_rng(seed)
        self.sizes = [len(k.options) for k in problem.kinds]
        self.best: Plan = ()
        self.best_mj = float("inf")
        self.seen: dict[Plan, float] = {}
        top = len(problem.clocks_mhz) - 1
        self.start: Plan = tuple(
            min((i for i, o in enumerate(k.options) if o.clock == top), key=lambda i: k.options[i].time_us)
            for k in problem.kinds
        )

    def score(self, plan: Plan) -> float:
        """Energy in mJ, with a penalty that grows with the excess over the limits."""
        if plan in self.seen:
            return self.seen[plan]
        if self.budget <= 0:
            raise OutOfBudgetError
        self.budget -= 1
        judged = judge(self.problem, [plan[k] for k in self.problem.chain])
        value = float(judged.energy_mj)
        if judged.violations:
            value *= 1.5 + max(judged.time_us / (self.problem.limits.time_us or 1) - 1.0, 0.0)
        elif value < self.best_mj:
            self.best, self.best_mj = plan, value
        self.seen[plan] = value
        return value

    def random_plan(self) -> Plan:
        return tuple(int(self.rng.integers(n)) for n in self.sizes)


def spends_its_budget(search: Callable[[Game], None]) -> Callable[[Game], None]:
    def run(game: Game) -> None:
        try:
            game.score(game.start)
            search(game)
        except OutOfBudgetError:
            pass

    run.__name__ = search.__name__
    return run


@spends_its_budget
def random_search(game: Game) -> None:
    """Random clock for all kinds, random option of each kind there."""
    while True:
        clock = int(game.rng.integers(len(game.problem.clocks_mhz)))
        rows = [[i for i, o in enumerate(k.options) if o.clock == clock] for k in game.problem.kinds]
        if all(rows):
            game.score(tuple(int(game.rng.choice(r)) for r in rows))


@spends_its_budget
def greedy(game: Game) -> None:
    """Kind by kind, the largest first: the cheapest option that still meets the limit."""
    problem, plan = game.problem, game.start
    weight = [
        problem.chain.count(k) * problem.kinds[k].options[game.start[k]].energy_mj for k in range(len(plan))
    ]
    for k in sorted(range(len(plan)), key=lambda k: -weight[k]):
        options = problem.kinds[k].options
        for m in sorted(range(len(options)), key=lambda m: options[m].energy_mj):
            trial = (*plan[:k], m, *plan[k + 1 :])
            before = game.best_mj
            game.score(trial)
            if game.best_mj < before:
                plan = trial
                break


@spends_its_budget
def coordinate_descent(game: Game) -> None:
    """First the common clock, then one kind after another at a few options each, again and again."""
    problem, plan, value = game.problem, game.start, game.score(game.start)
    for clock in range(len(problem.clocks_mhz) - 2, -1, -1):
        rows = [[i for i, o in enumerate(k.options) if o.clock == clock] for k in problem.kinds]
        if all(rows):
            trial = tuple(
                min(r, key=lambda i, k=k: problem.kinds[k].options[i].time_us) for k, r in enumerate(rows)
            )
            score = game.score(trial)
            if score >= value:
                break
            plan, value = trial, score
    while True:
        left, before = game.budget, value
        for k in game.rng.permutation(len(plan)).tolist():
            clock = problem.kinds[k].options[plan[k]].clock
            near = [m for m, o in enumerate(problem.kinds[k].options) if o.clock == clock and m != plan[k]]
            for m in game.rng.permutation(near).tolist()[:6]:
                trial = (*plan[:k], int(m), *plan[k + 1 :])
                score = game.score(trial)
                if score < value:
                    plan, value = trial, score
        if game.budget == left and value == before:  # a local optimum, all neighbours known: start elsewhere
            plan = game.random_plan()
            value = game.score(plan)


@spends_its_budget
def gaussian_process(game: Game) -> None:
    """Expected improvement under a Gaussian process on clock, time and energy of each kind's option."""
    tables = []
    for kind in game.problem.kinds:
        raw = np.array([[o.clock, o.time_us, o.energy_mj] for o in kind.options], np.float64)
        tables.append((raw - raw.mean(axis=0)) / (raw.std(axis=0) + 1e-9))

    def features(plans: list[Plan]) -> np.ndarray:
        return np.array([np.concatenate([t[m] for t, m in zip(tables, p, strict=True)]) for p in plans])

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        squared = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
        return np.exp(-np.maximum(squared, 0) / (2 * a.shape[1]))

    top = len(game.problem.clocks_mhz)
    for _ in range(10):
        clock = int(game.rng.integers(top))
        rows = [[i for i, o in enumerate(k.options) if o.clock == clock] for k in game.problem.kinds]
        game.score(tuple(int(game.rng.choice(r)) if r else 0 for r in rows))
    while True:
        plans = list(game.seen)
        y = np.log([game.seen[p] for p in plans])
        mean, std = y.mean(), y.std() + 1e-9
        x = features(plans)
        factor = np.linalg.cholesky(kernel(x, x) + 1e-4 * np.eye(len(x)))
        alpha = np.linalg.solve(factor.T, np.linalg.solve(factor, (y - mean) / std))
        base = min(plans, key=lambda p: game.seen[p])
        pool = [game.random_plan() for _ in range(100)]
        for _ in range(300):
            mutant = list(base)
            for k in game.rng.choice(len(base), size=int(game.rng.integers(1, 4)), replace=False):
                mutant[k] = int(game.rng.integers(game.sizes[k]))
            pool.append(tuple(mutant))
        pool = [p for p in dict.fromkeys(pool) if p not in game.seen]
        cross = kernel(features(pool), x)
        mu = cross @ alpha
        spread = np.sqrt(np.maximum(1 - (np.linalg.solve(factor, cross.T) ** 2).sum(0), 1e-9))
        z = ((y.min() - mean) / std - mu) / spread
        density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
        tail = 0.5 * (1 + np.tanh(0.7978845608 * (z + 0.044715 * z**3)))
        game.score(pool[int((spread * (z * tail + density)).argmax())])


SEARCHES = (random_search, greedy, coordinate_descent, gaussian_process)
