"""Scaling a recorded step to clusters: what changes, by how much, and what must not."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from kareus.cli import report
from kareus.cli import simulate as command
from kareus.cli.clusters import clusters_of, scale, scaling_rows
from kareus.cli.inputs import StepInput, read_step
from kareus.errors import UsageError
from kareus.model.cluster import Cluster, assumptions, reach, scale_cost, scale_graph, scale_schedule
from kareus.model.simulate import simulate
from kareus.schedule import Decision, Schedule
from kareus.schedule import Path as Lane
from kareus.trace.identity import collective_key, fingerprint
from kareus.trace.types import CollectiveKind, Phase

TRACES = Path(__file__).parents[2] / "traces"


def parse(name: str, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["simulate", str(TRACES / name), *arguments])


@cache
def recorded(name: str = "fsdp2-nvlink-default") -> StepInput:
    return read_step(parse(name, "--schedule", "unused"))


def cluster(ranks: int, hosts: int, gbit: float | None = 400.0) -> Cluster:
    return Cluster(label="test", num_ranks=ranks, num_hosts=hosts, host_gbit_per_s=gbit)


def time_us(target: Cluster, name: str = "fsdp2-nvlink-default") -> float:
    step = recorded(name)
    graph, cost = scale_graph(step.graph, target), scale_cost(step.cost, step.graph, target)
    return simulate([graph], None, cost).time_us


def test_the_recorded_cluster_itself_is_what_simulate_says() -> None:
    step = recorded()
    assert time_us(cluster(2, 1, None)) == pytest.approx(simulate([step.graph], None, step.cost).time_us)


def test_a_slower_network_is_never_faster_and_a_slow_one_dominates() -> None:
    times = [time_us(cluster(64, 8, gbit)) for gbit in (6400.0, 3200.0, 400.0, 100.0)]
    assert times == sorted(times)
    assert times[-1] > 2 * times[0]


@pytest.mark.parametrize("name", ["fsdp2-nvlink-default", "ddp-nvlink-default"])
def test_a_dominating_network_costs_what_its_bytes_cost(name: str) -> None:
    graph = recorded(name).graph
    sent = 0.0
    for member in graph.collectives:
        sent += member.num_bytes * 63 / 64 * (2 if member.kind == CollectiveKind.ALL_REDUCE else 1)
    least_us = sent / (100 / 8 * 0.9) / 1e3
    assert least_us < time_us(cluster(64, 8, 100.0), name) < 1.6 * least_us


def test_sharded_optimizer_work_shrinks_and_compute_stays() -> None:
    graph = recorded().graph
    scaled = scale_graph(graph, cluster(64, 8))
    update = graph.ops.phase == Phase.OPTIMIZER
    assert scaled.ops.alone_ns[update].sum() == pytest.approx(graph.ops.alone_ns[update].sum() / 32, rel=0.01)
    assert (scaled.ops.alone_ns[~update] == graph.ops.alone_ns[~update]).all()
    replicated = recorded("ddp-nvlink-default").graph
    assert (scale_graph(replicated, cluster(64, 8)).ops.alone_ns == replicated.ops.alone_ns).all()


def test_hsdp_shards_stay_inside_a_host_and_replicas_cross() -> None:
    graph = replace(recorded().graph, world_size=4)
    inside = replace(graph.collectives[0], group=(0, 1))
    across = replace(graph.collectives[0], group=(0, 2), kind=CollectiveKind.ALL_REDUCE)
    graph = replace(graph, collectives=(inside, across, *graph.collectives[2:]))
    target = cluster(64, 8)
    assert (reach(graph, inside, target).size, reach(graph, inside, target).across) == (2, False)
    assert (reach(graph, across, target).size, reach(graph, across, target).hosts) == (32, 8)


def test_replicas_share_the_network_of_their_host() -> None:
    step = recorded("ddp-nvlink-default")
    graph = replace(step.graph, world_size=4)
    graph = replace(graph, collectives=tuple(replace(c, group=(0, 2)) for c in graph.collectives))
    target = cluster(16, 8, 800.0)  # groups of 8, one member on each host of 2
    assert scale_cost(step.cost, graph, target)["all_reduce.gb_per_s"] == pytest.approx(800 / 8 * 0.9 / 2)


def test_copy_engines_do_not_cross_hosts() -> None:
    graph = recorded().graph
    keys = [collective_key(c) for c in graph.collectives if c.kind == CollectiveKind.ALL_GATHER]
    schedule = Schedule(
        fingerprint=fingerprint(graph),
        decisions=tuple(Decision(collective=key, path=Lane.COPY_ENGINE) for key in keys if key is not None),
    )
    crossing = scale_schedule(schedule, graph, cluster(64, 8))
    assert {d.path for d in crossing.decisions} == {Lane.NCCL}
    assert crossing.fingerprint.world_size == 64
    inside = scale_schedule(schedule, graph, cluster(8, 1, None))
    assert {d.path for d in inside.decisions} == {Lane.COPY_ENGINE}


def test_what_is_scaled_is_marked_as_assumed_and_said() -> None:
    step = recorded()
    cost = scale_cost(step.cost, step.graph, cluster(64, 8))
    assert cost.constants["all_gather.gb_per_s"].source == "assumed"
    assert any("400 Gbit/s" in text for text in cost.notes)
    assert assumptions(cluster(64, 8))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--ranks", "many"), ("--ranks", "10", "--hosts", "3"), ("--ranks", "1"), ("--ranks", "8,64", "--hosts", "1"),
        ("--ranks", "64", "--link-gbps", "-1"), ("--ranks", "64", "--link-gbps", "token-ring"), ("--ranks", "0"),
    ],
)  # fmt: skip
def test_clusters_that_make_no_sense_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        clusters_of(parse("fsdp2-nvlink-default", *arguments))


def test_names_and_numbers_of_links_and_default_hosts() -> None:
    found = clusters_of(parse("fsdp2-nvlink-default", "--ranks", "8,64", "--link-gbps", "nvlink,800"))
    assert [(c.label, c.num_ranks, c.num_hosts) for c in found] == [
        ("nvlink", 8, 1), ("nvlink", 64, 1), ("800 Gbit/s", 8, 1), ("800 Gbit/s", 64, 8),
    ]  # fmt: skip


def test_command_prints_one_document_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "schedule.json"
    Schedule(fingerprint=fingerprint(recorded().graph), decisions=()).save(str(file))
    arguments = ("--schedule", str(file), "--ranks", "64,1024", "--hosts", "8,128", "--link-gbps", "3200")
    args = parse("fsdp2-nvlink-default", *arguments, "--json")
    assert args.run(args) == 0
    rows = json.loads(capsys.readouterr().out)["scaling"]
    assert [(row["ranks"], row["hosts"], row["source"]) for row in rows] == [
        (64, 8, "predicted"), (1024, 128, "predicted"),
    ]  # fmt: skip
    for row in rows:
        assert row["stock"]["time_us"] == pytest.approx(row["scheduled"]["time_us"])
        assert row["assumptions"]
    args = parse("fsdp2-nvlink-default", *arguments)
    assert args.run(args) == 0
    printed = capsys.readouterr().out
    assert "nothing here was run on such a cluster" in printed
    assert "1024" in printed


def test_solving_for_a_cluster_is_no_slower_than_stock_there() -> None:
    pytest.importorskip("ortools")
    (row,) = scale(recorded("ddp-nvlink-default"), None, [cluster(64, 8, 1600.0)])
    assert row.solved
    assert row.scheduled.time_us <= row.stock.time_us * 1.001
    (shown,) = scaling_rows([row])
    assert shown.label == "test, 8 hosts"
    assert shown.stock.time_us == row.stock.time_us


def test_report_shows_clusters_and_what_they_assume(tmp_path: Path) -> None:
    file, page = tmp_path / "schedule.json", tmp_path / "report.html"
    Schedule(fingerprint=fingerprint(recorded("ddp-nvlink-default").graph), decisions=()).save(str(file))
    parser = argparse.ArgumentParser()
    report.add_parser(parser.add_subparsers())
    where = ["report", str(TRACES / "ddp-nvlink-default"), "--schedule", str(file), "-o", str(page)]
    args = parser.parse_args([*where, "--ranks", "1024", "--link-gbps", "ethernet"])
    assert args.run(args) == 0
    text = page.read_text()
    assert "ethernet, 128 hosts" in text
    assert "each host sends at most 400 Gbit/s" in text
