"""What `kareus solve` chooses among plans that are nearly equal: by worst case, by fewest changes, with finalists."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kareus.cli.main import main
from kareus.schedule import Path as Way
from kareus.schedule import Schedule

TRACES = Path(__file__).parents[2] / "traces"
JOB = TRACES / "fsdp2-nvlink-collected"
PROFILE = TRACES / "profiles/h200-nvlink.json"

Capture = pytest.CaptureFixture[str]
Solve = Callable[..., tuple[dict[str, Any], Schedule]]


@pytest.fixture
def solve(tmp_path: Path, capsys: Capture) -> Solve:
    """Runs the command; returns its document and the schedule it wrote to tmp_path/plan.json."""

    def run(*words: str, profile: Path = PROFILE) -> tuple[dict[str, Any], Schedule]:
        output = tmp_path / "plan.json"
        assert main(["solve", str(JOB), "--profile", str(profile), "--json", "-o", str(output), *words]) == 0
        return json.loads(capsys.readouterr().out), Schedule.load(output)

    return run


def unsure(folder: Path, **intervals: tuple[float, float]) -> Path:
    """The shipped profile with wider intervals (relative, below and above) of some constants of its fit."""
    document = json.loads(PROFILE.read_text())
    for name, (below, above) in intervals.items():
        constant = document["fit"]["constants"][name.replace("__", ".")]
        constant["low"] = constant["value"] * (1 - below)
        constant["high"] = constant["value"] * (1 + above)
    target = folder / "unsure.json"
    target.write_text(json.dumps(document))
    return target


def copies(schedule: Schedule) -> int:
    return sum(d.path is Way.COPY_ENGINE for d in schedule.decisions)


def test_robust_uses_less_of_what_is_known_badly(solve: Solve, tmp_path: Path) -> None:
    badly_known = unsure(tmp_path, copy_engine__gb_per_s=(0.9, 0.9), copy_engine__j_per_gb=(1.0, 4.0))
    well, plan = solve()
    usual, same = solve(profile=badly_known)
    robust, careful = solve("--robust", profile=badly_known)
    assert copies(plan) == copies(same) > copies(careful)  # nominal figures do not know what is unsure
    assert usual["predicted"] == well["predicted"]
    assert usual["worst_case"]["time_us"] > well["worst_case"]["time_us"] * 1.005
    assert robust["worst_case"]["time_us"] < usual["worst_case"]["time_us"] * 0.995
    assert robust["predicted"]["time_us"] >= usual["predicted"]["time_us"]
    assert (usual["bound"]["of"], robust["bound"]["of"]) == ("predicted", "worst_case")
    assert robust["bound"]["time_us"] <= robust["worst_case"]["time_us"]
    assert same.bound is not None
    assert careful.bound is None  # it would be set against nominal figures


def test_robust_prefers_what_was_recorded_to_what_a_poor_model_promises(solve: Solve, tmp_path: Path) -> None:
    document = json.loads(PROFILE.read_text())
    document["fit"]["constants"]["time_residual"] |= {"value": 0.5, "low": 0.4, "high": 0.6}
    poor = tmp_path / "poor.json"
    poor.write_text(json.dumps(document))
    usual, plan = solve(profile=poor)
    robust, careful = solve("--robust", profile=poor)
    assert plan.decisions
    assert not careful.decisions
    assert usual["worst_case"]["time_us"] > 1.5 * usual["stock"]["time_us"]
    assert robust["worst_case"]["time_us"] < 1.1 * robust["stock"]["time_us"]  # the recording's own spread


def test_within_noise_the_plan_with_fewer_changes_wins(solve: Solve, monkeypatch: pytest.MonkeyPatch) -> None:
    calm, _ = solve()
    for module in ("planner", "improve"):
        monkeypatch.setattr(f"kareus.plan.{module}.WITHIN_NOISE", 0.0)
    best, _ = solve()
    assert calm["changed_collectives"] < best["changed_collectives"]
    lost = calm["simulated"]["scheduled"]["time_us"] / best["simulated"]["scheduled"]["time_us"] - 1
    assert 0 <= lost <= 1.1e-3


def test_the_same_input_gives_the_same_schedule(solve: Solve) -> None:
    plans = []
    for _ in range(2):
        document, plan = solve("--deterministic-time", "2", "--time-limit", "60")
        assert plan.proof is not None
        plans.append((plan.decisions, plan.clocks, plan.predicted, document["bound"], document["gap"]))
    assert plans[0] == plans[1]


def test_finalists_are_other_plans_that_simulate_alike(solve: Solve, tmp_path: Path, capsys: Capture) -> None:
    document, chosen = solve("--finalists", "2")
    files = sorted(tmp_path.glob("plan-*.json"))
    assert [file.name for file in files] == ["plan-1.json", "plan-2.json"]
    assert chosen.proof is not None
    assert chosen.proof.close_by == document["improver"]["finalists"] >= 2
    for file in files:
        other = Schedule.load(file)
        assert other.decisions != chosen.decisions
        assert len(other.decisions) >= len(chosen.decisions)
        assert main(["simulate", str(JOB), "--schedule", str(file), "--profile", str(PROFILE), "--json"]) == 0
        played = json.loads(capsys.readouterr().out)["scheduled"]["time_us"]
        assert played == pytest.approx(document["simulated"]["scheduled"]["time_us"], rel=2.1e-3)
