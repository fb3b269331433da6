"""What a schedule would bring on a cluster nobody recorded: the arguments, the rows and their document."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kareus.cli.inputs import StepInput
from kareus.errors import UsageError
from kareus.model.cluster import (
    Cluster,
    assumptions,
    copy_engine_reaches,
    scale_cost,
    scale_graph,
    scale_schedule,
)
from kareus.model.simulate import Simulation, simulate
from kareus.report.build import predicted
from kareus.report.data import ScalingRow
from kareus.schedule import Schedule

GPUS_PER_HOST = 8
LINKS: dict[str, float | None] = {"nvlink": None, "infiniband": 3200.0, "ethernet": 400.0}
STANDARD_RANKS = "8,64,512,1024"
SOLVE_LIMIT_S = 5.0


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --ranks, --hosts and --link-gbps."""
    group = parser.add_argument_group(
        "clusters",
        "Scale the recorded step by the cost model; nothing is run, and the output states what is assumed.",
    )
    group.add_argument(
        "--ranks", metavar="N[,N...]", help=f"GPUs of the clusters to scale to, for instance {STANDARD_RANKS}"
    )
    group.add_argument(
        "--hosts",
        metavar="H[,H...]",
        help=f"hosts, one number for each of --ranks (default: {GPUS_PER_HOST} GPUs a host)",
    )
    group.add_argument(
        "--link-gbps", metavar="LINK[,LINK...]", default=",".join(LINKS),
        help="network of one host, Gbit/s one way, all adapters together, or a name: nvlink (one link of the "
        "recorded kind joins all ranks), infiniband (8 x 400 Gbit/s a host), ethernet (400 Gbit/s a host); "
        "default: all three",
    )  # fmt: skip


def clusters_of(args: argparse.Namespace) -> list[Cluster]:
    """Return the clusters the arguments describe, links outermost.

    Raises:
        UsageError: a number that is none, or counts that do not fit together.
    """
    ranks = _counts("--ranks", args.ranks)
    hosts = _counts("--hosts", args.hosts) if args.hosts else [-(-n // GPUS_PER_HOST) for n in ranks]
    if len(hosts) != len(ranks):
        raise UsageError(
            f"--hosts names {len(hosts)} clusters, --ranks {len(ranks)}: give one number for each"
        )
    found = []
    for text in args.link_gbps.split(","):
        rate = _rate(text.strip())
        label = text.strip() if text.strip() in LINKS else f"{rate:g} Gbit/s"
        found += [
            Cluster(
                label=label, num_ranks=n, num_hosts=h if rate is not None else 1, host_gbit_per_s=rate
            )
            for n, h in zip(ranks, hosts, strict=True)
        ]  # fmt: skip
    return found


def _counts(flag: str, text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{flag} {text!r}: expected whole numbers such as {STANDARD_RANKS}") from None
    if min(counts) < 1:
        raise UsageError(f"{flag} {text!r}: expected positive numbers")
    return counts


def _rate(text: str) -> float | None:
    if text in LINKS:
        return LINKS[text]
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e6:
        raise UsageError(f"--link-gbps {text!r}: expected Gbit/s or one of {', '.join(LINKS)}")
    return rate


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaled:
    """One cluster's prediction.

    Attributes:
        cluster: what was assumed. stock, scheduled: simulated steps of one rank.
        solved: the schedule was solved for this cluster, not carried over.
    """

    cluster: Cluster
    stock: Simulation
    scheduled: Simulation
    solved: bool


def scale(step: StepInput, schedule: Schedule | None, clusters: list[Cluster]) -> list[Scaled]:
    """Predict the step on each cluster.

    Args:
        step: as recorded. schedule: carried over to every cluster; None solves each for itself.
    """
    found = []
    for cluster in clusters:
        graph, cost = scale_graph(step.graph, cluster), scale_cost(step.cost, step.graph, cluster)
        if schedule is None:
            print(f"solving for {cluster.num_ranks} ranks, {cluster.label} ...", file=sys.stderr)
            planned = solve_for(step, cluster)
        else:
            planned = scale_schedule(schedule, step.graph, cluster)
        found.append(
            Scaled(
                cluster=cluster,
                stock=simulate([graph], None, cost),
                scheduled=simulate([graph], planned, cost),
                solved=schedule is None,
            )
        )
    return found


def solve_for(step: StepInput, cluster: Cluster) -> Schedule:
    """Solve the scaled step; the solver is imported only here."""
    from kareus.plan.knobs import knobs_from
    from kareus.plan.planner import Goal, make_plan

    manifest = step.traces.manifest
    knobs = knobs_from(manifest.capabilities if manifest else {})
    knobs = replace(
        knobs,
        copy_engine=knobs.copy_engine and copy_engine_reaches(step.graph, cluster),
        copy_engine_hosts=(),
    )
    graph, cost = scale_graph(step.graph, cluster), scale_cost(step.cost, step.graph, cluster)
    return make_plan(graph, cost, knobs, Goal(), time_limit_s=SOLVE_LIMIT_S).schedule


def scaling_document(
    rows: list[Scaled], figures: Callable[[Simulation], dict[str, float]]
) -> list[dict[str, Any]]:
    """Return the rows for `--json`; `figures` says what is shown of a simulation."""
    return [
        {
            "label": row.cluster.label,
            "ranks": row.cluster.num_ranks,
            "hosts": row.cluster.num_hosts,
            "host_gbit_per_s": row.cluster.host_gbit_per_s,
            "stock": figures(row.stock),
            "scheduled": figures(row.scheduled),
            "solved_for_cluster": row.solved,
            "source": "predicted",
            "assumptions": list(assumptions(row.cluster)),
        }
        for row in rows
    ]


def scaling_rows(rows: list[Scaled]) -> tuple[ScalingRow, ...]:
    """Return the rows as a report shows them."""
    return tuple(
        ScalingRow(
            label=f"{row.cluster.label}, {row.cluster.num_hosts} host{'s' if row.cluster.num_hosts > 1 else ''}",
            num_ranks=row.cluster.num_ranks,
            stock=predicted(row.stock),
            scheduled=predicted(row.scheduled),
        )
        for row in rows
    )
