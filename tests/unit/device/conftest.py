import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "fake_nvml"))

from fake_gpu import FakeGpus, build, compiler

from kareus.device import nvml as nvml_module


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory):
    if compiler() is None:
        pytest.skip("no C compiler (cc, gcc or clang) to build the fake NVML")
    return build(tmp_path_factory.mktemp("fake_nvml"))


@pytest.fixture
def fake(fake_library, tmp_path, monkeypatch):
    """Two fake GPUs behind the real pynvml, fresh for each test, and a state directory of its own."""
    monkeypatch.setenv("FAKE_NVML_STATE", str(tmp_path / "gpus"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_library.parent))
    monkeypatch.setenv("KAREUS_STATE_DIR", str(tmp_path / "state"))
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ZEUSD_SOCK_PATH", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(nvml_module, "_session", None)
    assert os.environ["FAKE_NVML_STATE"]
    return FakeGpus(fake_library, tmp_path / "gpus", 2)


@pytest.fixture
def nvml(fake):
    session = nvml_module.Nvml()
    assert session.start() is None
    return session
