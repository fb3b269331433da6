"""Scales a recorded step to a cluster nobody recorded: other ranks, other hosts, another link between them.

Only communication and the sharded optimizer depend on the number of ranks; everything else stays as it
was recorded. `assumptions` states in words what is assumed, and belongs beside every figure made here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from kareus.errors import UsageError
from kareus.model.constants import KINDS, NAMES, Constant, kind_name
from kareus.model.cost import CostModel
from kareus.schedule import Path, Schedule
from kareus.trace.identity import collective_key
from kareus.trace.types import CollectiveKind, CollectiveOp, Phase, StepGraph

NETWORK_EFFICIENCY = 0.9  # assumed share of the line rate that reaches collectives: headers, congestion
NETWORK_HOP_US = 6.0  # assumed: one ring or tree hop between hosts
INNER_HOP_US = 1.0  # assumed: one hop inside a host


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """A cluster to scale to.

    Attributes:
        label: of its link, for people. num_ranks: GPUs. num_hosts: hosts, each with the same number of GPUs.
        host_gbit_per_s: network bandwidth of one host, one way, all its adapters together; None where one
            link of the recorded kind joins all ranks.

    Raises:
        UsageError: ranks do not divide into hosts, or a bandwidth that is not positive.
    """

    label: str
    num_ranks: int
    num_hosts: int
    host_gbit_per_s: float | None

    def __post_init__(self) -> None:
        if self.num_ranks < 2 or self.num_hosts < 1 or self.num_ranks % self.num_hosts:
            raise UsageError(
                f"{self.num_ranks} ranks on {self.num_hosts} hosts: expected at least two ranks, the same "
                "number on every host"
            )
        if self.num_hosts > 1 and not (self.host_gbit_per_s or 0) > 0:
            raise UsageError(
                f"{self.num_hosts} hosts: expected the bandwidth between them, found {self.host_gbit_per_s}"
            )

    @property
    def ranks_per_host(self) -> int:
        """GPUs of one host."""
        return self.num_ranks // self.num_hosts


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """Where a process group's members sit.

    Attributes:
        size: ranks. hosts: hosts they are on, 1 is inside one host.
    """

    size: int
    hosts: int

    @property
    def across(self) -> bool:
        """True where its collectives leave the host."""
        return self.hosts > 1


def reach(graph: StepGraph, collective: CollectiveOp, cluster: Cluster) -> Reach:
    """Return where a recorded collective would run on the cluster.

    A group of all ranks stays one. A smaller group of consecutive ranks (the shards of HSDP) keeps its
    size; one with a stride (its replicas) grows with the cluster.
    """
    group, world = collective.group, graph.world_size
    size = len(group) or world
    if size == world:
        return Reach(size=cluster.num_ranks, hosts=cluster.num_hosts)
    stride = group[1] - group[0] if size > 1 else 1
    if stride == 1:
        return Reach(size=size, hosts=math.ceil(size / cluster.ranks_per_host))
    size = max(1, cluster.num_ranks // stride)
    return Reach(size=size, hosts=min(cluster.num_hosts, size))


def scale_graph(graph: StepGraph, cluster: Cluster) -> StepGraph:
    """Return the step as a rank of the cluster would run it, before its communication is priced.

    Full parameters and gradients keep their bytes. Sharded optimizer work shrinks with the shard.
    """
    collectives = tuple(
        replace(member, group=tuple(range(reach(graph, member, cluster).size)))
        for member in graph.collectives
    )
    ops = graph.ops
    gathers = [c for c in graph.collectives if c.kind == CollectiveKind.ALL_GATHER]
    if gathers:
        old = len(gathers[0].group) or graph.world_size
        share = old / reach(graph, gathers[0], cluster).size
        alone_ns = np.where(ops.phase == Phase.OPTIMIZER, np.round(ops.alone_ns * share), ops.alone_ns)
        ops = replace(ops, alone_ns=alone_ns.astype(np.int64))
    return replace(graph, world_size=cluster.num_ranks, collectives=collectives, ops=ops)


def scale_cost(cost: CostModel, graph: StepGraph, cluster: Cluster) -> CostModel:
    """Return the model with the links of the cluster; what changes is marked as assumed.

    Args:
        cost: for the recorded job's GPU and link. graph: the recorded step, before scaling.
    """
    changed: dict[str, Constant] = {}
    for kind in KINDS:
        members = [c for c in graph.collectives if c.kind == kind]
        if not members:
            continue
        widest = max((reach(graph, c, cluster) for c in members), key=lambda r: (r.hosts, r.size))
        name = kind_name(kind)
        old = max(len(c.group) or graph.world_size for c in members)
        # A collective runs at the pace of its slowest hop; groups that share the host's adapters share them.
        share = min(1.0, widest.size / widest.hosts / cluster.ranks_per_host)
        if widest.across and cluster.host_gbit_per_s is not None:
            network = cluster.host_gbit_per_s / 8 * NETWORK_EFFICIENCY * share
            bandwidth = min(cost[f"{name}.gb_per_s"], network)
            changed[f"{name}.gb_per_s"] = _assumed(f"{name}.gb_per_s", bandwidth, cluster.label)
        latency = cost[f"{name}.latency_us"] + max(0.0, _hops_us(kind, widest) - _inner_us(kind, old))
        changed[f"{name}.latency_us"] = _assumed(f"{name}.latency_us", latency, cluster.label)
    return cost.with_constants(changed, notes=assumptions(cluster))


def _hops_us(kind: CollectiveKind, where: Reach) -> float:
    """Time of a message's hops: rings to gather and scatter, a tree across hosts to all-reduce."""
    if kind == CollectiveKind.ALL_REDUCE:
        across = 2 * math.ceil(math.log2(where.hosts)) if where.across else 0
        return across * NETWORK_HOP_US + _inner_us(kind, max(1, where.size // where.hosts))
    across = where.hosts if where.across else 0
    return across * NETWORK_HOP_US + max(where.size - 1 - across, 0) * INNER_HOP_US


def _inner_us(kind: CollectiveKind, size: int) -> float:
    return (2 if kind == CollectiveKind.ALL_REDUCE else 1) * (size - 1) * INNER_HOP_US


def _assumed(name: str, value: float, label: str) -> Constant:
    return Constant(
        value=value, low=0.7 * value, high=1.3 * value, unit=NAMES[name][0], source="assumed",
        note=f"scaled to {label}",
    )  # fmt: skip


def scale_schedule(schedule: Schedule, graph: StepGraph, cluster: Cluster) -> Schedule:
    """Return the schedule for the cluster: copy engines reach only inside a host, the rest is kept.

    Args:
        schedule: made for the recorded job. graph: the recorded step, before scaling.
    """
    outside = {collective_key(c) for c in graph.collectives if reach(graph, c, cluster).across}
    decisions = tuple(
        msgspec.structs.replace(d, path=Path.NCCL)
        if d.path is Path.COPY_ENGINE and d.collective in outside
        else d
        for d in schedule.decisions
    )
    fingerprint = msgspec.structs.replace(schedule.fingerprint, world_size=cluster.num_ranks)
    return msgspec.structs.replace(schedule, decisions=decisions, fingerprint=fingerprint)


def copy_engine_reaches(graph: StepGraph, cluster: Cluster) -> bool:
    """True where every all-gather of the step stays inside a host of the cluster."""
    gathers = [c for c in graph.collectives if c.kind == CollectiveKind.ALL_GATHER]
    return bool(gathers) and not any(reach(graph, c, cluster).across for c in gathers)


def assumptions(cluster: Cluster) -> tuple[str, ...]:
    """Return what a figure for this cluster assumes, as sentences."""
    links = (
        "one link of the recorded kind joins all ranks at the recorded bandwidth"
        if cluster.num_hosts == 1
        else f"each host sends at most {cluster.host_gbit_per_s:g} Gbit/s, {NETWORK_EFFICIENCY:.0%} of it "
        "usable; inside a host the recorded link"
    )
    return (
        f"{cluster.label}, {cluster.num_ranks} ranks on {cluster.num_hosts} hosts: {links}.",
        "Each rank computes what it computed when recorded (same batch per rank); sharded optimizer work "
        "shrinks with the shard.",
        f"Gathers and scatters run as rings, all-reduces as trees across hosts: {NETWORK_HOP_US:g} us a hop "
        f"between hosts, {INNER_HOP_US:g} us inside one.",
        "No rank is late, the network is not shared with other jobs, and energy a gigabyte is as recorded.",
    )
