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


HUGE = [
    (lambda d: d["kinds"][0]["options"][0].update(time_us=10**24), r"options\[0\]\.time_us: expected at most 1e\+15"),
    (lambda d: d.update(static_power_mw=10**16), "static_power_mw: expected at most"),
    (lambda d: d["kinds"][0]["options"][0].update(time_us=10**13), r"chain: expected a step of at most 1e\+12 us"),
    (lambda d: d["limits"].update(time_us=-5), "limits.time_us: expected a number that is not negative, found -5"),
    (lambda d: d["kinds"][0]["options"][0].update(time_us=1.5), r"time_us: Expected `int`.*rounded up"),
    (lambda d: d.pop("schema"), "found None; convert"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), HUGE)
def test_numbers_without_sense_are_named(damage, message: str) -> None:
    broken = document()
    broken["chain"] = [0, 0, 0]
    damage(broken)
    with pytest.raises(ProblemError, match=message):
        problem_from_json(json.dumps(broken).encode())


def test_the_example_of_the_readme_runs_and_its_frontier_is_judged(tmp_path: Path) -> None:
    pytest.importorskip("ortools")
    readme = (Path(__file__).resolve().parents[2] / "solver/README.md").read_text()
    (tmp_path / "problem.json").write_text(readme.partition("```json\n")[2].partition("```")[0])
    done = run("problem.json", "-o", "frontier.json", "-q", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    judged = run("problem.json", "--judge", "frontier.json", cwd=tmp_path)
    assert judged.returncode == 0
    assert all(line.endswith("valid") for line in judged.stdout.splitlines())
    frontier = json.loads((tmp_path / "frontier.json").read_text())
    assert len(judged.stdout.splitlines()) == len(frontier["points"]) > 1
    frontier["points"][0]["energy_mj"] -= 1
    frontier["points"][1]["choices"] = [0] * 6
    (tmp_path / "frontier.json").write_text(json.dumps(frontier))
    judged = run("problem.json", "--judge", "frontier.json", cwd=tmp_path)
    assert judged.returncode == 3
    first, second, *_ = judged.stdout.splitlines()
    assert "the file says" in first
    assert "exceeds the limit of 7000 us" in second


@pytest.mark.parametrize(
    "words", [("--gap", "1"), ("--gap", "nan"), ("--time-limit", "0"), ("--points", "0")]
)
def test_options_without_sense_are_usage_errors(words: tuple[str, str], tmp_path: Path) -> None:
    done = run("problem.json", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert words[0] in done.stderr


def test_one_point_names_stock_too(tmp_path: Path) -> None:
    pytest.importorskip("ortools")
    (tmp_path / "problem.json").write_bytes(problem_to_json(tiny_problem(3)))
    both = [
        json.loads(run("problem.json", "-q", *words, cwd=tmp_path).stdout)
        for words in ((), ("--objective", "time"))
    ]
    assert both[0]["stock_time_us"] == both[1]["stock_time_us"] > 0
