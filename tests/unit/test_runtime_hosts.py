"""Which ranks share a machine, and what is planned for groups that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("ortools")

from plan_samples import COST, PLAIN, recorded

from kareus.plan.knobs import knobs_from
from kareus.plan.options import enumerate_settings
from kareus.runtime.hosts import host_identity, inside_one_host, ranks_by_host
from kareus.trace.spans import find_spans


def test_nccl_hostid_names_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_HOSTID", raising=False)
    own = host_identity()
    assert own == host_identity() != ""
    monkeypatch.setenv("NCCL_HOSTID", "rack 7")
    assert host_identity() == "rack 7"


def test_ranks_and_groups_by_host() -> None:
    identities = ["a", "b", "a", "b"]
    assert ranks_by_host(identities) == [(0, 2), (1, 3)]
    assert inside_one_host([(0, 1), (0, 2), (1, 3), (0, 1, 2, 3)], identities) == [(0, 2), (1, 3)]
    assert inside_one_host([(0, 1), (2, 3)], ["one answers for all"]) == [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    ("hosts", "copies"), [([], True), ([[0, 1], [2, 3]], True), ([[0, 2], [1, 3]], False)]
)
def test_copies_are_planned_only_inside_a_host(hosts: list[list[int]], copies: bool) -> None:
    graph = recorded()  # ranks 0 and 1
    knobs = replace(
        knobs_from({"copy_engine": True, "copy_engine_hosts": hosts}), ctas=PLAIN.ctas, launch_points=False
    )
    zero = [
        (enumerate_settings(span, graph.collectives, COST, knobs).num_ctas == 0).any()
        for span in find_spans(graph)
        if span.collectives
    ]
    assert any(zero) == copies
