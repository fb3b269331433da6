"""Setting clocks and power limits, and undoing it: by NVML, or by an administrator's daemon."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kareus.device.gpu import Gpu
from kareus.device.nvml import Failure

UNDO_ATTEMPTS = 3


class Controller(Protocol):
    """Sets one GPU's clocks and limit. Every method returns why it failed, or None; none raises."""

    name: str

    def lock_sm_clock(self, sm_clock_mhz: int) -> Failure | None:
        """Lock the SM clock, MHz."""

    def reset_sm_clock(self) -> Failure | None:
        """Remove any SM clock lock, whoever set it."""

    def lock_memory_clock(self, memory_clock_mhz: int) -> Failure | None:
        """Lock the memory clock, MHz."""

    def reset_memory_clock(self) -> Failure | None:
        """Remove any memory clock lock, whoever set it."""

    def set_power_limit(self, power_limit_mw: int) -> Failure | None:
        """Set the board's power limit, mW."""


class NvmlController:
    """Sets by NVML itself; needs root or CAP_SYS_ADMIN."""

    name = "nvml"

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def lock_sm_clock(self, sm_clock_mhz: int) -> Failure | None:
        """Lock the SM clock, MHz (lowest = highest)."""
        return self._set("nvmlDeviceSetGpuLockedClocks", sm_clock_mhz, sm_clock_mhz)

    def reset_sm_clock(self) -> Failure | None:
        """Remove any SM clock lock."""
        return self._set("nvmlDeviceResetGpuLockedClocks")

    def lock_memory_clock(self, memory_clock_mhz: int) -> Failure | None:
        """Lock the memory clock, MHz (lowest = highest)."""
        return self._set("nvmlDeviceSetMemoryLockedClocks", memory_clock_mhz, memory_clock_mhz)

    def reset_memory_clock(self) -> Failure | None:
        """Remove any memory clock lock."""
        return self._set("nvmlDeviceResetMemoryLockedClocks")

    def set_power_limit(self, power_limit_mw: int) -> Failure | None:
        """Set the board's power limit, mW."""
        return self._set("nvmlDeviceSetPowerManagementLimit", power_limit_mw)

    def _set(self, function: str, *args: int) -> Failure | None:
        outcome = self._gpu.call(function, *args)
        return outcome if isinstance(outcome, Failure) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Undo:
    """What must be put back on one GPU.

    NVML cannot read a clock lock, so a lock that somebody set earlier cannot be put back: locks are
    removed. The power limit returns to the value read before.

    Attributes:
        sm_lock, memory_lock: the SM or memory clock may be locked by us.
        power_limit_before_mw: the limit before we changed it; None where we did not.
    """

    sm_lock: bool = False
    memory_lock: bool = False
    power_limit_before_mw: int | None = None

    def __bool__(self) -> bool:
        return self.sm_lock or self.memory_lock or self.power_limit_before_mw is not None


def undo(
    controller: Controller, gpu: Gpu, what: Undo, *, attempts: int = UNDO_ATTEMPTS,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Failure]:  # fmt: skip
    """Put a GPU back in order.

    Args:
        controller: how to set. gpu: for reading the power limit back.
        what: what was changed.
        attempts: tries for each part, 0.1 s apart.
        sleep: for tests.

    Returns:
        What still failed after the last attempt; empty when all is as before.
    """
    steps: list[Callable[[], Failure | None]] = []
    if what.sm_lock:
        steps.append(controller.reset_sm_clock)
    if what.memory_lock:
        steps.append(controller.reset_memory_clock)
    if what.power_limit_before_mw is not None:
        before_mw = what.power_limit_before_mw
        steps.append(lambda: _restore_limit(controller, gpu, before_mw))
    remaining: list[Failure] = []
    for step in steps:
        failure = step()
        for _ in range(attempts - 1):
            if failure is None:
                break
            sleep(0.1)
            failure = step()
        if failure is not None:
            remaining.append(failure)
    return remaining


def _restore_limit(controller: Controller, gpu: Gpu, before_mw: int) -> Failure | None:
    if gpu.power_limit_mw() == before_mw:
        return None
    failure = controller.set_power_limit(before_mw)
    if failure is not None:
        return failure
    found_mw = gpu.power_limit_mw()
    if found_mw not in (before_mw, None):
        detail = f"set {before_mw} mW, read back {found_mw} mW"
        return gpu.nvml.note("nvmlDeviceSetPowerManagementLimit", 29, detail)
    return None
