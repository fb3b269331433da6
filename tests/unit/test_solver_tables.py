"""Options that cannot be part of a best plan are left out, and no others."""

from __future__ import annotations

from dataclasses import replace

from solver import Limits, Option, Problem, SpanKind
from solver.tables import build_tables

HEAVY = Option(label="heavy", clock=0, time_us=100, energy_mj=10, memory_bytes=50)
LIGHT = Option(label="light", clock=0, time_us=101, energy_mj=11, memory_bytes=10)
PROBLEM = Problem(clocks_mhz=(1000,), kinds=(SpanKind(name="k", options=(HEAVY, LIGHT)),), chain=(0, 0))


def kept(problem: Problem) -> list[str]:
    tables = build_tables(problem)
    assert tables is not None
    return [problem.kinds[0].options[m].label for m in tables.kinds[0].origin]


def test_memory_saves_an_option_only_where_memory_is_limited() -> None:
    assert kept(PROBLEM) == ["heavy"]
    assert kept(replace(PROBLEM, limits=Limits(memory_bytes=60))) == ["heavy", "light"]
    assert kept(replace(PROBLEM, limits=Limits(memory_bytes=40))) == ["light"]


def test_fewer_changes_save_an_option() -> None:
    calm = replace(LIGHT, changes=0)
    busy = replace(HEAVY, changes=1)
    problem = replace(PROBLEM, kinds=(SpanKind(name="k", options=(busy, calm)),))
    assert kept(problem) == ["heavy", "light"]
