"""`kareus reset-clocks`: put GPUs back in order after a job could not do it itself."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from kareus.device.reset import Outcome, reset_from_journals, reset_locks
from kareus.errors import HardwareError
from kareus.schema import encode

SCHEMA = "kareus.reset_clocks/1"


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "reset-clocks",
        help="undo clock locks and power limits that a crashed job left behind",
        description="Undo what crash journals name: remove clock locks, set the power limit to what it was "
        "before the job. A job that still runs is left alone. Needs the rights that setting clocks needs.",
        epilog="example: sudo kareus reset-clocks --dry-run",
        allow_abbrev=False,
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done and do nothing")
    parser.add_argument(
        "--all", action="store_true",
        help="also remove clock locks of GPUs without a journal, whoever set them (power limits stay)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help=f"print one JSON document ({SCHEMA})")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Reset and report; return 0, or 6 where something could not be undone."""
    outcomes = reset_from_journals(dry_run=args.dry_run)
    if args.all:
        outcomes += reset_locks(skip={outcome.gpu_uuid for outcome in outcomes}, dry_run=args.dry_run)
    if args.json:
        sys.stdout.write(encode({"schema": SCHEMA, "gpus": [_row(outcome) for outcome in outcomes]}).decode())
    else:
        for outcome in outcomes:
            print(f"{outcome.gpu_name or 'GPU'} {outcome.gpu_uuid}: {outcome.text}")
        if not outcomes:
            print("no crash journal on this machine: nothing to undo")
    return 0 if all(outcome.ok for outcome in outcomes) else HardwareError.exit_code


def _row(outcome: Outcome) -> dict[str, Any]:
    return {
        "gpu_uuid": outcome.gpu_uuid,
        "gpu": outcome.gpu_name,
        "ok": outcome.ok,
        "done": outcome.done,
        "text": outcome.text,
    }
