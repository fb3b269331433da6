"""Published optima of multi-mode project scheduling (PSPLIB j10 to j20), read in place.

Most of the set is marked slow; a sample of each size runs always.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

pytest.importorskip("ortools")

from solver import Status
from solver.project import Mode, Operation, Project, project_violations, solve_project

SHARED = Path(os.environ.get("KAREUS_SHARED", Path(__file__).parents[3] / "shared"))
DATA = SHARED / "data" / "solver" / "psplib_mm"
SIZES = ("j10", "j12", "j14", "j16", "j18", "j20")

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"published project instances not at {DATA}; set KAREUS_SHARED"
)


def read_project(path: Path) -> Project:
    """Reader of the .mm format: precedence, requests by job and mode, availabilities."""
    lines = path.read_text().splitlines()
    renewable = int(re.search(r"renewable\s*:\s*(\d+)\s+R", "\n".join(lines)).group(1))
    precedence = lines.index("PRECEDENCE RELATIONS:") + 2
    requests = lines.index("REQUESTS/DURATIONS:") + 3
    successors: list[tuple[int, ...]] = []
    for line in lines[precedence:]:
        if line.startswith("*"):
            break
        successors.append(tuple(int(x) - 1 for x in line.split()[3:]))
    modes: list[list[Mode]] = []
    for line in lines[requests:]:
        if line.startswith("*"):
            break
        fields = [int(x) for x in line.split()]
        if not line.startswith("     "):  # a new job begins with its number
            modes.append([])
            fields = fields[1:]
        demand = tuple(fields[2:])
        modes[-1].append(Mode(duration=fields[1], renewable=demand[:renewable], consumed=demand[renewable:]))
    capacity = [int(x) for x in lines[lines.index("RESOURCEAVAILABILITIES:") + 2].split()]
    return Project(
        operations=tuple(
            Operation(name=str(i + 1), modes=tuple(m), successors=s)
            for i, (m, s) in enumerate(zip(modes, successors, strict=True))
        ),
        renewable=tuple(capacity[:renewable]),
        consumable=tuple(capacity[renewable:]),
    )


def published(size: str) -> dict[str, int | None]:
    """Optimum of each instance by file name, None where none is feasible (16384 in the tables)."""
    optima: dict[str, int | None] = {}
    for line in (DATA / f"{size}opt.mm").read_text().splitlines():
        fields = line.split(",")
        if len(fields) >= 4 and fields[0].strip().isdigit():
            parameter, instance, makespan = (int(x) for x in fields[:3])
            optima[f"{size}{parameter}_{instance}.mm"] = None if makespan == 16384 else makespan
    return optima


def best_known(size: str) -> dict[str, int | None]:
    """Best published makespan of each j30 instance by file name; not all of them are proven optimal."""
    best: dict[str, int | None] = {}
    for line in (DATA / f"{size}hrs.mm").read_text().splitlines():
        fields = line.split(",")
        if len(fields) >= 4 and fields[0].strip().isdigit():
            parameter, instance, makespan = (int(x) for x in fields[:3])
            best[f"{size}{parameter}_{instance}.mm"] = makespan
    return best


def expect_published(size: str, step: int) -> None:
    optima = published(size)
    files = sorted((DATA / size).glob("*.mm"))[::step]
    assert files
    for file in files:
        project = read_project(file)
        solution = solve_project(project, time_limit_s=150.0)
        if optima[file.name] is None:
            assert solution.status is Status.INFEASIBLE, file.name
            continue
        assert solution.status is Status.OPTIMAL, file.name
        assert solution.makespan == optima[file.name], file.name
        assert project_violations(project, solution.starts, solution.modes) == []


@pytest.mark.parametrize("size", SIZES)
def test_a_sample_equals_the_published_optimum(size: str) -> None:
    expect_published(size, 9)


@pytest.mark.slow
@pytest.mark.timeout(900)  # seconds alone on a machine, minutes beside other work
@pytest.mark.parametrize(
    ("size", "step"), [("j10", 1), ("j12", 1), ("j14", 1), ("j16", 1), ("j18", 3), ("j20", 3)]
)
def test_more_instances_equal_the_published_optimum(size: str, step: int) -> None:
    # All of j18 and j20 (`bench_solver.py projects`) take minutes with the second search.
    expect_published(size, step)


def test_a_schedule_that_overlaps_too_much_is_named() -> None:
    busy = Operation(name="a", modes=(Mode(duration=4, renewable=(3,)),))
    project = Project(operations=(busy, busy), renewable=(5,))
    assert project_violations(project, (0, 3), (0, 0)) == ["resource 0: 6 of 5 in use at 3"]
    assert project_violations(project, (0, 4), (0, 0)) == []
