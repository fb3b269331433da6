"""On a real GPU, reading only: energy, counter period, and that no setting changed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
    output = tmp_path_factory.mktemp("device") / "device.json"
    # A process of its own: this one may have loaded the fake NVML for other tests.
    env = {name: value for name, value in os.environ.items() if name != "FAKE_NVML_STATE"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), env.get("PYTHONPATH"))))
    script = ROOT / "tests" / "bench" / "bench_device.py"
    subprocess.run([sys.executable, str(script), "-o", str(output)], check=True, env=env, timeout=200)
    return json.loads(output.read_text())


def test_energy_of_a_gemm_window_agrees_with_integrated_power(measured):
    window = measured["energy_window"]
    assert window["source"] == "counter"
    assert window["seconds"] >= 10
    assert abs(window["power_to_counter"] - 1) < 0.03


def test_the_counter_moves_every_100_ms(measured):
    assert all(0.09 <= period["period_s"] <= 0.11 for period in measured["counter_period"])


def test_no_setting_changed(measured):
    assert measured["settings_before"] == measured["settings_after"]
    assert measured["settings_before"]["nvmlDeviceGetPowerManagementLimit"] > 0
    assert not any("Set" in name or "Reset" in name for name in measured["nvml_failures"])
