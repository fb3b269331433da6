"""Every NVML function this package calls x every error code: nothing raises, one message, counted."""

import logging
import re
import time
from pathlib import Path

import pynvml
import pytest

from kareus.device import EnergyMeter, Governor, Sampler, findings, open_meter
from kareus.device import nvml as nvml_module
from kareus.device.doctor import diagnose
from kareus.device.gpu import Gpu
from kareus.device.nvml import CODES, Failure, Nvml
from kareus.device.period import CounterPeriod
from kareus.schedule import ClockRegion

PACKAGE = Path(nvml_module.__file__).parent
PYNVML_CODES = [getattr(pynvml, name) for name in dir(pynvml) if name.startswith("NVML_ERROR_")]
ALL_CODES = [*sorted(PYNVML_CODES), 777]  # the last is of a driver that does not exist yet
REPORTED = set(ALL_CODES) - nvml_module.ABSENT


def functions_we_call():
    """NVML functions named in the package's source, as nvidia-ml-py calls the driver's symbols."""
    named = set()
    for path in PACKAGE.glob("*.py"):
        named |= set(re.findall(r'"(nvml[A-Z]\w+)"', path.read_text()))
    renamed = {
        "nvmlInit": "nvmlInitWithFlags",
        "nvmlDeviceGetCount": "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetHandleByIndex": "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetPciInfo": "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetComputeRunningProcesses": "nvmlDeviceGetComputeRunningProcesses_v3",
    }
    return sorted(renamed.get(name, name) for name in named)


FUNCTIONS = functions_we_call()
SETTERS = [name for name in FUNCTIONS if "Set" in name or "Reset" in name]


def test_the_matrix_is_what_the_source_calls(fake):
    assert len(FUNCTIONS) * len(ALL_CODES) >= 200
    assert set(FUNCTIONS) <= set(fake.functions())
    assert len(SETTERS) == 5
    assert set(CODES) >= set(ALL_CODES) - {777, 0}


def train():
    """What a job does with this package: meter, sampler, findings, doctor, and every reading."""
    meter = open_meter(0)
    if meter is None:
        return None
    meter.begin("step")
    sampler = Sampler(meter, period_s=0.001).start()
    findings(0, measure=False)
    gpu = meter.gpu
    readings = [gpu.memory_clock_mhz(), gpu.power_limit_default_mw(), gpu.event_reasons(), meter.read()]
    assert len(readings) == 4
    sampler.stop()
    meter.foreign_processes()
    diagnose(measure=False, probe=False)
    reading = meter.end("step")
    meter.close()
    return reading


@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name not in SETTERS])
def test_readings(fake, monkeypatch, caplog, function):
    monkeypatch.setattr(EnergyMeter, "_measure_period", lambda self: None)
    fake.set(0, mig_instances=1)  # so that the functions about MIG are called too
    if function == "nvmlDeviceGetPowerUsage":  # the second choice
        fake.set(0, no_instant_power=1)
    if function == "nvmlDeviceGetCurrentClocksThrottleReasons":
        fake.fail("nvmlDeviceGetCurrentClocksEventReasons", 13)
    for code in ALL_CODES:
        caplog.clear()
        monkeypatch.setattr(nvml_module, "_session", None)
        before = fake.calls(function)
        fake.fail(function, code)
        reading = train()
        session = nvml_module._session[1]
        assert fake.calls(function) > before
        assert reading is None or reading.energy_j is None or reading.energy_j > 0
        injected = [key for key in session.failures if key[1] == code]
        messages = [r.message for r in caplog.records if Failure(function="x", code=code).name in r.message]
        assert injected, f"{function} returned {code} and nobody counted it"
        assert len(messages) <= 1
        assert all(r.levelno <= logging.WARNING for r in caplog.records)
        fake.fail(function, 0, 0)


@pytest.mark.parametrize("function", SETTERS)
def test_settings(fake, nvml, monkeypatch, caplog, function):
    monkeypatch.setattr("kareus.device.permissions.has_sys_admin", lambda status=None: True)
    monkeypatch.setattr("kareus.device.claim.undo", quick_undo)
    fake.set(0, load_permille=1000)
    region = ClockRegion(sm_clock_mhz=1200, memory_clock_mhz=2201, power_limit_w=500.0)
    for code in ALL_CODES:
        caplog.clear()
        fake.fail(function, code)
        session = Nvml()
        session.start()
        gpu = Gpu(session, session.call("nvmlDeviceGetHandleByIndex", 0), 0)
        governor = Governor(gpu, [region], "apply", min_dwell_s=0.003, poll_s=0.001, watchdog=False).start()
        end = time.monotonic() + 5
        while governor.active and governor.report().failures == 0 and "Reset" not in function:
            assert time.monotonic() < end
            time.sleep(0.001)
        while governor.active and governor.report().sets < 3 and "Reset" in function:
            assert time.monotonic() < end
            time.sleep(0.001)
        report = governor.stop()
        assert session.failures[function, code] >= 1
        assert report.failures >= 1
        name = Failure(function=function, code=code).name
        assert len([r for r in caplog.records if name in r.message and "not restored" not in r.message]) == 1
        fake.fail(function, 0, 0)
        follow_up(fake, gpu, governor)


def quick_undo(controller, gpu, what):
    from kareus.device.control import undo

    return undo(controller, gpu, what, attempts=1)


def follow_up(fake, gpu, governor):
    """After a failed reset the journal stays; once the driver answers again it is enough to tidy up."""
    gpu.lost = False
    assert governor._claim.release() == []
    values = [fake.get(name) for name in ("sm_lock_mhz", "memory_lock_mhz", "power_limit_mw")]
    assert values == [0, 0, 700_000]


def test_absent_features_are_counted_and_not_shouted_about(fake, nvml, caplog):
    fake.fail("nvmlDeviceGetMigMode", 3)
    gpu = Gpu(nvml, nvml.call("nvmlDeviceGetHandleByIndex", 0), 0)
    assert gpu.mig_enabled() is None
    assert nvml.failures["nvmlDeviceGetMigMode", 3] == 1
    assert caplog.records == []


@pytest.mark.parametrize("code", sorted(REPORTED))
def test_every_reported_code_has_a_message_once(fake, nvml, caplog, monkeypatch, code):
    monkeypatch.setenv("RANK", "3")
    fake.fail("nvmlDeviceGetClockInfo", code)
    gpu = Gpu(nvml, nvml.call("nvmlDeviceGetHandleByIndex", 0), 0)
    for _ in range(5):
        assert gpu.sm_clock_mhz() is None
    assert nvml.failures["nvmlDeviceGetClockInfo", code] + nvml.failures["nvmlDeviceGetClockInfo", 15] >= 5
    assert len(caplog.records) == 1
    assert caplog.records[0].message.startswith("[rank 3] nvmlDeviceGetClockInfo: ")


def test_a_gpu_that_gets_lost_while_training(fake, caplog):
    fake.set(0, load_permille=1000, counter_period_us=10_000)
    meter = open_meter(0)
    meter.period = CounterPeriod(period_s=0.01, measured=True)
    meter.begin("w")
    time.sleep(0.05)
    fake.set(0, lost=1)
    time.sleep(0.12)
    reading = meter.end("w")
    assert (reading.energy_j, reading.source) == (None, "none")
    assert [r.message for r in caplog.records if "GPU_IS_LOST" not in r.message] == []
    assert len(caplog.records) == 1
    calls = fake.calls("nvmlDeviceGetTotalEnergyConsumption")
    meter.read()
    assert fake.calls("nvmlDeviceGetTotalEnergyConsumption") == calls  # it is not asked again
    meter.close()


def test_doctor_survives_every_code_everywhere(fake, monkeypatch):
    for code in ALL_CODES:
        for function in FUNCTIONS:
            fake.fail(function, code)
        monkeypatch.setattr(nvml_module, "_session", None)
        report = diagnose(measure=False, probe=False)
        assert not report.ok
        assert report.advice


def test_no_library_is_one_message(monkeypatch, caplog):
    monkeypatch.setattr(nvml_module, "_session", None)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: (_ for _ in ()).throw(pynvml.NVMLError(12)))
    assert open_meter(0) is None
    assert open_meter(0) is None
    assert ["LIBRARY_NOT_FOUND" in r.message for r in caplog.records] == [True]


def test_another_pynvml_is_recognised(monkeypatch):
    monkeypatch.delattr(pynvml, "nvmlDeviceGetFieldValues")
    assert "pip install nvidia-ml-py" in str(Nvml().start())
