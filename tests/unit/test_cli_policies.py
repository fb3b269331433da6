"""`kareus policies`: each policy on a small table, in both ways of printing, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from kareus.cli.main import main
from kareus.plan.policies.batch_size import BatchSizeSearch
from kareus.plan.policies.batch_size_file import begin

Capture = pytest.CaptureFixture[str]
FRONTIER = "time,energy\n1.0,300\n1.1,260\n1.5,240\n1.6,250\n"


def printed(capsys: Capture, *words: object) -> dict[str, Any]:
    """The document of a command; its table is printed too and must not be empty."""
    command = ["policies", *map(str, words)]
    assert main(command) == 0
    assert capsys.readouterr().out.strip()
    assert main([*command, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: Capture, *words: object) -> tuple[int, str]:
    code = main(["policies", *map(str, words)])
    out, err = capsys.readouterr()
    assert out == ""
    return code, err


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_points_by_a_rule_and_under_a_cap(tmp_path: Path, capsys: Capture) -> None:
    a, b = file(tmp_path, "a.csv", FRONTIER), file(tmp_path, "b.csv", FRONTIER)
    found = printed(capsys, "points", a, "--choose", "edp")
    assert found["jobs"][0]["point"] == "row 2"
    shared = printed(capsys, "points", a, b, "--cap-w", "2800", "--gpus", "8,2")
    # Eight GPUs 10 % slower (1,891 W) beat two GPUs 50 % slower (320 W): 0.8 against 1.0 GPUs lost.
    assert [job["point"] for job in shared["jobs"]] == ["row 2", "row 1"]
    assert refused(capsys, "points", a, b, "--cap-w", "2800", "--gpus", "8") == (
        2, "kareus policies: --gpus '8': expected a positive number for each of 2 jobs\n",
    )  # fmt: skip
    code, said = refused(capsys, "points", a, "--cap-w", "10")
    assert code == 4
    assert "the least the jobs can draw is 156.25 W" in said


def test_points_of_a_solved_frontier(tmp_path: Path, capsys: Capture) -> None:
    point = {"time_us": 1.0, "energy_j": 1.0}
    proven = {"status": "optimal", "bound_j": 1.0, "gap": 0.0, "certificate": "oracle"}
    document = {
        "schema": "kareus.step_frontier/1", "stock": point, "serialised": point, "chosen": point,
        "knee": -1, "least_energy": 1,
        "points": [{"time_us": 1e5, "energy_j": 90.0} | proven, {"time_us": 1.3e5, "energy_j": 80.0} | proven],
    }  # fmt: skip
    path = file(tmp_path, "f.json", json.dumps(document))
    assert printed(capsys, "points", path, "--choose", "power=700W")["jobs"][0]["time_s"] == pytest.approx(
        0.13
    )


def test_power_limits_by_each_rule(tmp_path: Path, capsys: Capture) -> None:
    log = file(
        tmp_path, "log.csv", "window_name,elapsed_time,gpu0_energy,gpu1_energy\n"
        "w_300,10,1500,1500\nw_200,10.5,1100,1100\nw_100,20,1000,1000\n",
    )  # fmt: skip
    chosen = {
        rule: printed(capsys, "power-limit", log, "--rule", rule)["jobs"][0]["chosen"]["power_limit_w"]
        for rule in ("cost", "energy", "time", "slowdown")
    }
    assert chosen == {"cost": 200, "energy": 100, "time": 300, "slowdown": 200}
    document = printed(capsys, "power-limit", log)
    assert (document["schema"], document["gpus"]) == ("kareus.power_limit_choice/1", 2)
    assert document["jobs"][0]["gpus"] == 2
    assert refused(capsys, "power-limit", log, "--eta", "2")[0] == 2
    assert refused(capsys, "power-limit", file(tmp_path, "a.csv", FRONTIER))[0] == 3


def test_gpus_of_all_jobs_stand_on_top_only_where_the_jobs_agree(tmp_path: Path, capsys: Capture) -> None:
    head = "model,dp,tp,pp,power_limit_0,power_limit_1,time,energy\n"
    small, large = "a,1,1,2,300,300,10,5000\n", "b,2,1,2,300,300,10,9000\n"
    mixed = printed(capsys, "power-limit", file(tmp_path, "m.csv", head + small + large))
    assert mixed["gpus"] is None
    assert [job["gpus"] for job in mixed["jobs"]] == [2, 4]
    assert printed(capsys, "power-limit", tmp_path / "m.csv", "--job", "b")["gpus"] == 4
    assert printed(capsys, "power-limit", tmp_path / "m.csv", "--gpus", "8")["gpus"] == 8


def test_a_pipeline_is_planned_and_written(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("ortools")
    rows = [
        f"{stage},{kind},{clock},{work * 1410 / clock},{60 * work * (0.3 + 0.7 * (clock / 1410) ** 2) + 8 * work}"
        for stage, load in ((0, 1.0), (1, 1.3))
        for kind, work in (("forward", 0.05 * load), ("backward", 0.1 * load))
        for clock in (1410, 1200, 1005, 900)
    ]
    profile = file(tmp_path, "p.csv", "stage,instruction,frequency,time,energy\n" + "\n".join(rows) + "\n")
    command = [
        "pipeline",
        profile,
        "--micro-batches",
        "4",
        "--blocking-w",
        "20",
        "-o",
        tmp_path / "plan.json",
    ]
    fastest = printed(capsys, *command)
    assert fastest["chosen"]["time_s"] <= fastest["max_clock"]["time_s"] * 1.0001
    assert fastest["chosen"]["energy_j"] < fastest["max_clock"]["energy_j"]
    written = json.loads((tmp_path / "plan.json").read_text())
    assert len(written["clocks"]) == 2 * 2 * 4
    assert len(written["frontier"]) == written["points"]
    waiting = printed(capsys, *command, "--straggler-s", fastest["chosen"]["time_s"] * 1.2)
    assert waiting["chosen"]["energy_j"] < fastest["chosen"]["energy_j"]
    assert refused(capsys, *command[:-4], "--blocking-w", "B200")[0] == 2
    assert refused(capsys, *command, "--choose", "energy=1J")[0] == 4


def test_carbon_is_followed_and_bounded(tmp_path: Path, capsys: Capture) -> None:
    points = file(tmp_path, "a.csv", FRONTIER)
    values = [(f"2026-01-01T{hour:02d}:00:00+00:00", 100 if hour % 2 else 800) for hour in range(12)]
    series = file(tmp_path, "s.csv", "timestamp,value\n" + "\n".join(f"{t},{v}" for t, v in values) + "\n")
    maps = file(
        tmp_path, "maps",
        json.dumps({"history": [{"datetime": t, "carbonIntensity": v} for t, v in values]}),
    )  # fmt: skip
    found = printed(capsys, "carbon", points, series, "--hours", "8", "--max-slowdown", "5", "--price", maps)
    fastest, _, chosen = found["runs"]
    assert chosen["time_s"] <= fastest["time_s"] * 1.05 * (1 + 1e-9)
    assert found["bound"]["footprint"] <= chosen["footprint"] < fastest["footprint"]
    assert chosen["money"] == pytest.approx(chosen["footprint"], rel=1e-6)  # the same series twice
    eta = printed(capsys, "carbon", points, maps, "--hours", "8", "--eta", "1", "--gpus", "4")
    assert eta["next"]["point"] == "row 3"
    assert set(eta["intervals"]) == {"row 3"}
    assert eta["runs"][0]["energy_j"] == pytest.approx(4 * fastest["energy_j"])
    assert refused(capsys, "carbon", points, maps, "--hours", "8", "--start", "soon")[0] == 2
    assert refused(capsys, "carbon", points, tmp_path / "absent", "--hours", "8")[0] == 3


def test_kernels_with_free_and_paid_switching(tmp_path: Path, capsys: Capture) -> None:
    table = file(
        tmp_path, "k.csv",
        "kernel_id,section,kernel,repeat,mem_mhz,core_mhz,time_change_pct,energy_change_pct,auto_time_ms,auto_energy_j\n"
        "0,fwd,GEMM,24,5001,auto,-2,-15,10.0,3.4\n1,fwd,LN,24,auto,1050,1,-29,0.4,0.14\n",
    )  # fmt: skip
    found = printed(capsys, "kernels", table, "--switch-ms", "0.01")
    plans = {plan["name"]: plan for plan in found["plans"]}
    assert (
        plans["whole step"]["energy_j"] < plans["each kernel alone"]["energy_j"] < found["stock"]["energy_j"]
    )
    dear = printed(capsys, "kernels", table, "--switch-ms", "150")["plans"][-1]
    assert dear["switches"] == 0
    assert dear["energy_j"] <= found["stock"]["energy_j"]
    assert refused(capsys, "kernels", table, "--tolerance", "-60")[0] == 2


def test_a_search_for_the_batch_size_survives_between_commands(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "job.json"
    cost = {64: 130.0, 128: 100.0, 256: 80.0}
    assert main(["policies", "batch-size", str(path), "--sizes", "64,128,256", "--default", "128"]) == 0
    capsys.readouterr()
    beside = BatchSizeSearch([64, 128, 256], 128)
    for run in range(20):
        assert main(["policies", "batch-size", str(path), "--next", "--json"]) == 0
        size = json.loads(capsys.readouterr().out)["next"]
        assert size == beside.next()
        spent = cost[size] * (1 + 0.01 * (run % 3))
        beside.report(size, spent, True)
        assert main(["policies", "batch-size", str(path), "--report", str(size), str(spent)]) == 0
        assert "best so far" in capsys.readouterr().out
    assert beside.best == 256
    assert refused(capsys, "batch-size", path, "--report", "100", "5")[0] == 2
    assert refused(capsys, "batch-size", path, "--missed")[0] == 2
    assert refused(capsys, "batch-size", path, "--sizes", "1,2", "--default", "1")[0] == 2
    edited = json.loads(path.read_text())
    edited["events"][0]["size"] = 64
    path.write_text(json.dumps(edited))
    code, said = refused(capsys, "batch-size", path, "--next")
    assert code == 3
    assert "the file was edited" in said


def test_records_begin_with_settings_that_make_sense() -> None:
    from kareus.errors import UsageError

    for sizes, default in (([], 1), ([0, 2], 2), ([1, 2], 3)):
        with pytest.raises(UsageError, match="expected"):
            begin(sizes, default)
