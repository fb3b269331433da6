"""Settings become schedules and profile samples that say the same."""

import pytest

pytest.importorskip("torch")
from kareus.collect.settings import Setting, default_settings, schedule_for
from kareus.schedule import CollectiveKey, Fingerprint, Path, UnitShape

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
    able = default_settings("fsdp2", {"cta_budgets": True, "copy_engine": True})
    assert {dict(s.num_ctas).get("all_gather") for s in able} == {None, 0, 4, 8, 16}
    assert len({s.label for s in able}) == len(able)
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
