"""The Zeus search against a GPU of the fake NVML: it sets limits, measures them and gives the old one back."""

import time

import pytest

from kareus.device import EnergyMeter
from kareus.device.visible import open_gpu
from kareus.plan.policies.zeus import PowerLimitSearch, least_energy
from kareus.plan.policies.zeus_gpu import MeterWindow, limit_governor, limit_setter

LIMITS_W = (600, 400)


@pytest.fixture
def meter(fake, nvml, monkeypatch):
    fake.set(0, load_permille=1000)
    monkeypatch.setattr("kareus.device.permissions.has_sys_admin", lambda status=None: True)
    meter = EnergyMeter(open_gpu(nvml, 0))
    yield meter
    meter.close()


def search_on(meter, governor, synchronize=lambda: None):
    window = MeterWindow(meter, synchronize)
    setter = limit_setter(governor, meter, LIMITS_W)
    return PowerLimitSearch(LIMITS_W, least_energy, window, setter, warm_up_steps=3, measure_steps=10)


def train(search, steps):
    for _ in range(steps):
        search.on_step_begin()
        time.sleep(0.05)


def test_every_limit_is_set_and_measured_and_the_old_one_returns(meter):
    before = meter.gpu.power_limit_mw()
    governor = limit_governor(meter, LIMITS_W, min_dwell_s=0.05).start()
    waits = []
    search = search_on(meter, governor, lambda: waits.append(meter.gpu.power_limit_mw()))
    train(search, 1 + 2 * 13 + 1)
    assert search.failure is None
    assert [cost.power_limit_w for cost in search.costs] == [600, 400]
    assert all(cost.energy_j > 0 and cost.time_s > 0.4 for cost in search.costs)
    assert waits == [600_000, 600_000, 400_000, 400_000]  # in force at both ends of each window
    report = governor.stop()
    assert report.restored
    assert meter.gpu.power_limit_mw() == before != 400_000


def test_without_permission_training_goes_on_and_the_reason_is_kept(meter, monkeypatch):
    monkeypatch.setattr("kareus.device.permissions.has_sys_admin", lambda status=None: False)
    before = meter.gpu.power_limit_mw()
    governor = limit_governor(meter, LIMITS_W).start()
    search = search_on(meter, governor)
    train(search, 20)
    assert search.done
    assert "clocks are left alone" in search.failure
    assert meter.gpu.power_limit_mw() == before
    governor.stop()


def test_a_rank_that_does_not_own_the_gpu_adds_nothing(meter):
    meter.settle_owner([1, 1], 1)
    window = MeterWindow(meter, lambda: None)
    window.begin()
    time.sleep(0.05)
    seconds, energy_j = window.end()
    assert seconds >= 0.05
    assert energy_j >= 0.0
