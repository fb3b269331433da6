"""Parts of the runtime that need neither processes nor a process group."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from pathlib import Path as FilePath
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import kareus
from kareus.errors import MismatchError, UsageError
from kareus.runtime.agreement import AloneExchange, agree, describe_difference, mismatch_error
from kareus.runtime.clocks import ClockControl, open_clocks
from kareus.runtime.compute_sms import ComputeSms, open_compute_sms
from kareus.runtime.deferral import ReduceDeferral
from kareus.runtime.divergence import IssueLog, Watch, issue_text
from kareus.runtime.environment import budget_problem, connection_warning
from kareus.runtime.fingerprint import sequence_problem
from kareus.runtime.ladder import Ladder, limit_budgets, wanted_rungs
from kareus.runtime.launch import LaunchBoard, compiled_paths, module_paths
from kareus.runtime.paths import chunk_sizes, sum_in_rank_order
from kareus.runtime.records import RecordWriter, StepRecord, Tally, read_records
from kareus.runtime.streams import CpuTimeline
from kareus.runtime.windows import plan_windows
from kareus.schedule import (
    ClockRegion,
    CollectiveKey,
    Decision,
    Fingerprint,
    LaunchPoint,
    Path,
    Schedule,
    UnitShape,
)

JOB = Fingerprint(wrapper="fsdp2", world_size=2, units=(UnitShape(name="a", numel=8, dtype="bf16"),))
KEY = CollectiveKey(kind="all_gather", unit="a", phase="forward")


def schedule(**arguments: Any) -> Schedule:
    return Schedule(**{"fingerprint": JOB, **arguments})


# Ladder


def test_budgets_beyond_the_limit_go_to_the_nearest_kept_one() -> None:
    asked = Counter({1: 1, 2: 5, 4: 5, 8: 1, 16: 9, 32: 2})
    assert limit_budgets(asked, 4) == {1: 2, 2: 2, 4: 4, 8: 4, 16: 16, 32: 32}


def test_rungs_are_wanted_for_nccl_only_and_once_each() -> None:
    other = CollectiveKey(kind="reduce_scatter", unit="a", phase="backward")
    plan = schedule(
        decisions=(
            Decision(collective=KEY, num_ctas=8),
            Decision(collective=other, path=Path.COPY_ENGINE),
        ),
        separate_reduce_scatter_group=True,
    )
    budgets, nearest = wanted_rungs(plan, ["all_gather", "reduce_scatter"])
    assert budgets == {"all_gather": [8], "reduce_scatter": [0]}
    assert nearest == {("all_gather", 8): 8}


def test_empty_ladder_leaves_every_group_alone() -> None:
    group: Any = object()
    assert Ladder().pick(group, "all_gather", None) is group


# Agreement


def settle(plan: Schedule | None, *, job: Fingerprint = JOB, local: str = "", environment: str = "") -> Any:
    return agree(
        AloneExchange(), schedule=plan, local_problem=local, job=job, settings={"mode": "replay"},
        environment_problem=environment,
    )  # fmt: skip


def test_a_fitting_schedule_comes_back_unchanged() -> None:
    plan = schedule(decisions=(Decision(collective=KEY, num_ctas=4),))
    answer = settle(plan)
    assert answer.schedule == plan
    assert answer.problems == ()


def test_another_model_is_a_problem_and_other_conditions_only_a_warning() -> None:
    job = Fingerprint(
        wrapper="fsdp2", world_size=2, units=(UnitShape(name="a", numel=16, dtype="bf16"),),
        conditions={"gpu": "other"},
    )  # fmt: skip
    answer = settle(schedule(fingerprint=JOB), job=job)
    assert any("8 bf16 elements" in p and "16 bf16" in p for p in answer.problems)
    made = Fingerprint(wrapper="fsdp2", world_size=2, units=JOB.units, conditions={"gpu": "H200"})
    same = Fingerprint(wrapper="fsdp2", world_size=2, units=JOB.units, conditions={"gpu": "other"})
    answer = settle(schedule(fingerprint=made), job=same)
    assert answer.problems == ()
    assert "H200" in answer.warnings[0]


def test_problems_of_file_and_environment_are_carried_into_the_error() -> None:
    answer = settle(None, local="schedule.json: not JSON", environment="NCCL_MAX_CTAS=4 overrides")
    error = mismatch_error(answer.problems)
    assert isinstance(error, MismatchError)
    assert "not JSON" in str(error)
    assert "NCCL_MAX_CTAS=4" in str(error)
    assert 'on_mismatch="stock"' in str(error)


def test_difference_names_the_collective_and_both_values() -> None:
    mine = schedule(decisions=(Decision(collective=KEY, num_ctas=4),), forward_prefetch=1)
    other = schedule(decisions=(Decision(collective=KEY, num_ctas=8),))
    assert describe_difference(mine, other) == [
        "all_gather(a, forward): num_ctas is 4 here, rank 0 has 8",
        "forward_prefetch is 1 here, rank 0 has None",
    ]


# Environment


def test_environment_that_overrides_budgets_is_named() -> None:
    plan = schedule(decisions=(Decision(collective=KEY, num_ctas=4),))
    environment = {"NCCL_MAX_CTAS": "16", "HOME": "/"}
    assert "NCCL_MAX_CTAS=16" in budget_problem(plan, environment, "nccl")
    assert budget_problem(plan, environment, "gloo") == ""
    assert budget_problem(schedule(), environment, "nccl") == ""
    assert budget_problem(plan, {}, "nccl") == ""
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in connection_warning({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "cuda")
    assert connection_warning({"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, "cuda") == ""


# Attach without a job


def test_disabled_attach_is_a_no_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAREUS_DISABLE", "1")
    with kareus.attach(nn.Linear(2, 2), schedule="does-not-exist.json") as session:
        session.step()
        assert session.report()["reason"] == "KAREUS_DISABLE=1"
        assert session.step_count == 0
    assert kareus.ddp_kwargs("does-not-exist.json") == {}


def test_attach_without_a_process_group_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="init_process_group"):
        kareus.attach(nn.Linear(2, 2))


def test_ddp_kwargs_are_what_the_schedule_fixes(monkeypatch: pytest.MonkeyPatch, tmp_path: FilePath) -> None:
    assert kareus.ddp_kwargs(schedule()) == {}
    assert kareus.ddp_kwargs(schedule(ddp_bucket_cap_mb=50.0)) == {"bucket_cap_mb": 50.0}
    path = tmp_path / "schedule.json"
    schedule(ddp_bucket_cap_mb=8.0).save(str(path))
    monkeypatch.setenv("KAREUS_SCHEDULE", str(path))
    assert kareus.ddp_kwargs() == {"bucket_cap_mb": 8.0}


# Copies


def test_chunks_cover_everything_once() -> None:
    assert chunk_sizes(10, 3) == [4, 3, 3]
    assert chunk_sizes(2, 4) == [1, 1, 0, 0]


def test_sums_run_in_rank_order_and_scale_as_asked() -> None:
    parts = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([5.0, 9.0])]
    op = torch.distributed.ReduceOp
    assert sum_in_rank_order(parts, op.SUM).tolist() == [9.0, 15.0]
    assert sum_in_rank_order(parts, op.AVG).tolist() == [3.0, 5.0]
    assert parts[0].tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="sums only"):
        sum_in_rank_order(parts, op.MAX)


# Windows


def test_window_ends_at_the_next_unit_event() -> None:
    tokens = ["pre_forward:a:0", "point:P", "point:Q", "post_forward:a:0", "pre_forward:b:0", "point:R"]
    targets = {
        "point:P": [("b", "forward")],
        "point:Q": [("c", "forward")],
        "point:R": [("d", "forward")],
        "point:S": [("e", "forward")],
    }
    windows = plan_windows(tokens, targets)
    assert windows.at_point["point:P"] == (("b", "forward"),)
    assert windows.at_point["point:Q"] == (("b", "forward"), ("c", "forward"))
    assert windows.before_anchor == {"post_forward:a:0": (("b", "forward"), ("c", "forward"))}
    assert windows.dropped == ("point:S",)
    assert ("e", "forward") not in windows.launched


# Launch points


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return x + self.second(self.first(x))


def board_for(model: nn.Module, met: list[LaunchPoint], tally: Tally | None = None) -> LaunchBoard:
    return LaunchBoard(model, CpuTimeline(), active=lambda: True, tally=tally or Tally(0), on_met=met.append)


def test_points_are_met_in_program_order_in_both_passes() -> None:
    model = Two()
    points = [
        LaunchPoint(module=m, phase=p, side=s)  # type: ignore[arg-type]
        for m in ("first", "second") for p in ("forward", "backward") for s in ("before", "after")
    ]  # fmt: skip
    met: list[LaunchPoint] = []
    board = board_for(model, met)
    board.install(set(points))
    x = torch.randn(2, 4, requires_grad=True)
    model(x).sum().backward()
    names = [str(p) for p in met]
    assert names[:5] == [
        "before first (forward)",
        "after first (forward)",
        "before second (forward)",
        "after second (forward)",
        "before second (backward)",
    ]
    # The gradient that leaves `second` is the one that enters `first`: one moment, two names.
    assert set(names[5:7]) == {"after second (backward)", "before first (backward)"}
    assert names[7:] == ["after first (backward)"]
    board.remove()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_recomputation_does_not_meet_forward_points() -> None:
    from torch.utils.checkpoint import checkpoint

    for reentrant in (True, False):
        model = Two()
        met: list[LaunchPoint] = []
        board = board_for(model, met)
        board.install({LaunchPoint(module="first", phase="forward", side="before")})
        x = torch.randn(2, 4, requires_grad=True)
        out = checkpoint(model, x, use_reentrant=reentrant)
        assert len(met) == 1
        board.begin_pass()
        out.sum().backward()
        assert len(met) == 1


def test_unreachable_points_are_counted_not_raised() -> None:
    model = Two()
    model.first.compile(backend="eager")
    tally = Tally(0)
    board = board_for(model, [], tally)
    board.install(
        {
            LaunchPoint(module="missing", phase="forward", side="before"),
            LaunchPoint(module="first", phase="forward", side="before"),
        }
    )
    assert tally.counts["launch_unreachable"] == 2
    assert board.reachable == set()


def test_paths_see_through_wrappers() -> None:
    model = Two()
    model.first = torch.compile(model.first, backend="eager")
    assert module_paths(model)["first"] is model.first._orig_mod
    assert compiled_paths(model) == {"first._orig_mod"}


# Deferral


class Unit:
    reduce_grads = True

    def __init__(self) -> None:
        self._post_forward_indices: list[int] = []


def test_deferral_keeps_order_and_flushes_at_the_end() -> None:
    ran: list[str] = []
    units = {name: Unit() for name in "abc"}

    class State:
        def _root_post_backward_final_callback(self) -> None:
            ran.append("final")

    deferral = ReduceDeferral(1, active=lambda: True)
    state = State()
    deferral.wrap_final_callback(state)
    for name, unit in units.items():
        deferral.post_backward(unit, lambda name=name: ran.append(name))
    assert ran == ["a", "b"]
    state._root_post_backward_final_callback()
    assert ran == ["a", "b", "c", "final"]
    deferral.unwrap_final_callback(state)
    assert not vars(state)


def test_unit_with_another_use_to_come_is_not_deferred() -> None:
    ran: list[str] = []
    unit = Unit()
    unit._post_forward_indices = [0]
    ReduceDeferral(2, active=lambda: True).post_backward(unit, lambda: ran.append("now"))
    assert ran == ["now"]


# Records


def test_records_survive_a_half_written_line(tmp_path: FilePath) -> None:
    writer = RecordWriter(str(tmp_path), 3, Tally(3))
    writer.write(StepRecord(step=0, rank=3, arm="stock", time_us=1.5))
    writer.write(StepRecord(step=1, rank=3, arm="scheduled", time_us=2.5, energy_j=4.0))
    writer.close()
    path = tmp_path / "records-rank3.jsonl"
    with path.open("ab") as file:
        file.write(b'{"step": 2, "ra')
    found = read_records(str(path))
    assert [(r.step, r.arm, r.energy_j) for r in found] == [(0, "stock", None), (1, "scheduled", 4.0)]
    assert json.loads(path.read_text().splitlines()[0])["schema"] == "kareus.step_record/1"


class FullDisk:
    def write(self, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        return None


def test_full_disk_is_logged_once_and_counted(tmp_path: FilePath, caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally(0)
    writer = RecordWriter(str(tmp_path), 0, tally)
    writer.close()
    writer._file = FullDisk()
    with caplog.at_level(logging.WARNING, "kareus"):
        for step in range(3):
            writer.write(StepRecord(step=step, rank=0, arm="stock", time_us=1.0))
    assert tally.counts["records_failed"] == 3
    assert len(caplog.records) == 1
    assert len(writer.records) == 3


# Divergence


def test_issue_hash_sees_order_path_budget_and_size() -> None:
    def digest(*notes: tuple[Any, ...]) -> str:
        log = IssueLog()
        for key, *shared in notes:
            log.add(key, str(key).encode(), issue_text(key, *shared))
        return log.digest

    other = CollectiveKey(kind="all_gather", unit="b", phase="forward")
    base = digest((KEY, "nccl", 4, 64), (other, "nccl", 4, 64))
    assert base == digest((KEY, "nccl", 4, 64), (other, "nccl", 4, 64))
    for changed in (
        digest((other, "nccl", 4, 64), (KEY, "nccl", 4, 64)),
        digest((KEY, "copy_engine", 4, 64), (other, "nccl", 4, 64)),
        digest((KEY, "nccl", 8, 64), (other, "nccl", 4, 64)),
        digest((KEY, "nccl", 4, 65), (other, "nccl", 4, 64)),
    ):
        assert changed != base


class Store:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, name: str, value: str) -> None:
        self.values[name] = value.encode()

    def check(self, names: list[str]) -> bool:
        return all(n in self.values for n in names)

    def get(self, name: str) -> bytes:
        return self.values[name]


def watch(rank: int, store: Store | None, tally: Tally) -> Watch:
    return Watch(rank=rank, world_size=2, timeline=CpuTimeline(), tally=tally, after_s=0.05, store=store)


def test_watch_names_the_waiting_collective_and_who_is_elsewhere() -> None:
    store, tallies = Store(), [Tally(0), Tally(1)]
    watches = [watch(rank, store, tallies[rank]) for rank in (0, 1)]
    watches[0].enter(KEY)
    watches[1].enter(CollectiveKey(kind="reduce_scatter", unit="a", phase="backward"))
    time.sleep(0.06)
    for each in watches:
        each.check()
    assert "all_gather(a, forward)" in watches[0].messages[0]
    assert "rank 0 waits in all_gather(a, forward) (another one)" in watches[1].messages[0]
    watches[1].check()
    assert tallies[1].counts["collective_waits"] == 1


def test_watch_thread_reports_and_ends() -> None:
    tally = Tally(0)
    each = watch(0, None, tally)
    each.start()
    token = each.enter(KEY)
    deadline = time.monotonic() + 5
    while not each.messages and time.monotonic() < deadline:
        time.sleep(0.02)
    each.leave(token, None)
    each.stop()
    assert "all_gather(a, forward)" in each.messages[0]
    assert not any(t.name == "kareus-watchdog" and t.is_alive() for t in threading.enumerate())


# Compute SMs


class Limit:
    name = "limit"

    def __init__(self, fails: bool = False) -> None:
        self.calls: list[Any] = []
        self.fails = fails

    def enter(self, margin: int) -> None:
        if self.fails:
            raise RuntimeError("no such thing here")
        self.calls.append(margin)

    def leave(self) -> None:
        self.calls.append("leave")


def test_compute_limit_follows_the_arm_and_gives_up_quietly() -> None:
    limit = Limit()
    switch = ComputeSms(limit, 8, Tally(0))
    for scheduled in (True, True, False, True):
        switch.on_arm(scheduled=scheduled)
    switch.finish()
    assert limit.calls == [8, "leave", 8, "leave"]
    tally = Tally(0)
    broken = ComputeSms(Limit(fails=True), 8, tally)
    broken.on_arm(scheduled=True)
    broken.on_arm(scheduled=True)
    assert tally.counts["compute_sms_failed"] == 1


def test_carveout_restores_what_was_set() -> None:
    if not hasattr(torch._C, "_set_sm_carveout_experimental"):
        pytest.skip("this torch has no SM carve-out")
    before = torch._C._get_sm_carveout_experimental()
    switch = open_compute_sms(16, torch.device("cpu"), Tally(0))
    assert switch is not None
    switch.on_arm(scheduled=True)
    assert torch._C._get_sm_carveout_experimental() == 16
    switch.finish()
    assert torch._C._get_sm_carveout_experimental() == before
    assert open_compute_sms(None, torch.device("cpu"), Tally(0)) is None


# Sequence


def test_sequence_that_differs_is_named_and_more_micro_batches_are_not() -> None:
    other = CollectiveKey(kind="reduce_scatter", unit="a", phase="backward")
    made = Fingerprint(wrapper="fsdp2", world_size=2, units=JOB.units, collectives=(KEY, other))
    plan = schedule(fingerprint=made)
    again = CollectiveKey(kind="all_gather", unit="a", phase="forward", ordinal=1)
    assert sequence_problem(plan, (KEY, other, again)) == ""
    assert "missing reduce_scatter(a, backward)" in sequence_problem(plan, (KEY,))
    new = CollectiveKey(kind="all_gather", unit="b", phase="forward")
    assert "new all_gather(b, forward)" in sequence_problem(plan, (KEY, other, new))


# Clocks


class Governor:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def start(self) -> None:
        self.calls.append("start")

    def enter(self, region_index: int, event: Any = None) -> None:
        self.calls.append((region_index, event))

    def stop(self, timeout_s: float = 10.0) -> str:
        self.calls.append("stop")
        return "report"


class Mark:
    def query(self) -> bool:
        return True


def test_clock_control_follows_points_and_arms() -> None:
    here = LaunchPoint(module="a", phase="backward", side="before")
    regions = (ClockRegion(sm_clock_mhz=1400), ClockRegion(start=here, sm_clock_mhz=1200))
    governors: list[Governor] = []

    def make() -> Governor:
        governors.append(Governor())
        return governors[-1]

    control = ClockControl(regions, make)
    mark = Mark()
    control.on_met(here, mark)
    control.on_arm(scheduled=True)
    control.on_met(here, mark)
    control.on_met(LaunchPoint(module="b", phase="forward", side="after"), mark)
    control.on_arm(scheduled=False)
    control.finish()
    assert control.points() == {here}
    assert [g.calls for g in governors] == [["start", (1, mark), "stop"]]
    assert control.reports == ["report"]


def test_clocks_without_a_gpu_are_counted_and_left_alone() -> None:
    tally = Tally(0)
    plan = schedule(clocks=(ClockRegion(sm_clock_mhz=1400),))
    assert open_clocks(plan, None, tally) is None
    assert tally.counts["clocks_unavailable"] == 1
    assert open_clocks(schedule(), None, tally) is None
