"""The commands as a user meets them: exit codes, one message, the documents they promise, files that fit together."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from trace_samples import ddp_steps, document, write

from kareus.cli.main import SUBCOMMANDS, main
from kareus.cli.solve import num_bytes
from kareus.errors import UsageError
from kareus.schedule import CollectiveKey, Decision, Fingerprint, Schedule

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three DDP steps of two ranks; the second arrives late."""
    folder = tmp_path_factory.mktemp("job")
    write(folder / "rank0.json", document(ddp_steps()))
    write(folder / "rank1.json", document(ddp_steps(wait=20.0), rank=1))
    return folder


@pytest.fixture(scope="module")
def solved(job: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the schedule and frontier that `solve` made of the job."""
    folder = tmp_path_factory.mktemp("solved")
    code = main(["solve", str(job), "--max-slowdown", "5%", "-o", str(folder / "s.json"),
                 "--frontier", str(folder / "f.json")])  # fmt: skip
    assert code == 0
    return folder


def failed(capsys: Capture, *words: object) -> tuple[int, str]:
    """Run a command that is to fail: its exit code and its single line on stderr, nothing on stdout."""
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    complaints = [line for line in err.splitlines() if line.startswith(f"kareus {words[0]}: ")]
    assert out == ""
    assert len(complaints) == 1
    assert "Traceback" not in err
    return code, complaints[0]


def printed(capsys: Capture, *words: object) -> dict[str, Any]:
    """Run a command with --json: the one document on stdout."""
    assert main([*(str(word) for word in words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


# --- folders and files that cannot be used


@pytest.mark.parametrize("command", ["inspect", "solve", "simulate", "compare", "report"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file or directory"),
        ({}, "holds no trace"),
        ({"rank0.json": '{"schemaVersion": 1, "traceEv'}, "rank0.json"),
        (
            {"rank0.json": json.dumps(document([e for e in ddp_steps() if e.get("cat") != "kernel"]))},
            "no GPU kernel",
        ),
    ],
    ids=["absent", "empty", "half", "without GPU events"],
)
def test_traces_that_cannot_be_used(
    command: str, content: dict[str, str] | None, said: str, tmp_path: Path, capsys: Capture
) -> None:
    folder = tmp_path / "trace"
    if content is not None:
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(text)
    Schedule(fingerprint=Fingerprint(wrapper="ddp", world_size=2, units=())).save(str(tmp_path / "s.json"))
    flags = {
        "solve": ["-o", tmp_path / "new.json"],
        "simulate": ["--schedule", tmp_path / "s.json"],
        "report": ["--schedule", tmp_path / "s.json", "-o", tmp_path / "new.html"],
    }
    code, message = failed(capsys, command, folder, *flags.get(command, []))
    assert code == 3
    assert said in message
    assert str(folder) in message
    assert not list(tmp_path.glob("new.*"))


def test_a_file_cut_among_its_steps_is_used_and_said_to_be_cut(tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path / "rank0.json", json.dumps(document(ddp_steps()))[:-1500])
    assert main(["inspect", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "rank 0" in out
    assert "rank0.json: ends after" in err


def test_a_missing_rank_is_named_and_the_others_are_used(tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path / "rank0.json", document(ddp_steps()))
    assert [rank["rank"] for rank in printed(capsys, "inspect", tmp_path)["ranks"]] == [0]
    assert main(["solve", str(tmp_path), "-o", str(tmp_path / "s.json")]) == 0
    assert "no trace of rank 1" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["simulate", "report"])
def test_a_schedule_of_another_model_is_refused(
    command: str, job: Path, tmp_path: Path, capsys: Capture
) -> None:
    other = Schedule(fingerprint=Fingerprint(wrapper="fsdp2", world_size=4, units=()))
    other.save(str(tmp_path / "s.json"))
    more = ["-o", tmp_path / "r.html"] if command == "report" else []
    code, message = failed(capsys, command, job, "--schedule", tmp_path / "s.json", *more)
    assert code == 7
    assert "schedule is for fsdp2, the model is wrapped with ddp" in message
    assert "schedule is for 4 ranks, the job has 2" in message


@pytest.mark.parametrize("flag", ["--profile", "--schedule", "--frontier"])
def test_a_file_of_another_kind_is_named(flag: str, job: Path, solved: Path, capsys: Capture) -> None:
    wrong = {"--profile": "s.json", "--schedule": "f.json", "--frontier": "s.json"}[flag]
    files: dict[str, object] = {"--schedule": solved / "s.json", flag: solved / wrong}
    words = [word for pair in files.items() for word in pair]
    code, message = failed(capsys, "report", job, *words, "-o", solved / "never.html")
    assert code == 3
    assert str(solved / wrong) in message
    assert "this is another kind of file" in message
    assert not (solved / "never.html").exists()


# --- limits


@pytest.mark.parametrize(
    ("limit", "least"),
    [(("--deadline-ms", "0.001"), r"at least \d+ us"), (("--energy-budget-j", "0.01"), r"at least \d+ mJ")],
)
def test_an_infeasible_limit_names_the_least_possible(
    limit: tuple[str, str], least: str, job: Path, tmp_path: Path, capsys: Capture
) -> None:
    code = main(["solve", str(job), "-o", str(tmp_path / "s.json"), "--json", *limit])
    assert code == 4
    assert re.search(least, capsys.readouterr().err)
    assert not (tmp_path / "s.json").exists()


def test_the_named_least_is_met_and_one_less_is_not(job: Path, tmp_path: Path, capsys: Capture) -> None:
    fastest = printed(capsys, "solve", job, "-o", tmp_path / "s.json")["bound"]["time_us"]
    met = printed(capsys, "solve", job, "-o", tmp_path / "s.json", "--deadline-ms", fastest / 1000)
    assert met["predicted"]["time_us"] <= fastest
    assert main(["solve", str(job), "-o", str(tmp_path / "t.json"), "--json", "--deadline-ms",
                 str((fastest - 1) / 1000)]) == 4  # fmt: skip


def test_limits_hold_and_looser_ones_never_cost_more(job: Path, tmp_path: Path, capsys: Capture) -> None:
    found = [
        printed(capsys, "solve", job, "-o", tmp_path / "s.json", "--max-slowdown", slowdown)
        for slowdown in ("0%", "5", "20%")
    ]
    for document_, allowed in zip(found, (1.0, 1.05, 1.2), strict=True):
        objective = document_["objective"]
        value = document_["predicted"]["energy_j" if objective == "energy" else "time_us"]
        bound = document_["bound"]["energy_j" if objective == "energy" else "time_us"]
        assert bound <= value <= bound * 1.001 + 1e-9  # "optimal" is what status says
        assert document_["status"] == "optimal"
        assert document_["predicted"]["time_us"] <= allowed * document_["stock"]["time_us"] + 1
    energies = [document_["predicted"]["energy_j"] for document_ in found]
    assert energies == sorted(energies, reverse=True)


def test_an_energy_budget_is_kept(job: Path, tmp_path: Path, capsys: Capture) -> None:
    stock = printed(capsys, "solve", job, "-o", tmp_path / "s.json")["stock"]["energy_j"]
    found = printed(capsys, "solve", job, "-o", tmp_path / "s.json", "--energy-budget-j", stock)
    assert found["objective"] == "time"
    assert found["predicted"]["energy_j"] <= stock


# --- flags


@pytest.mark.parametrize(
    "flags",
    [
        ("--max-slowdown", "-3"), ("--max-slowdown", "much"), ("--deadline-ms", "0"), ("--time-limit", "nan"),
        ("--energy-budget-j", "-1"), ("--finalists", "-1"), ("--rank", "7"), ("--step", "70"),
    ],
)  # fmt: skip
def test_values_that_make_no_sense(
    flags: tuple[str, str], job: Path, tmp_path: Path, capsys: Capture
) -> None:
    code, message = failed(capsys, "solve", job, "-o", tmp_path / "s.json", *flags)
    assert code == 2
    assert flags[0] in message
    assert not (tmp_path / "s.json").exists()


@pytest.mark.parametrize(
    "words",
    [
        (), ("nonsense",), ("solve", "DIR"), ("solve", "DIR", "-o", "s", "--max-slowdown", "1", "--deadline-ms", "1"),
        ("report", "DIR"), ("run", "--profile", "a", "--schedule", "b", "--", "x"), ("inspect", "DIR", "--js"),
    ],
)  # fmt: skip
def test_a_command_line_that_cannot_be_read_is_usage(words: tuple[str, ...], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: kareus")


@pytest.mark.parametrize("module", SUBCOMMANDS)
def test_every_command_explains_itself_with_an_example(module: str, capsys: Capture) -> None:
    name = module.replace("_", "-")
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(f"examples?: (sudo )?kareus {name} ", text)


def test_a_folder_that_is_not_there_is_found_before_solving(
    job: Path, tmp_path: Path, capsys: Capture
) -> None:
    started: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kareus.cli.solve.make_plan", lambda *_, **__: started.append("solve"))
        for flags in (("-o", tmp_path / "none" / "s.json"),
                      ("-o", tmp_path / "s.json", "--frontier", tmp_path / "none" / "f.json")):  # fmt: skip
            code, message = failed(capsys, "solve", job, *flags)
            assert code == 3
            assert str(tmp_path / "none") in message
    assert started == []


# --- documents and files


def test_every_document_names_its_schema_and_keeps_its_fields(
    job: Path, solved: Path, capsys: Capture
) -> None:
    found = printed(capsys, "inspect", job)
    assert found["schema"] == "kareus.inspect/1"
    assert {"time_us", "compute_us", "comm_us", "exposed_comm_us", "idle_us"} <= set(
        found["ranks"][0]["steps"][0]
    )
    found = printed(capsys, "solve", job, "-o", solved / "again.json")
    assert found["schema"] == "kareus.solve/1"
    assert {"status", "stock", "predicted", "bound", "gap", "solve_s"} <= set(found)
    found = printed(capsys, "simulate", job, "--schedule", solved / "s.json")
    assert found["schema"] == "kareus.simulate/1"
    assert {"stock", "scheduled", "measured", "composition_error"} <= set(found)
    found = printed(capsys, "compare", job)
    assert found["schema"] == "kareus.compare/1"
    assert all({"name", "time_us", "energy_j", "source", "needs"} <= set(row) for row in found["policies"])


def test_what_solve_writes_is_what_report_reads(job: Path, solved: Path, capsys: Capture) -> None:
    page = solved / "r.html"
    code = main(["report", str(job), "--schedule", str(solved / "s.json"), "--frontier",
                 str(solved / "f.json"), "-o", str(page), "--perfetto", str(solved / "p.json")])  # fmt: skip
    assert (code, capsys.readouterr().err.count("kareus report:")) == (0, 0)
    text = page.read_text()
    for mark in ("stock", "serialised", "chosen"):
        assert mark in text
    assert json.loads((solved / "p.json").read_text())["traceEvents"]


def test_the_frontier_marks_stock_and_serialised_and_none_of_its_points_is_dominated(solved: Path) -> None:
    frontier = json.loads((solved / "f.json").read_text())
    assert frontier["serialised"]["time_us"] > frontier["stock"]["time_us"]
    points = [(p["time_us"], p["energy_j"]) for p in frontier["points"]]
    assert points == sorted(points)
    assert [e for _, e in points] == sorted((e for _, e in points), reverse=True)
    assert len(set(points)) == len(points)


def test_reset_clocks_without_a_journal_has_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["reset-clocks"]) == 0
    assert "nothing to undo" in capsys.readouterr().out


def test_an_interrupt_is_130_and_one_line(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kareus.cli.inspect.TraceSet.open", interrupt)
    assert failed(capsys, "inspect", job) == (130, "kareus inspect: interrupted")


def test_a_changed_decision_is_simulated_as_such(job: Path, solved: Path, capsys: Capture) -> None:
    stock = Schedule.load(str(solved / "s.json"))
    key = CollectiveKey(kind="all_reduce", unit="bucket.0", phase="backward")
    Schedule(fingerprint=stock.fingerprint, decisions=(Decision(collective=key, serialise=True),)).save(
        str(solved / "serial.json")
    )
    found = printed(capsys, "simulate", job, "--schedule", solved / "serial.json")
    assert found["scheduled"]["exposed_comm_us"] > found["stock"]["exposed_comm_us"]


@pytest.mark.parametrize(
    ("text", "size"), [("500MB", 500_000_000), ("1.5 GiB", 3 << 29), ("1000", 1000), ("0", 0), (None, None)]
)
def test_sizes_are_read_in_bytes(text: str | None, size: int | None) -> None:
    assert num_bytes(text) == size


@pytest.mark.parametrize("text", ["-1MB", "much", "5 parsecs", "", "1e9"])
def test_a_size_that_is_none_says_what_is_expected(text: str) -> None:
    with pytest.raises(UsageError, match=r"--memory-limit .*expected a size such as 500MB"):
        num_bytes(text)
