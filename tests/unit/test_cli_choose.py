"""`kareus solve --choose`: the point of the frontier that a rule names becomes the schedule."""

import json
from pathlib import Path
from typing import Any

import pytest
from trace_samples import ddp_steps, document, write

from kareus.cli.main import main

pytest.importorskip("ortools")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three DDP steps of two ranks."""
    folder = tmp_path_factory.mktemp("job")
    write(folder / "rank0.json", document(ddp_steps()))
    write(folder / "rank1.json", document(ddp_steps(), rank=1))
    return folder


def solved(job: Path, tmp_path: Path, capsys: Capture, *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The printed document and the frontier it was chosen from."""
    command = ["solve", str(job), "--clocks", "advise", "-o", str(tmp_path / "s.json"), "--json"]
    assert main([*command, "--frontier", str(tmp_path / "f.json"), *words]) == 0
    return json.loads(capsys.readouterr().out), json.loads((tmp_path / "f.json").read_text())


def test_the_chosen_point_is_the_frontiers_own(job: Path, tmp_path: Path, capsys: Capture) -> None:
    least: dict[str, float] = {}
    for rule, value in {
        "least-energy": lambda p: p["energy_j"],
        "fastest": lambda p: p["time_us"],
        "edp": lambda p: p["energy_j"] * p["time_us"],
    }.items():
        found, frontier = solved(job, tmp_path, capsys, "--choose", rule)
        best = min(map(value, frontier["points"]))
        # The solver answers the chosen deadline anew and may do better there, never worse.
        assert value(found["predicted"]) <= best * 1.001
        least[rule] = found["predicted"]["energy_j"]
    assert least["least-energy"] <= least["edp"] <= least["fastest"]


def test_rules_and_limits_exclude_each_other(job: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["solve", str(job), "-o", "s.json", "--choose", "edp", "--deadline-ms", "5"])
    assert "not allowed with argument" in capsys.readouterr().err


def test_a_rule_nobody_can_keep_names_the_least_possible(job: Path, tmp_path: Path, capsys: Capture) -> None:
    target = tmp_path / "s.json"
    assert main(["solve", str(job), "-o", str(target), "--choose", "power=1W"]) == 4
    assert "the least possible is" in capsys.readouterr().err
    assert not target.exists()
    assert main(["solve", str(job), "-o", str(target), "--choose", "cheap"]) == 2
