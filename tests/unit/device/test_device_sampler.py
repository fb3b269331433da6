import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from kareus.device import Sampler
from kareus.device.gpu import RawSample
from kareus.device.visible import open_gpu

BENCH = Path(__file__).parents[2] / "bench" / "bench_device.py"


class Scripted:
    """A GPU that gives readings from a list."""

    lost = False

    def __init__(self, *rows):
        self.rows = list(rows)
        self.gpu = self

    def sample(self):
        energy, power, clock = self.rows.pop(0)
        return RawSample(energy_mj=energy, power_mw=power, sm_clock_mhz=clock)


@pytest.fixture
def seconds(monkeypatch):
    """A clock that gives 1 s, 2 s, ..."""
    now = [0]

    def tick():
        now[0] += 1_000_000_000
        return now[0]

    monkeypatch.setattr("kareus.device.sampler.time.monotonic_ns", tick)


def test_columns_and_missing_values(seconds):
    sampler = Sampler(Scripted((5, 100, 1980), (None, None, 1410), (9, 300, None)))
    for _ in range(3):
        sampler.take()
    columns = sampler.columns()
    assert columns.energy_mj.tolist() == [5, -1, 9]
    assert columns.power_mw.tolist() == [100, -1, 300]
    assert columns.sm_clock_mhz.tolist() == [1980, 1410, -1]
    assert columns.time_ns.dtype == np.int64
    assert sampler.missed == 1


def test_the_integral_bridges_missing_readings(seconds):
    sampler = Sampler(Scripted((0, 1000, 0), (0, None, 0), (0, 3000, 0)), period_s=1.0)
    first, _, last = (sampler.take() for _ in range(3))
    assert sampler.energy_between_j(first, last) == (pytest.approx(4.0), 2.0)  # (1 W + 3 W) / 2 * 2 s


def test_no_integral_without_both_ends(seconds):
    sampler = Sampler(Scripted((0, None, 0), (0, 3000, 0)))
    first, last = sampler.take(), sampler.take()
    assert sampler.energy_between_j(first, last) == (None, 0.0)


def test_history_is_bounded_and_a_forgotten_start_gives_no_integral(seconds):
    sampler = Sampler(Scripted(*[(0, 1000, 0)] * 6), max_samples=3)
    taken = [sampler.take() for _ in range(6)]
    assert len(sampler.columns().time_ns) == 3
    assert sampler.energy_between_j(taken[0], taken[-1]) == (None, 0.0)
    assert sampler.energy_between_j(taken[3], taken[-1])[0] == pytest.approx(2.0)


def test_backsteps_of_the_counter_are_counted(seconds):
    sampler = Sampler(Scripted((10, 1, 0), (20, 1, 0), (5, 1, 0), (6, 1, 0)))
    for _ in range(4):
        sampler.take()
    assert sampler.counter_backsteps == 1


def test_samples_in_the_background_and_stops(fake, nvml):
    fake.set(0, load_permille=1000)
    sampler = Sampler(open_gpu(nvml, 0), period_s=0.005).start()
    time.sleep(0.2)
    columns = sampler.stop()
    assert 2 <= len(columns.time_ns) <= 45
    assert set(columns.power_mw.tolist()) == {680_000}
    assert (np.diff(columns.time_ns) > 0).all()
    calls = fake.calls("nvmlDeviceGetClockInfo")
    time.sleep(0.05)
    assert fake.calls("nvmlDeviceGetClockInfo") == calls


def test_a_driver_that_hangs_does_not_hang_its_callers(monkeypatch):
    monkeypatch.setattr("kareus.device.sampler.LOCK_TIMEOUT_S", 0.05)
    release = threading.Event()
    gpu = Scripted()
    gpu.sample = lambda: release.wait(10) and RawSample(energy_mj=1, power_mw=1, sm_clock_mhz=1)
    sampler = Sampler(gpu, period_s=0.001).start()
    time.sleep(0.05)
    samples = [sampler.take() for _ in range(100)]
    assert {sample.energy_mj for sample in samples} == {None}
    release.set()
    sampler.stop()


def test_a_lost_gpu_ends_sampling(fake, nvml):
    sampler = Sampler(open_gpu(nvml, 0), period_s=0.002).start()
    fake.set(0, lost=1)
    time.sleep(0.1)
    calls = fake.calls("nvmlDeviceGetTotalEnergyConsumption")
    time.sleep(0.05)
    assert fake.calls("nvmlDeviceGetTotalEnergyConsumption") == calls
    sampler.stop()


def test_the_benchmark_runs_read_only(fake, tmp_path):
    output = tmp_path / "device.json"
    command = [sys.executable, str(BENCH), "--no-cuda", "-o", str(output)]
    subprocess.run(command, env=fake.env(), check=True, timeout=120)
    document = json.loads(output.read_text())
    assert document["settings_unchanged"]
    assert document["counter_period"][0]["period_s"] == pytest.approx(0.1, abs=0.02)
    setters = [name for name in fake.functions() if "Set" in name or "Reset" in name]
    assert [fake.calls(name) for name in setters] == [0] * 5


def test_the_newest_sample_costs_no_reading(seconds):
    sampler = Sampler(Scripted((5, 100, 1980), (7, 200, 1410)))
    first = sampler.latest()  # there is none yet, so this one is taken
    assert sampler.latest() is first
    second = sampler.take()
    assert sampler.latest() is second


def test_slow_readings_are_taken_less_often():
    class Slow(Scripted):
        def sample(self):
            time.sleep(0.004)
            return RawSample(energy_mj=1, power_mw=1, sm_clock_mhz=1)

    sampler = Sampler(Slow(), period_s=0.01).start()
    deadline = time.monotonic() + 10
    while sampler.period_s < 0.1 and time.monotonic() < deadline:
        time.sleep(0.01)
    sampler.stop()
    assert 0.1 <= sampler.period_s <= 0.25
