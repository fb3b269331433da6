"""Records, watchdog, compute SMs and clock control, on one process."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path as FilePath
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from kareus.runtime.clocks import ClockControl, open_clocks
from kareus.runtime.compute_sms import ComputeSms, open_compute_sms
from kareus.runtime.divergence import IssueLog, Watch, issue_text
from kareus.runtime.fingerprint import sequence_problem
from kareus.runtime.records import RecordWriter, StepRecord, Tally, read_records
from kareus.runtime.streams import CpuTimeline
from kareus.schedule import (
    ClockRegion,
    CollectiveKey,
    Fingerprint,
    LaunchPoint,
    RankClocks,
    Schedule,
    UnitShape,
)

JOB = Fingerprint(wrapper="fsdp2", world_size=2, units=(UnitShape(name="a", numel=8, dtype="bf16"),))
KEY = CollectiveKey(kind="all_gather", unit="a", phase="forward")


def schedule(**arguments: Any) -> Schedule:
    return Schedule(**{"fingerprint": JOB, **arguments})


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
    assert open_clocks(plan, 0, None, tally) is None
    assert tally.counts["clocks_unavailable"] == 1
    assert open_clocks(schedule(), 0, None, tally) is None


def test_a_rank_with_clocks_of_its_own_is_given_those() -> None:
    own = RankClocks(ranks=(1,), clocks=(ClockRegion(sm_clock_mhz=1200),))
    plan = schedule(rank_clocks=(own,))
    for rank, counted in ((0, 0), (1, 1)):
        tally = Tally(rank)
        assert open_clocks(plan, rank, None, tally) is None  # no GPU to set
        assert tally.counts["clocks_unavailable"] == counted
