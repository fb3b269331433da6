"""`kareus policies batch-size`: Zeus' search for the batch size of a job that runs again and again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from kareus.cli.policies.shared import add_json, positive
from kareus.errors import UsageError
from kareus.plan.policies.batch_size import BatchSizeSearch
from kareus.plan.policies.batch_size_file import Recurring, begin, load


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "batch-size",
        help="Zeus: the batch size of a recurring job, one run at a time",
        description="Keep a search for the cheapest batch size in a file. Before each run, --next prints the size "
        "to train with and the cost at which to give the run up; after it, --report says what it cost (joules, "
        "grams, money: any one unit) and whether it met its target.",
        epilog="example: kareus policies batch-size job.json --sizes 64,128,256 --default 128 --next",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", help="the search's file; made by --sizes")
    parser.add_argument("--sizes", metavar="N,N,...", help="allowed sizes; begins a new search")
    parser.add_argument("--default", type=int, metavar="N", help="where a new search begins")
    parser.add_argument("--seed", type=int, default=0, help="of a new search's draws (default 0)")
    parser.add_argument(
        "--report", nargs=2, metavar=("SIZE", "COST"), help="a run of SIZE ended and cost COST"
    )
    parser.add_argument("--missed", action="store_true", help="the reported run missed its target")
    parser.add_argument("--next", action="store_true", help="begin the next run and print its size")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Update the search and print; see the parser's help."""
    record = _record(args)
    if args.report is not None:
        size, cost = _report(args.report)
        record = record.ended(size, cost, not args.missed)
    elif args.missed:
        raise UsageError("--missed goes with --report SIZE COST")
    following: int | None = None
    if args.next:
        following, record = record.begun()
    record.save(args.file)
    found = record.search()
    document = _document(found, following, record)
    if args.json:
        print(json.dumps(document, indent=1))
    elif following is not None:
        bound = document["stop_above"]
        print(following if bound is None else f"{following} (give up above a cost of {bound:.6g})")
    else:
        print(f"best so far {found.best}, {document['phase']}, {len(record.events)} events")
    return 0


def _record(args: argparse.Namespace) -> Recurring:
    if args.sizes is None:
        return load(args.file)
    if Path(args.file).exists():
        raise UsageError(f"{args.file} already holds a search; leave --sizes out, or name another file")
    try:
        sizes = [int(part) for part in args.sizes.split(",")]
    except ValueError:
        raise UsageError(f"--sizes {args.sizes!r}: expected whole numbers such as 64,128,256") from None
    if args.default is None:
        raise UsageError("--default: expected the size the job has used so far")
    return begin(sizes, args.default, seed=args.seed)


def _report(words: list[str]) -> tuple[int, float]:
    try:
        size, cost = int(words[0]), float(words[1])
    except ValueError:
        raise UsageError(f"--report {' '.join(words)}: expected a batch size and a cost") from None
    positive("--report", cost)
    return size, cost


def _document(found: BatchSizeSearch, size: int | None, record: Recurring) -> dict[str, Any]:
    bound = found.cost_bound
    return {
        "schema": "kareus.batch_size_choice/1",
        "next": size,
        "best": found.best,
        "stop_above": bound if bound < float("inf") else None,
        "phase": "pruning" if found.pruning else "sampling",
        "survivors": list(found.survivors),
        "runs": sum(event.cost is not None for event in record.events),
    }
