"""The one door to NVML: every call is guarded, named, counted and logged once per kind of failure.

`pynvml` (the official nvidia-ml-py) is imported here only, inside `Nvml.start`. A call returns its value
or a `Failure`; it never raises, so nothing that NVML does can reach a training loop.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger("kareus.device")

# Return codes of nvml.h (nvmlReturn_t) with what they mean for a user.
CODES: dict[int, tuple[str, str]] = {
    1: ("UNINITIALIZED", "NVML was not initialised"),
    2: ("INVALID_ARGUMENT", "the driver refused the value"),
    3: ("NOT_SUPPORTED", "this GPU or driver does not offer it"),
    4: ("NO_PERMISSION", "needs root or CAP_SYS_ADMIN (in a container: --cap-add SYS_ADMIN)"),
    5: ("ALREADY_INITIALIZED", "NVML was initialised twice"),
    6: ("NOT_FOUND", "there is no such object"),
    7: ("INSUFFICIENT_SIZE", "the driver wanted a larger buffer"),
    8: ("INSUFFICIENT_POWER", "the GPU's external power cables are not attached"),
    9: ("DRIVER_NOT_LOADED", "the NVIDIA driver is not loaded"),
    10: ("TIMEOUT", "the driver did not answer in time"),
    11: ("IRQ_ISSUE", "the kernel sees an interrupt problem with the GPU"),
    12: (
        "LIBRARY_NOT_FOUND",
        "libnvidia-ml.so.1 was not found; install the driver or mount it in the container",
    ),
    13: ("FUNCTION_NOT_FOUND", "this driver or nvidia-ml-py lacks the function"),
    14: ("CORRUPTED_INFOROM", "the GPU's infoROM is damaged"),
    15: ("GPU_IS_LOST", "the GPU fell off the bus; reset it or reboot"),
    16: ("RESET_REQUIRED", "the GPU needs a reset before it can be used again"),
    17: ("OPERATING_SYSTEM", "the operating system blocked the call"),
    18: ("LIB_RM_VERSION_MISMATCH", "driver and library versions differ; reboot after a driver update"),
    19: ("IN_USE", "the GPU is in use"),
    20: ("MEMORY", "out of memory"),
    21: ("NO_DATA", "the driver has no data"),
    22: ("VGPU_ECC_NOT_SUPPORTED", "not possible on a vGPU with ECC"),
    23: ("INSUFFICIENT_RESOURCES", "out of a resource other than memory"),
    24: ("FREQ_NOT_SUPPORTED", "the clock is not one of the supported clocks"),
    25: ("ARGUMENT_VERSION_MISMATCH", "nvidia-ml-py and the driver disagree on a structure's version"),
    26: ("DEPRECATED", "the driver has dropped this function"),
    27: ("NOT_READY", "the system is not in ready state"),
    28: ("GPU_NOT_FOUND", "no GPU was found"),
    29: ("INVALID_STATE", "the GPU's state does not allow it"),
    30: ("RESET_TYPE_NOT_SUPPORTED", "this kind of reset is not offered"),
    999: ("UNKNOWN", "an internal driver error"),
}
NOT_SUPPORTED, NO_PERMISSION, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 3, 4, 12, 13
INVALID_ARGUMENT, TIMEOUT, GPU_IS_LOST, RESET_REQUIRED, OPERATING_SYSTEM, UNKNOWN = 2, 10, 15, 16, 17, 999

# Ordinary answers to "do you have this?": counted, not worth a warning where the caller only asks.
ABSENT = frozenset({NOT_SUPPORTED, 6, FUNCTION_NOT_FOUND, 26})


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A call that did not give a value.

    Attributes:
        function: the NVML (or daemon) function.
        code: nvmlReturn_t.
        detail: what else is known, "" for nothing.
    """

    function: str
    code: int
    detail: str = ""

    @property
    def name(self) -> str:
        """NO_PERMISSION, GPU_IS_LOST, ..."""
        return CODES[self.code][0] if self.code in CODES else f"CODE_{self.code}"

    def __str__(self) -> str:
        meaning = CODES[self.code][1] if self.code in CODES else "a code this version does not know"
        return f"{self.function}: {self.name}, {meaning}" + (f" ({self.detail})" if self.detail else "")


def rank_prefix() -> str:
    """Return "[rank N] " as launchers tell it through RANK, or "" outside a job."""
    rank = os.environ.get("RANK", "")
    return f"[rank {rank}] " if rank.isdigit() else ""


class Nvml:
    """A guarded NVML session of one process.

    Attributes:
        failures: how often each (function, code) came back, whether logged or not.
        calls: calls made.
    """

    def __init__(self) -> None:
        self.failures: Counter[tuple[str, int]] = Counter()
        self.calls = 0
        self._module: Any = None
        self._logged: set[int] = set()
        self._lock = threading.Lock()

    @property
    def started(self) -> bool:
        """True once `start` has succeeded."""
        return self._module is not None

    def start(self) -> Failure | None:
        """Load and initialise NVML; return why it cannot be used, or None."""
        if self._module is not None:
            return None
        try:
            import pynvml
        except ImportError:
            return self.note("import pynvml", LIBRARY_NOT_FOUND, "install nvidia-ml-py")
        if not hasattr(pynvml, "nvmlInitWithFlags") or not hasattr(pynvml, "nvmlDeviceGetFieldValues"):
            detail = "another package provides pynvml; pip uninstall pynvml, pip install nvidia-ml-py"
            return self.note("import pynvml", FUNCTION_NOT_FOUND, detail)
        self._module = pynvml
        outcome = self.call("nvmlInit")
        if isinstance(outcome, Failure):
            self._module = None
            return outcome
        return None

    def call(
        self, function: str, *args: Any, optional: bool = False, expected: int | None = None
    ) -> Any | Failure:
        """Call one NVML function.

        Args:
            function: its name in nvidia-ml-py.
            args: its arguments.
            optional: the caller only asks whether there is such a thing: answers in `ABSENT` are counted
                and not logged.
            expected: a code that is an ordinary answer to this call, treated likewise.

        Returns:
            The function's value, or a Failure; never raises.
        """
        if self._module is None:
            return self.note(function, 1, quiet=True)  # `start` has said why
        self.calls += 1
        try:
            return getattr(self._module, function)(*args)
        except self._module.NVMLError as error:
            code = int(error.value)
            return self.note(function, code, quiet=code == expected or (optional and code in ABSENT))
        except AttributeError:
            return self.note(function, FUNCTION_NOT_FOUND, quiet=optional)
        except Exception as error:  # a damaged driver may return bytes that do not decode: still not fatal
            # nvidia-ml-py raises a class of its own where the driver has only other versions of a function
            missing = type(error).__name__ == "NVMLLibraryMismatchError"
            code = FUNCTION_NOT_FOUND if missing else UNKNOWN
            return self.note(function, code, f"{type(error).__name__}: {error}", quiet=missing and optional)

    def note(self, function: str, code: int, detail: str = "", *, quiet: bool = False) -> Failure:
        """Count a failure; log the first one of each code, so that a lost GPU says so once."""
        failure = Failure(function=function, code=code, detail=detail)
        with self._lock:
            self.failures[function, code] += 1
            first = not quiet and code not in self._logged
            if first:
                self._logged.add(code)
        if first:
            logger.warning(
                "%s%s. Kareus goes on without it; more of these are counted.", rank_prefix(), failure
            )
        return failure

    def failure_counts(self) -> dict[str, int]:
        """Return {"function:NAME": times} for reports, most frequent first."""
        names = {key: Failure(function=key[0], code=key[1]).name for key in self.failures}
        return {f"{key[0]}:{names[key]}": count for key, count in self.failures.most_common()}


_session: tuple[int, Nvml] | None = None
_session_lock = threading.Lock()


def session() -> Nvml:
    """Return this process's NVML session, started where possible (see `Nvml.started`).

    A forked child gets a session of its own: NVML state must not be shared across a fork.
    """
    global _session
    with _session_lock:
        if _session is None or _session[0] != os.getpid():
            _session = (os.getpid(), Nvml())
        nvml = _session[1]
    nvml.start()
    return nvml
