import os
import subprocess
import sys
import time

import pytest

from kareus.device import EnergyMeter, open_meter
from kareus.device.locks import GpuLock, foreign_processes
from kareus.device.period import CounterPeriod, measure_counter_period
from kareus.device.visible import open_gpu

FAST = CounterPeriod(period_s=0.01, measured=True)  # the fake's counter set to 10 ms keeps tests short


@pytest.fixture
def meter(fake, nvml):
    fake.set(0, counter_period_us=10_000, load_permille=1000)
    opened = EnergyMeter(open_gpu(nvml, 0), period=FAST, sample_period_s=0.01)
    yield opened
    opened.close()


def true_j(fake, before_uj):
    return (fake.get("energy_uj") - before_uj) / 1e6


def test_counter_window_agrees_with_the_energy_spent(fake, meter):
    before = fake.get("energy_uj")
    meter.begin("w")
    time.sleep(0.3)
    reading = meter.end("w")
    spent = true_j(fake, before)
    assert reading.source == "counter"
    assert set(reading.flags) <= {"power_gap"}  # the sampling thread may starve on a busy machine
    assert abs(reading.energy_j - spent) <= reading.uncertainty_j + 0.02 * spent
    assert reading.uncertainty_j == pytest.approx(reading.energy_j / reading.seconds * 0.01)
    assert reading.power_to_counter == pytest.approx(1, abs=0.08)


def test_nested_and_overlapping_windows(meter):
    meter.begin("outer")
    time.sleep(0.1)
    meter.begin("inner")
    time.sleep(0.1)
    outer = meter.end("outer")
    time.sleep(0.1)
    inner = meter.end("inner")
    assert outer.energy_j / outer.seconds == pytest.approx(680, rel=0.15)
    assert inner.energy_j / inner.seconds == pytest.approx(680, rel=0.15)
    assert meter.end("inner").flags == ("unknown_window",)


def test_integrated_power_where_there_is_no_counter(fake, nvml, caplog):
    fake.set(0, no_counter=1, load_permille=1000)
    meter = EnergyMeter(open_gpu(nvml, 0), sample_period_s=0.01)
    before = fake.get("energy_uj")
    meter.begin("w")
    time.sleep(0.15)
    reading = meter.end("w")
    assert (reading.source, meter.source) == ("power", "power")
    assert reading.energy_j == pytest.approx(true_j(fake, before), rel=0.1)
    assert [r.message for r in caplog.records] == ["Fake A has no energy counter; integrating instant power."]
    meter.close()


def test_average_power_is_named(fake, nvml):
    fake.set(0, no_counter=1, no_instant_power=1)
    meter = EnergyMeter(open_gpu(nvml, 0), sample_period_s=0.01)
    meter.begin("w")
    time.sleep(0.05)
    assert "power_average" in meter.end("w").flags
    meter.close()


def test_no_reading_is_none_and_never_zero(fake, nvml):
    fake.set(0, no_counter=1, no_power=1)
    meter = EnergyMeter(open_gpu(nvml, 0))
    meter.begin("w")
    reading = meter.end("w")
    assert (reading.energy_j, reading.source) == (None, "none")
    assert "no_energy_source" in reading.flags
    meter.close()


def test_short_windows_are_flagged_and_an_unmoved_counter_is_not_zero(fake, nvml):
    fake.set(0, counter_period_us=10_000_000)
    meter = EnergyMeter(open_gpu(nvml, 0), period=CounterPeriod(period_s=10.0, measured=True))
    meter.begin("w")
    time.sleep(0.03)
    reading = meter.end("w")
    assert (reading.source, "short" in reading.flags) == ("power", True)
    assert reading.energy_j > 0
    meter.close()


def test_a_gap_in_the_samples_is_flagged(fake, meter):
    meter.begin("w")
    meter._sampler.stop()
    meter._sampler.period_s = 0.01  # a loaded machine may have made it longer
    time.sleep(0.15)
    reading = meter.end("w")
    assert "power_gap" in reading.flags
    assert reading.power_to_counter is None or reading.power_to_counter == pytest.approx(1, abs=0.2)


def test_a_counter_that_runs_backwards_is_never_negative(fake, meter):
    meter.begin("w")
    time.sleep(0.05)
    fake.set(0, counter_offset_mj=-500_000)
    time.sleep(0.25)
    reading = meter.end("w")
    assert reading.source == "power"
    assert reading.energy_j > 0
    assert "counter_went_back" in reading.flags


def test_a_step_back_inside_a_window_is_seen_by_the_samples(fake, meter):
    meter.begin("w")
    time.sleep(0.2)
    fake.set(0, counter_offset_mj=-60_000)  # less than the window's own energy: start < end all the same
    time.sleep(0.2)
    reading = meter.end("w")
    assert reading.source == "power"
    assert "counter_went_back" in reading.flags


def test_a_stalled_counter_falls_back_to_power(fake, meter):
    fake.set(0, counter_stalled=5_000_000)
    time.sleep(0.03)
    meter.begin("w")
    time.sleep(0.25)
    reading = meter.end("w")
    assert (reading.source, "counter_stalled" in reading.flags) == ("power", True)
    assert reading.energy_j == pytest.approx(680 * reading.seconds, rel=0.1)


def test_disagreeing_sources_are_reported(fake, meter):
    meter.begin("w")
    time.sleep(0.15)
    fake.set(0, counter_offset_mj=200_000)
    time.sleep(0.15)
    reading = meter.end("w")
    assert "sources_disagree" in reading.flags
    assert (meter.disagreements, reading.power_to_counter < 0.9) == (1, True)


def test_counter_period_is_measured_to_its_polling_step():
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    found = measure_counter_period(lambda: int(now[0] / 0.1), clock=lambda: now[0], sleep=sleep)
    assert found.period_s == pytest.approx(0.1, abs=0.002)
    assert (found.measured, found.num_changes) == (True, 12)
    frozen = measure_counter_period(lambda: 7, clock=lambda: now[0], sleep=sleep)
    assert (frozen.measured, frozen.period_s) == (False, 0.1)
    absent = measure_counter_period(lambda: None, clock=lambda: now[0], sleep=sleep)
    assert not absent.measured


def test_the_lowest_rank_on_a_gpu_owns_it(meter):
    assert meter.settle_owner([0, 0, 1], 0)
    assert not meter.settle_owner([0, 0, 1], 1)
    meter.begin("w")
    assert meter.end("w").flags == ("not_owner",)


def test_one_owner_by_lock_and_the_next_one_after_its_death(fake):
    code = (
        "import time\nfrom kareus.device import open_meter\n"
        "m = open_meter(0)\nprint(m.owner, flush=True)\ntime.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], env=fake.env(), stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "True\n"
        second = open_meter(0)
        assert not second.owner
        second.close()
    finally:
        child.kill()
        child.wait(10)
        child.stdout.close()
    third = open_meter(0)
    assert third.owner
    third.close()


def test_strangers_on_the_gpu_are_reported(fake, caplog):
    stranger = 1 if os.getppid() != 1 else 2
    fake.set(0, pid0=os.getpid(), pid1=stranger)
    meter = open_meter(0)
    assert meter.foreign_processes() == (stranger,)
    assert [f"used by processes {stranger};" in r.message for r in caplog.records] == [True]
    meter.close()


def test_no_gpu_is_one_message(fake, monkeypatch, caplog):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert open_meter(0) is None
    assert len(caplog.records) == 1


def test_lock_says_who_holds_it(tmp_path):
    first, second = GpuLock("GPU-x", "control", tmp_path), GpuLock("GPU-x", "control", tmp_path)
    assert first.acquire()
    assert not second.acquire()
    assert second.holder.startswith(f"pid {os.getpid()} on ")
    first.release()
    assert second.acquire()
    second.release()


def test_foreign_processes():
    assert foreign_processes((os.getpid(), 1)) == ((1,) if os.getppid() != 1 else ())
    assert foreign_processes((2**22 + 1,)) is None  # no such process here: numbers of another namespace
    assert foreign_processes(None) is None
    assert foreign_processes(()) == ()
