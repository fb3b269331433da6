"""Settings become schedules and profile samples that say the same."""

import math
from pathlib import Path as Folder

import msgspec
import pytest

pytest.importorskip("torch")
from kareus.collect.launch import launch_points
from kareus.collect.profile_file import pack_points, unpack_points
from kareus.collect.settings import Setting, default_settings, schedule_for
from kareus.schedule import CollectiveKey, Fingerprint, Path, UnitShape
from kareus.trace.graph import graphs
from kareus.trace.identity import collective_key, fingerprint
from kareus.trace.ranks import TraceSet

TRACE = Folder(__file__).parents[2] / "traces/fsdp2-nvlink-collected"

UNITS = tuple(UnitShape(name=n, numel=8, dtype="fp32") for n in ("", "blocks.0", "blocks.1"))
FSDP2 = Fingerprint(wrapper="fsdp2", world_size=2, units=UNITS)
DDP = Fingerprint(wrapper="ddp", world_size=2, units=(UNITS[0],))
SEEN = [
    CollectiveKey(kind="all_gather", unit="", phase="forward"),
    CollectiveKey(kind="all_gather", unit="blocks.0", phase="forward"),
    CollectiveKey(kind="all_gather", unit="blocks.0", phase="backward"),
    CollectiveKey(kind="reduce_scatter", unit="blocks.0", phase="backward"),
    CollectiveKey(kind="reduce_scatter", unit="", phase="backward"),
]
BUCKETS = [CollectiveKey(kind="all_reduce", unit=f"bucket.{i}", phase="backward") for i in range(2)]


def test_only_what_the_job_can_do_is_tried() -> None:
    labels = [s.label for s in default_settings("fsdp2", {})]
    assert labels == [
        "serialised",
        "all_gather serialised",
        "reduce_scatter serialised",
        "separate reduce-scatter group",
    ]
    able = default_settings("fsdp2", {"cta_budgets": True, "copy_engine": True}, launch_points=True)
    assert {dict(s.num_ctas).get("all_gather") for s in able} == {None, 0, 4, 8, 16}
    assert {s.launch for s in able} == {None, 0.3, 0.6}
    assert len({s.label for s in able}) == len(able)
    first = able[:6]  # the ones measured first reach every knob but the separate group
    assert any(s.launch for s in first)
    assert any(s.serialise for s in first)
    assert {dict(s.num_ctas).get(k) for s in first for k in ("all_gather", "reduce_scatter")} == {None, 0, 4}
    assert [s.label for s in default_settings("ddp", {})] == ["serialised"]


def test_a_budget_reaches_every_collective_of_its_kind_and_no_other() -> None:
    schedule = schedule_for(Setting(label="x", num_ctas=(("all_gather", 8),)), FSDP2, SEEN)
    assert {(d.collective.kind, d.num_ctas) for d in schedule.decisions} == {("all_gather", 8)}
    assert [str(d.collective) for d in schedule.decisions] == [
        "all_gather(root, forward)",
        "all_gather(blocks.0, forward)",
        "all_gather(blocks.0, backward)",
    ]


def test_zero_thread_blocks_are_the_copy_engine() -> None:
    setting = Setting(label="x", num_ctas=(("all_reduce", 0),))
    decision = schedule_for(setting, DDP, BUCKETS).decisions[0]
    assert (decision.path, decision.num_ctas) == (Path.COPY_ENGINE, None)
    assert setting.as_step("w").num_ctas == {"all_reduce": 0}


def test_serialising_and_a_separate_group_are_kept() -> None:
    setting = Setting(label="x", serialise=("reduce_scatter",), separate=True)
    schedule = schedule_for(setting, FSDP2, SEEN)
    assert schedule.separate_reduce_scatter_group
    assert all(d.serialise and d.collective.kind == "reduce_scatter" for d in schedule.decisions)
    assert len(schedule.decisions) == 2
    assert setting.as_step("w").serialise == ("reduce_scatter",)


def test_numbers_place_settings_that_are_alike_near_each_other() -> None:
    able = default_settings("fsdp2", {"cta_budgets": True, "copy_engine": True}, launch_points=True)
    kinds = ("all_gather", "reduce_scatter")
    rows = {s.label: s.numbers(kinds, 24) for s in able}
    assert len({len(row) for row in rows.values()}) == 1
    assert len(set(rows.values())) == len(able)
    few, some, many = (rows[f"all_gather {n} CTAs"] for n in (4, 8, 16))
    assert math.dist(some, many) < math.dist(few, many)
    assert Setting(label="stock").numbers(kinds, 24) == (0, 0, math.log2(24), 0, 0, math.log2(24), 0, 0)


def test_a_launch_share_moves_the_gathers_that_have_a_point_near_it() -> None:
    graph = graphs(TraceSet.open(TRACE).load(0))[-1]
    points = launch_points(graph, (0.3, 0.6))
    assert unpack_points(msgspec.json.decode(msgspec.json.encode(pack_points(points)))) == points
    observed = [key for c in graph.collectives if (key := collective_key(c)) is not None]
    setting = Setting(label="x", launch=0.3)
    decisions = schedule_for(setting, fingerprint(graph), observed, points).decisions
    assert decisions
    assert {d.collective.kind for d in decisions} == {"all_gather"}
    assert all(d.launch is not None and d.launch == points[0.3][d.collective] for d in decisions)
    assert setting.as_step("w").launch == 0.3
    assert schedule_for(setting, fingerprint(graph), observed).decisions == ()
