"""A memory limit that nothing meets names the least memory, by brute force."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("ortools")

from solver_cases import all_plans, tiny_problem

from solver import Limits, Status, judge, solve


def test_the_least_memory_named_is_that_of_brute_force() -> None:
    asked = 0
    for seed in range(12):
        problem = tiny_problem(seed)
        fits = [j.memory_bytes for p in all_plans(problem) if not (j := judge(problem, p)).violations]
        if not fits or not min(fits):
            continue
        asked += 1
        found = solve(replace(problem, limits=Limits(memory_bytes=min(fits) - 1)))
        assert found.status is Status.INFEASIBLE
        assert f"memory: at least {min(fits)} bytes are needed" in found.reason
    assert asked
