"""Builds the fake NVML and steers it from tests; see fake_nvml.c for the model behind it."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY = "libnvidia-ml.so.1"


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(directory: Path) -> Path:
    """Compile the fake into a directory that LD_LIBRARY_PATH can name."""
    cc = compiler()
    assert cc is not None, "no C compiler; callers skip before this"
    target = directory / LIBRARY
    command = [
        cc,
        "-O1",
        "-Wall",
        "-shared",
        "-fPIC",
        f"-Wl,-soname,{LIBRARY}",
        "-o",
        str(target),
        str(SOURCE),
    ]
    subprocess.run([*command, "-lpthread"], check=True, timeout=60)
    return target


class FakeGpus:
    """Control over the fake GPUs of one state file, shared with every process that names the file.

    Loading the library here also makes the real pynvml find it: its `CDLL("libnvidia-ml.so.1")` is
    answered by the loader with the library of that soname already in the process.
    """

    def __init__(self, library: Path, state: Path, num_gpus: int) -> None:
        self.library, self.state, self.num_gpus = library, state, num_gpus
        self._c = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        self._c.fake_get.restype = ctypes.c_longlong
        self._c.fake_calls.restype = ctypes.c_longlong
        self._c.fake_function.restype = ctypes.c_char_p
        self._c.fake_set.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_longlong]
        self._c.fake_fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_longlong]
        os.environ["FAKE_NVML_STATE"] = str(state)
        assert self._c.fake_create(os.fsencode(state), num_gpus) == 0

    def set(self, gpu: int = 0, **fields: int) -> None:
        for name, value in fields.items():
            assert self._c.fake_set(gpu, name.encode(), value) == 0, f"no field {name}"

    def get(self, field: str, gpu: int = 0) -> int:
        return int(self._c.fake_get(gpu, field.encode()))

    def fail(self, function: str, code: int, times: int = -1) -> None:
        assert self._c.fake_fail(function.encode(), code, times) == 0, f"no function {function}"

    def calls(self, function: str) -> int:
        return int(self._c.fake_calls(function.encode()))

    def functions(self) -> list[str]:
        names = []
        while (name := self._c.fake_function(len(names))) is not None:
            names.append(name.decode())
        return names

    def env(self) -> dict[str, str]:
        """Environment for a child process whose pynvml shall load the fake by the ordinary search path."""
        return {
            **os.environ,
            "PYTHONPATH": str(SOURCE.parents[2]),
            "LD_LIBRARY_PATH": str(self.library.parent),
            "FAKE_NVML_STATE": str(self.state),
        }

    def uuid(self, gpu: int = 0) -> str:
        return f"GPU-{str(gpu) * 4}0000-fa4e-0000-0000-00000000000{gpu}"
