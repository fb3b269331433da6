"""`kareus run`: starts a training job with the settings that `kareus.attach` in it reads.

The script keeps its two lines; what they do (record, replay, measure) is decided here. Nothing is
wrapped: the command replaces this process.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from kareus.errors import UsageError
from kareus.schedule import Schedule

ROLES = ("KAREUS_COLLECT", "KAREUS_SCHEDULE", "KAREUS_PROFILE", "KAREUS_DISABLE")


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "run",
        help="start a training job that records, replays or measures",
        description="Start a training job whose script calls kareus.attach(model, optimizer). With --collect "
        "it records a few steps, with --schedule it replays, with --profile it measures settings beside "
        "stock steps. Without any of them it runs as stock.",
        epilog="example: kareus run --collect trace/ -- torchrun --nproc-per-node 8 train.py",
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group()
    parser.add_argument(
        "--collect",
        metavar="DIR",
        help="record a profiler window into this directory; with --schedule, once the schedule stays in force",
    )
    what.add_argument("--schedule", metavar="FILE", help="replay this schedule (kareus.schedule/1)")
    what.add_argument(
        "--profile", metavar="FILE", help="measure settings in place and write kareus.profile/1"
    )
    what.add_argument("--stock", action="store_true", help="make kareus.attach do nothing, to compare with")
    parser.add_argument("--records", metavar="DIR", help="write StepRecords, one file a rank")
    window = parser.add_argument_group("with --collect")
    window.add_argument("--wait", type=int, metavar="N", help="steps before the window (default 5)")
    window.add_argument("--warmup", type=int, metavar="N", help="profiler warm-up steps (default 2)")
    window.add_argument("--active", type=int, metavar="N", help="steps recorded (default 3)")
    window.add_argument(
        "--max-mb", type=float, metavar="MB", help="largest trace file of a rank (default 64)"
    )
    sweep = parser.add_argument_group("with --profile")
    sweep.add_argument("--budget", type=float, metavar="S", help="seconds to measure for (default 300)")
    parser.add_argument("job", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the training command")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Set the environment and become the job; returns only by raising.

    Raises:
        UsageError: no command, or one that cannot be found. InputError: a schedule that cannot be read.
    """
    command = args.job[1:] if args.job[:1] == ["--"] else args.job
    if not command:
        raise UsageError(
            "no command to run; put it behind --, as in: kareus run --collect trace/ -- torchrun train.py"
        )
    environment = dict(os.environ)
    configure(args, environment)
    program = shutil.which(command[0], path=environment.get("PATH"))
    if program is None:
        raise UsageError(f"{command[0]}: no such program on PATH; give its path, or activate its environment")
    os.execve(program, command, environment)


def configure(args: argparse.Namespace, environment: MutableMapping[str, str]) -> None:
    """Write what the flags ask for into an environment; a role set there before is replaced.

    Raises:
        UsageError: flags of another role. InputError: a schedule that cannot be read, a folder that
            cannot be made.
    """
    for name in ROLES:
        if args.collect or args.schedule or args.profile or args.stock:
            environment.pop(name, None)
    _refuse_strays(args)
    if args.collect:
        environment["KAREUS_COLLECT"] = _folder(args.collect)
    if args.schedule:
        Schedule.load(args.schedule)  # a bad file is better found here than on every rank
        environment["KAREUS_SCHEDULE"] = str(Path(args.schedule).absolute())
    elif args.profile:
        environment["KAREUS_PROFILE"] = str(Path(args.profile).absolute())
    elif args.stock:
        environment["KAREUS_DISABLE"] = "1"
    if args.records:
        environment["KAREUS_RECORDS"] = _folder(args.records)
    values = {
        "KAREUS_COLLECT_WAIT": args.wait,
        "KAREUS_COLLECT_WARMUP": args.warmup,
        "KAREUS_COLLECT_ACTIVE": args.active,
        "KAREUS_COLLECT_MAX_MB": args.max_mb,
        "KAREUS_PROFILE_BUDGET_S": args.budget,
    }
    environment.update({name: str(value) for name, value in values.items() if value is not None})


def _refuse_strays(args: argparse.Namespace) -> None:
    other = "--profile" if args.profile else "--stock" if args.stock else ""
    if args.collect and other:
        raise UsageError(f"--collect does not go with {other}: record in a run of its own")
    for flag, value, role, wanted in (
        ("--wait", args.wait, args.collect, "--collect"),
        ("--warmup", args.warmup, args.collect, "--collect"),
        ("--active", args.active, args.collect, "--collect"),
        ("--max-mb", args.max_mb, args.collect, "--collect"),
        ("--budget", args.budget, args.profile, "--profile"),
    ):
        if value is not None and not role:
            raise UsageError(f"{flag} goes with {wanted}; add {wanted} or leave {flag} out")
        if value is not None and value < (0 if flag == "--wait" else 1e-9):
            raise UsageError(f"{flag} {value}: expected a positive number")


def _folder(path: str) -> str:
    """Return an absolute path to a folder, made if need be.

    Raises:
        UsageError: it cannot be made.
    """
    folder = Path(path).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; choose a folder that can be written") from error
    return str(folder)
