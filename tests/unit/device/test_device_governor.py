import threading
import time

import pytest

from kareus.device import Governor
from kareus.device.control import Undo
from kareus.device.governor import dwell_for
from kareus.device.journal import JournalEntry, entry_for, read_entry, start_ticks, write_entry
from kareus.device.locks import GpuLock
from kareus.device.visible import open_gpu
from kareus.schedule import ClockRegion, LaunchPoint

POINT = LaunchPoint(module="blocks.0", phase="forward", side="before")


class FakeEvent:
    def __init__(self):
        self.passed = threading.Event()

    def query(self):
        return self.passed.is_set()


class BrokenEvent:
    def query(self):
        raise RuntimeError("CUDA error")


def regions(*clocks, limit_w=None):
    return [ClockRegion(start=POINT, sm_clock_mhz=clock, power_limit_w=limit_w) for clock in clocks]


def until(condition, limit_s=10.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)


@pytest.fixture
def gpu(fake, nvml, monkeypatch):
    fake.set(0, load_permille=1000)
    # tests run as any user: what the fake allows is what counts
    monkeypatch.setattr("kareus.device.permissions.has_sys_admin", lambda status=None: True)
    return open_gpu(nvml, 0)


def quick(gpu, wanted, mode="apply", **options):
    options = {"min_dwell_s": 0.05, "poll_s": 0.002, "watchdog": False, **options}
    return Governor(gpu, wanted, mode, **options).start()


def test_off_is_the_default_and_does_nothing(fake, gpu):
    governor = Governor(gpu, regions(1200)).start()
    governor.enter(0)
    report = governor.stop()
    assert (report.mode, report.active, report.sets, fake.get("sm_sets")) == ("off", False, 0, 0)


def test_advise_logs_and_sets_nothing(fake, gpu, caplog):
    caplog.set_level("INFO", "kareus.device")
    governor = quick(gpu, regions(1200, 1500, limit_w=600.0), "advise")
    for index in (0, 1, 0, 1):
        governor.enter(index)
        time.sleep(0.08)
    assert governor.stop().sets == 5  # limit once, clocks four times
    assert (fake.get("sm_sets"), fake.get("limit_sets")) == (0, 0)
    assert [r.message for r in caplog.records] == [
        "would set power limit 600 W, SM clock 1200 MHz.", "would set SM clock 1500 MHz.",
    ]  # fmt: skip


def test_applies_when_the_gpu_gets_there_and_restores(fake, gpu):
    governor = quick(gpu, regions(1200, 1500))
    first, second = FakeEvent(), FakeEvent()
    governor.enter(0, first)
    governor.enter(1, second)
    time.sleep(0.05)
    assert fake.get("sm_lock_mhz") == 0  # the CPU is there, the GPU is not
    first.passed.set()
    until(lambda: fake.get("sm_lock_mhz") == 1200)
    assert read_entry(gpu.uuid).sm_lock
    second.passed.set()
    until(lambda: fake.get("sm_lock_mhz") == 1500)
    until(lambda: len(governor.report().switch_times_s) == 2)
    report = governor.stop()
    assert fake.get("sm_lock_mhz") == 0
    assert read_entry(gpu.uuid) is None
    assert (report.entered, report.sets, report.restored) == (2, 2, True)
    assert report.verdicts["reached"] == 2
    assert all(0.006 <= seconds < 0.1 for seconds in report.switch_times_s)  # the fake takes 6 ms


def test_sets_only_on_change(fake, gpu):
    governor = quick(gpu, regions(1200, 1200, 1207, None))
    for index in (0, 1, 2, 3, 0):  # 1207 is not supported: 1200 is nearest
        governor.enter(index)
        time.sleep(0.03)
    assert governor.stop().unchanged >= 3
    assert fake.get("sm_sets") == 1


def test_a_whole_run_region_needs_no_enter(fake, gpu):
    governor = quick(gpu, [ClockRegion(sm_clock_mhz=1300, memory_clock_mhz=2201, power_limit_w=500.0)])
    until(lambda: fake.get("sm_lock_mhz") == 1305)
    assert (fake.get("memory_lock_mhz"), fake.get("power_limit_mw")) == (2201, 500_000)
    governor.stop()
    assert [fake.get(f) for f in ("sm_lock_mhz", "memory_lock_mhz", "power_limit_mw")] == [0, 0, 700_000]


def test_what_was_never_set_is_never_reset(fake, gpu):
    fake.set(0, sm_lock_mhz=1005)  # an administrator's
    governor = quick(gpu, regions(1200))
    until(lambda: read_entry(gpu.uuid) is not None)
    assert governor.stop().restored
    assert (fake.get("sm_lock_mhz"), read_entry(gpu.uuid)) == (1005, None)


def test_the_limit_returns_to_what_it_was_not_to_the_default(fake, gpu):
    fake.set(0, power_limit_mw=650_000)
    governor = quick(gpu, regions(None, limit_w=100.0))
    governor.enter(0)
    until(lambda: fake.get("power_limit_mw") == 200_000)  # the lowest allowed
    governor.stop()
    assert fake.get("power_limit_mw") == 650_000
    assert fake.get("sm_resets") == 0  # clocks were not ours


def test_dwell_of_one_second_by_default(fake, gpu):
    governor = Governor(gpu, regions(1200, 1500), "apply", watchdog=False).start()
    begin = time.monotonic()
    for turn in range(12):  # regions of 0.1 s
        governor.enter(turn % 2)
        time.sleep(0.1)
    report = governor.stop()
    elapsed = time.monotonic() - begin
    assert 1 <= fake.get("sm_sets") <= 1 + int(elapsed)
    assert report.deferred >= 1


def test_a_plan_is_executed_in_order(fake, gpu):
    governor = quick(gpu, regions(1200, 1500, 900))
    for clock, index in ((1200, 0), (1500, 1), (900, 2), (1200, 0)):
        governor.enter(index)
        until(lambda want=clock: fake.get("sm_lock_mhz") == want)
    assert governor.stop().sets == 4


def test_a_lock_that_does_not_take_is_counted_and_said_once(fake, gpu, caplog):
    fake.set(0, lock_ignored=1)
    governor = quick(gpu, [ClockRegion(sm_clock_mhz=1200, memory_clock_mhz=2201, power_limit_w=600.0)])
    until(lambda: governor.report().verdicts.get("not_taken") == 3)
    governor.stop()
    assert len([r for r in caplog.records if "did not take" in r.message]) == 1


def test_both_clocks_are_read_back(fake, gpu):
    governor = quick(gpu, [ClockRegion(sm_clock_mhz=1200, memory_clock_mhz=2201)])
    until(lambda: governor.report().verdicts == {"reached": 2})
    governor.stop()


def test_the_dwell_is_a_second_unless_switching_was_measured_to_be_faster():
    assert [dwell_for(s) for s in (0.0, 0.15, 0.02, 0.001)] == [1.0, 1.0, 0.4, 0.25]


def test_a_power_cap_is_not_the_locks_fault(fake, gpu):
    fake.set(0, peak_mw=1_200_000)
    governor = quick(gpu, regions(1980))
    governor.enter(0)
    until(lambda: governor.report().verdicts == {"capped": 1})
    governor.stop()


@pytest.mark.parametrize("code", [4, 3, 15, 24, 26, 999])
def test_a_set_that_fails_never_reaches_training(fake, gpu, caplog, code):
    fake.fail("nvmlDeviceSetGpuLockedClocks", code)
    governor = quick(gpu, regions(1200, 1500))
    for turn in range(8):
        governor.enter(turn % 2)
        time.sleep(0.07)
    report = governor.stop()
    assert report.failures >= 1
    assert report.sets == 0
    assert report.restored == (code != 15)
    assert len([r for r in caplog.records if "nvmlDeviceSetGpuLockedClocks" in r.message]) == 1


def test_a_knob_the_card_lacks_does_not_take_the_others_away(fake, gpu):
    fake.fail("nvmlDeviceSetMemoryLockedClocks", 3)
    governor = quick(gpu, [ClockRegion(sm_clock_mhz=1200, memory_clock_mhz=2201, power_limit_w=500.0)])
    until(lambda: fake.get("sm_lock_mhz") == 1200)
    time.sleep(0.2)
    assert governor.active
    report = governor.stop()
    assert (report.sets, report.failures) == (2, 1)


def test_without_permission_nothing_starts_and_the_remedy_is_named(fake, gpu, monkeypatch, caplog):
    monkeypatch.setattr("kareus.device.permissions.has_sys_admin", lambda status=None: False)
    governor = quick(gpu, regions(1200))
    governor.enter(0)
    assert not governor.active
    assert "zeusd" in governor.report().reason
    assert len(caplog.records) == 1
    assert fake.get("sm_sets") == 0


def test_mig_is_left_alone(fake, nvml):
    fake.set(0, mig_instances=2)
    governor = quick(open_gpu(nvml, 0), regions(1200))
    assert "MIG" in governor.report().reason


def test_one_owner_the_other_is_told(fake, gpu, nvml):
    first = quick(gpu, regions(1200))
    first.enter(0)
    until(lambda: fake.get("sm_lock_mhz") == 1200)
    second = quick(open_gpu(nvml, 0), regions(1500))
    second.enter(0)
    until(lambda: not second.active)
    assert "another process sets those of" in second.report().reason
    second.stop()
    assert fake.get("sm_lock_mhz") == 1200
    first.stop()
    third = quick(gpu, regions(900))
    third.enter(0)
    until(lambda: fake.get("sm_lock_mhz") == 900)
    third.stop()


def test_nothing_is_set_where_it_could_not_be_undone(fake, gpu, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KAREUS_STATE_DIR", str(tmp_path / "file" / "below"))
    governor = quick(gpu, regions(1200))
    governor.enter(0)
    until(lambda: not governor.active)
    assert "KAREUS_STATE_DIR" in governor.report().reason
    assert fake.get("sm_sets") == 0


def test_a_dead_predecessor_is_tidied_up_first(fake, gpu, tmp_path):
    fake.set(0, power_limit_mw=300_000, memory_lock_mhz=2201)
    left = entry_for(gpu, Undo(memory_lock=True, power_limit_before_mw=690_000))
    GpuLock(gpu.uuid, "control")  # makes the directory
    write_entry(JournalEntry(**{**{f: getattr(left, f) for f in left.__struct_fields__}, "pid": 2**22 + 5}))
    governor = quick(gpu, regions(None, limit_w=500.0))
    governor.enter(0)
    until(lambda: fake.get("power_limit_mw") == 500_000)
    assert fake.get("memory_lock_mhz") == 0
    governor.stop()
    assert fake.get("power_limit_mw") == 690_000


def test_broken_and_bogus_entries_are_dropped(fake, gpu):
    governor = quick(gpu, regions(1200))
    governor.enter(7)
    governor.enter(0, BrokenEvent())
    until(lambda: governor.report().events_dropped == 1)
    assert governor.stop().entered == 0


def test_enter_is_cheap(gpu):
    governor = quick(gpu, regions(1200), "advise")
    event = FakeEvent()
    for _ in range(6000):
        governor.enter(0, event)
    until(lambda: governor.report().events_dropped >= 6000 - 4096)
    governor.stop()


def test_start_ticks_tell_processes_apart():
    import os

    assert start_ticks(os.getpid()) > 0
    assert start_ticks(2**22 + 5) == -1
