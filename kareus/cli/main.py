"""The `kareus` command: finds the subcommand, runs it, turns errors into exit codes.

Each subcommand lives in a module of its own with `add_parser(subparsers)` and `run(args) -> int`.
Results go to stdout; progress, warnings and errors go to stderr.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence

import kareus
from kareus.errors import KareusError

# In the order a user meets them.
SUBCOMMANDS = (
    "doctor", "run", "inspect", "solve", "simulate", "compare", "policies", "report", "reset_clocks",
)  # fmt: skip

INTERRUPTED = 130  # 128 + SIGINT, what shells report


def build_parser() -> argparse.ArgumentParser:
    """Return the whole command line; every subcommand adds its own part."""
    parser = argparse.ArgumentParser(
        prog="kareus",
        description="Schedules communication beside computation in PyTorch training.",
        epilog="Exit codes: 0 ok, 1 bug, 2 usage, 3 bad input file, 4 infeasible, 5 no solution in time, "
        "6 hardware or permission, 7 schedule does not fit this job, 130 interrupted.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kareus {kareus.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in SUBCOMMANDS:
        importlib.import_module(f"kareus.cli.{name}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; no traceback for errors that are the user's to mend."""
    logging.basicConfig(
        stream=sys.stderr, format="%(message)s", level=os.environ.get("KAREUS_LOG", "warning").upper()
    )
    args = build_parser().parse_args(argv)
    try:
        code: int = args.run(args)
    except KareusError as error:
        print(f"kareus {args.command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"kareus {args.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of stdout (head, less) went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
