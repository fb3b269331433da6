"""`kareus run` sets the environment that attach reads and becomes the job."""

import argparse
import os
import sys
from pathlib import Path

import pytest

from kareus.cli import run
from kareus.errors import InputError, UsageError
from kareus.schedule import Fingerprint, Schedule


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    run.add_parser(parser.add_subparsers())
    return parser.parse_args(["run", *words])


def configured(*words: str, before: dict[str, str] | None = None) -> dict[str, str]:
    environment = dict(before or {})
    run.configure(parse(*words), environment)
    return environment


def test_collect_makes_the_folder_and_passes_the_window(tmp_path: Path) -> None:
    found = configured(
        "--collect", str(tmp_path / "a" / "b"), "--wait", "0", "--active", "2", "--max-mb", "1.5", "--", "x"
    )
    assert found == {
        "KAREUS_COLLECT": str(tmp_path / "a" / "b"),
        "KAREUS_COLLECT_WAIT": "0",
        "KAREUS_COLLECT_ACTIVE": "2",
        "KAREUS_COLLECT_MAX_MB": "1.5",
    }
    assert (tmp_path / "a" / "b").is_dir()


def test_a_role_replaces_the_one_in_the_environment(tmp_path: Path) -> None:
    schedule = tmp_path / "s.json"
    Schedule(fingerprint=Fingerprint(wrapper="ddp", world_size=2, units=())).save(str(schedule))
    before = {"KAREUS_COLLECT": "/old", "KAREUS_DISABLE": "1", "HOME": "/h"}
    found = configured("--schedule", str(schedule), "--", "x", before=before)
    assert found == {"KAREUS_SCHEDULE": str(schedule), "HOME": "/h"}


def test_a_schedule_can_be_recorded_while_it_is_replayed(tmp_path: Path) -> None:
    schedule = tmp_path / "s.json"
    Schedule(fingerprint=Fingerprint(wrapper="ddp", world_size=2, units=())).save(str(schedule))
    found = configured("--schedule", str(schedule), "--collect", str(tmp_path / "t"), "--", "x")
    assert found == {"KAREUS_SCHEDULE": str(schedule), "KAREUS_COLLECT": str(tmp_path / "t")}


def test_without_a_role_the_environment_stays() -> None:
    assert configured("--", "x", before={"KAREUS_COLLECT": "/old"}) == {"KAREUS_COLLECT": "/old"}


def test_a_schedule_that_cannot_be_read_is_found_before_the_job_starts(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        configured("--schedule", str(tmp_path / "s.json"), "--", "x")


@pytest.mark.parametrize(
    "words",
    [
        ("--wait", "3", "--", "x"),
        ("--budget", "3", "--", "x"),
        ("--collect", "d", "--active", "0", "--", "x"),
        ("--collect", "d", "--stock", "--", "x"),
        ("--collect", "d", "--profile", "p.json", "--", "x"),
    ],
)
def test_flags_without_their_role_or_out_of_range_are_refused(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        configured(*words)


def test_no_command_and_unknown_commands_are_refused() -> None:
    with pytest.raises(UsageError, match="no command"):
        run.run(parse())
    with pytest.raises(UsageError, match="no such program"):
        run.run(parse("--", "no-such-program-anywhere"))


def test_the_job_replaces_the_process_with_its_arguments_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[object] = []
    monkeypatch.setattr(os, "execve", lambda *call: called.extend(call))
    run.run(parse("--collect", str(tmp_path), "--", sys.executable, "-c", "pass", "--wait", "9"))
    program, command, environment = called
    assert program == sys.executable
    assert command == [sys.executable, "-c", "pass", "--wait", "9"]
    assert environment["KAREUS_COLLECT"] == str(tmp_path)  # type: ignore[index]
    assert "KAREUS_COLLECT_WAIT" not in environment  # type: ignore[operator]
