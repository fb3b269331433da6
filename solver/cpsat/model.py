"""The counts/segments model: how many spans of each kind run each option in each clock segment.

One segment where the order of spans does not matter (one clock, or switches for free); otherwise at most
`num_segments` of them, cut out of the chain at places that are tied to the spans of each kind passed so far.
Equal spans are never told apart, so the model does not grow with the number of layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from solver.solution import Objective
from solver.tables import Ints, Tables

_MOST_RUNS = 40
Var = cp_model.IntVar
Expr = Any  # a linear expression or an int; the union OR-Tools declares for it has no closed arithmetic


@dataclass(eq=False)
class Model:
    """A CP-SAT model of the tables.

    Attributes:
        counts: variable of each (segment, kind, row). clock: literals of each segment (empty: free).
        cut: first position of each segment, and the end; empty with one segment.
        time_us, energy_mj, changes, switches: what a plan amounts to.
    """

    tables: Tables
    num_segments: int
    cp: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    counts: dict[tuple[int, int, int], Var] = field(default_factory=dict)
    clock: list[list[Var]] = field(default_factory=list)
    active: list[Var] = field(default_factory=list)
    cut: list[Var] = field(default_factory=list)
    passed: list[list[Expr]] = field(default_factory=list)
    wrap: Var | None = None
    rung: list[Var] = field(default_factory=list)
    heavier: dict[int, Var] = field(default_factory=dict)
    time_us: Expr = 0
    dynamic_mj: Expr = 0
    changes: Expr = 0
    switches: Expr = 0
    energy_mj: Var = field(init=False)

    def minimise(self, objective: Objective, at_most: int | None = None) -> None:
        """State the objective, and the most it may be where a plan is known already."""
        value = self.time_us if objective is Objective.TIME else self.energy_mj
        if at_most is not None:
            self.cp.add(value <= at_most)
        self.cp.minimize(value)


def build_model(tables: Tables, num_segments: int) -> Model:
    """Return the model with costs and segments, without limits (see `solver.cpsat.limits`).

    Args:
        tables: the problem. num_segments: most stays at one clock along the chain; 1 where the tables say
            `one_clock` or `free_switches`.
    """
    model = Model(tables, num_segments)
    _count_variables(model)
    if num_segments > 1:
        _segments(model)
    else:
        for k, table in enumerate(tables.kinds):
            model.cp.add(sum(_of(model, 0, k)) == table.count)
    if not tables.free_switches:
        _clock_literals(model)
    _costs(model)
    return model


def _of(model: Model, segment: int, kind: int) -> list[Var]:
    return [model.counts[segment, kind, m] for m in range(len(model.tables.kinds[kind].origin))]


def _count_variables(model: Model) -> None:
    for s in range(model.num_segments):
        for k, table in enumerate(model.tables.kinds):
            for m in range(len(table.origin)):
                model.counts[s, k, m] = model.cp.new_int_var(0, table.count, f"n{s}_{k}_{m}")


def _cut(model: Model, s: int) -> None:
    """One place in the chain, and how many spans of each kind lie before it.

    A chain of few runs of equal spans is passed run by run: a run begins only after the one before is
    complete. A chain of many (alternating kinds) takes a table from places to counts.
    """
    tables, cp = model.tables, model.cp
    chain = tables.chain
    spans = len(chain)
    starts = np.concatenate([[0], np.flatnonzero(chain[1:] != chain[:-1]) + 1, [spans]])
    if s in (0, model.num_segments):
        place = 0 if s == 0 else spans
        model.cut.append(cp.new_constant(place))
        model.passed.append([t.count if s else 0 for t in tables.kinds])
        return
    cut = cp.new_int_var(1, spans, f"cut{s}")
    model.cut.append(cut)
    if len(starts) - 1 > _MOST_RUNS:
        before = np.zeros((spans + 1, len(tables.kinds)), np.int64)
        np.add.at(before, (np.arange(spans) + 1, chain), 1)
        rows = np.column_stack([np.arange(spans + 1), before.cumsum(axis=0)]).tolist()
        passed = [cp.new_int_var(0, t.count, f"p{s}_{k}") for k, t in enumerate(tables.kinds)]
        cp.add_allowed_assignments([cut, *passed], rows)
        model.passed.append(passed)
        return
    runs: list[tuple[int, Expr]] = []
    complete: Var | None = None
    for b, (low, high) in enumerate(pairwise(starts.tolist())):
        size = high - low
        done = cp.new_int_var(0, size, f"run{s}_{b}")
        if complete is not None:
            cp.add(done <= size * complete)
        complete = cp.new_bool_var(f"complete{s}_{b}")
        cp.add(done >= size * complete)
        runs.append((int(chain[low]), done))
    cp.add(cut == sum(done for _, done in runs))
    model.passed.append([sum(done for kind, done in runs if kind == k) for k in range(len(tables.kinds))])


def _segments(model: Model) -> None:
    """Cuts of the chain, the spans of each kind in every segment, and which segments are there at all."""
    tables, cp = model.tables, model.cp
    spans = len(tables.chain)
    for s in range(model.num_segments + 1):
        _cut(model, s)
    for s in range(model.num_segments):
        for k in range(len(tables.kinds)):
            cp.add(sum(_of(model, s, k)) == model.passed[s + 1][k] - model.passed[s][k])
        active = cp.new_bool_var(f"active{s}")
        model.active.append(active)
        cp.add(model.cut[s + 1] - model.cut[s] >= active)
        cp.add(model.cut[s + 1] - model.cut[s] <= spans * active)
        if s:
            cp.add_implication(active, model.active[s - 1])
    cp.add(model.active[0] == 1)


def _clock_literals(model: Model) -> None:
    """One clock a segment; neighbours differ, absent segments keep the clock of the one before."""
    tables, cp = model.tables, model.cp
    for s in range(model.num_segments):
        z = [cp.new_bool_var(f"z{s}_{f}") for f in range(tables.num_clocks)]
        model.clock.append(z)
        cp.add_exactly_one(z)
        for k, table in enumerate(tables.kinds):
            for f in range(tables.num_clocks):
                there = np.flatnonzero(table.clock == f).tolist()
                if there:
                    cp.add(sum(model.counts[s, k, m] for m in there) <= table.count * z[f])
        if s:
            for now, before in zip(z, model.clock[s - 1], strict=True):
                cp.add(now + before <= 2 - model.active[s])
                cp.add(now - before <= model.active[s])
                cp.add(before - now <= model.active[s])
    if model.num_segments > 1 and tables.problem.cyclic:
        model.wrap = cp.new_bool_var("wrap")
        for first, last in zip(model.clock[0], model.clock[-1], strict=True):
            cp.add(first - last <= model.wrap)
            cp.add(first + last <= 2 - model.wrap)


def _costs(model: Model) -> None:
    tables, cp, problem = model.tables, model.cp, model.tables.problem
    if model.num_segments > 1:
        model.switches = sum(model.active[1:]) + (0 if model.wrap is None else model.wrap)
    counts = list(model.counts.items())

    def total(name: str) -> Expr:
        weights = [int(getattr(tables.kinds[k], name)[m]) for (_, k, m), _ in counts]
        return cp_model.LinearExpr.weighted_sum([v for _, v in counts], weights)

    model.time_us = total("time_us") + problem.switch_time_us * model.switches
    model.dynamic_mj = total("energy_mj") + problem.switch_energy_mj * model.switches
    model.changes = total("changes") + model.switches
    most_time = sum(t.count * int(t.time_us.max()) for t in tables.kinds)
    most_time += len(tables.chain) * problem.switch_time_us
    most = sum(t.count * int(t.energy_mj.max()) for t in tables.kinds)
    most += len(tables.chain) * problem.switch_energy_mj
    most += -(-problem.static_power_mw * most_time // 1_000_000)
    model.energy_mj = cp.new_int_var(0, most, "energy")
    # Energy rounded up to whole millijoules: scale * energy >= scale * dynamic + power * time, where
    # scale = 1e6 before the common factor is taken out.
    scale, power = static_row(problem.static_power_mw)
    cp.add(scale * model.energy_mj >= scale * model.dynamic_mj + power * model.time_us)


def static_row(static_power_mw: int) -> tuple[int, int]:
    """Smallest integers (s, p) with s mJ of energy = p us of static power."""
    factor = gcd(1_000_000, static_power_mw)
    return 1_000_000 // factor, static_power_mw // factor


def rows_of(model: Model, value_of: cp_model.CpSolver) -> Ints:
    """Table row of every span for the solver's solution, equal spans in the order of rows."""
    tables = model.tables
    picked = np.full(len(tables.chain), -1, np.int64)
    for s in range(model.num_segments):
        low = value_of.value(model.cut[s]) if model.cut else 0
        high = value_of.value(model.cut[s + 1]) if model.cut else len(tables.chain)
        for k in range(len(tables.kinds)):
            spots = low + np.flatnonzero(tables.chain[low:high] == k)
            rows = [m for m, v in enumerate(_of(model, s, k)) for _ in range(value_of.value(v))]
            picked[spots] = rows
    return picked
