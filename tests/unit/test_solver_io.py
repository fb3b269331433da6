"""The problem and frontier formats and the command that reads and writes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from solver_cases import tiny_problem

from solver import ProblemError
from solver.io import frontier_from_json, problem_from_json, problem_to_json, read_problem


def run(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.run(
        [sys.executable, "-m", "solver", *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def document() -> dict[str, object]:
    loaded = json.loads(problem_to_json(tiny_problem(3)))
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.parametrize("seed", range(5))
def test_problems_survive_a_round_trip(seed: int) -> None:
    problem = tiny_problem(seed)
    assert problem_from_json(problem_to_json(problem)) == problem


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d.update(schema="kareus.problem/2"), r"\$\.schema: expected 'kareus.problem/1'"),
        (lambda d: d.update(extra=1), r"\$\.extra: unknown field"),
        (lambda d: d["kinds"][0]["options"][1].update(tme_us=1), r"\$\.kinds\[0\]\.options\[1\]\.tme_us"),
        (lambda d: d["kinds"][0]["options"][1].update(time_us="x"), r"\$\.kinds\[0\]\.options\[1\]\.time_us"),
        (lambda d: d["kinds"][0]["options"][0].update(time_us=-1), r"kinds\[0\]\.options\[0\]\.time_us"),
        (lambda d: d.pop("chain"), "missing required field `chain`"),
    ],
)
def test_damage_is_named_by_json_path(damage, message: str) -> None:
    broken = document()
    damage(broken)
    with pytest.raises(ProblemError, match=message):
        problem_from_json(json.dumps(broken).encode())


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ProblemError, match=r"nowhere\.json: cannot be read"):
        read_problem("nowhere.json")


def test_command_writes_a_frontier(tmp_path: Path) -> None:
    pytest.importorskip("ortools")
    (tmp_path / "p.json").write_bytes(problem_to_json(tiny_problem(3)))
    done = run("p.json", "-o", "f.json", "--points", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    curve = frontier_from_json((tmp_path / "f.json").read_bytes())
    assert curve.points
    assert json.loads((tmp_path / "f.json").read_text())["schema"] == "kareus.frontier/1"


def test_command_exit_codes(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_bytes(problem_to_json(tiny_problem(3)))
    (tmp_path / "bad.json").write_text("{")
    assert run("p.json", "--points", "0", cwd=tmp_path).returncode == 2
    bad = run("bad.json", cwd=tmp_path)
    assert (bad.returncode, "bad.json: $: expected JSON" in bad.stderr) == (3, True)
    pytest.importorskip("ortools")
    infeasible = run("p.json", "--objective", "energy", "--max-time-us", "1", "-q", cwd=tmp_path)
    assert infeasible.returncode == 4, infeasible.stderr
    assert "is needed, the limit is 1 us" in infeasible.stderr
