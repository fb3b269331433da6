"""`kareus policies`: published policies on tables of your own, one subcommand each.

Everything here is computed from the given figures; nothing is run on a GPU.
"""

from __future__ import annotations

import importlib
from typing import Any

SUBCOMMANDS = ("points", "power_limit", "pipeline", "carbon", "kernels", "batch_size")


def add_parser(subparsers: Any) -> None:
    """Add the subcommand and those below it."""
    parser = subparsers.add_parser(
        "policies",
        help="published policies on tables: pipelines, power limits, carbon, kernels",
        description="Published policies on recorded tables, without a GPU: Perseus (pipeline), Zeus (power-limit, "
        "batch-size), Chase (carbon), Twente (kernels), and rules for choosing a point (points).",
        epilog="example: kareus policies points frontier.json --choose edp",
        allow_abbrev=False,
    )
    below = parser.add_subparsers(dest="policy", metavar="POLICY", required=True)
    for name in SUBCOMMANDS:
        importlib.import_module(f"kareus.cli.policies.{name}").add_parser(below)
