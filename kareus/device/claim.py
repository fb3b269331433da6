"""The right to set one GPU's clocks: held only together with everything that is needed to give it back.

Before the first set: permission, the GPU's control lock, the end of whatever a dead predecessor left, the
power limit as it is, a journal on disk, a watchdog that watches. If one of them is missing nothing is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kareus.device.control import Controller, Undo, undo
from kareus.device.gpu import Gpu
from kareus.device.journal import JournalEntry, entry_for, read_entry, remove_entry, write_entry
from kareus.device.locks import GpuLock, state_dir
from kareus.device.nvml import OPERATING_SYSTEM, Failure
from kareus.device.permissions import preflight
from kareus.device.settings import Settings
from kareus.device.watchdog import Watchdog
from kareus.errors import HardwareError, InputError
from kareus.schedule import ClockRegion


class ClaimRefused(HardwareError):
    """Clocks cannot be set safely; the message says why and what to do."""


class Claim:
    """One process's claim on one GPU's clocks.

    Attributes:
        watchdog_restarts: how often a watchdog had died and was replaced.
    """

    def __init__(self, gpu: Gpu, regions: Sequence[ClockRegion], *, use_watchdog: bool = True) -> None:
        self.watchdog_restarts = 0
        self._gpu = gpu
        self._sets_sm = any(region.sm_clock_mhz is not None for region in regions)
        self._sets_memory = any(region.memory_clock_mhz is not None for region in regions)
        self._sets_limit = any(region.power_limit_w is not None for region in regions)
        self._use_watchdog = use_watchdog
        self._directory: Path | None = None
        self._lock: GpuLock | None = None
        self._controller: Controller | None = None
        self._watchdog: Watchdog | None = None
        self._entry: JournalEntry | None = None
        self._touched: set[str] = set()

    @property
    def held(self) -> bool:
        """True while something may have to be undone."""
        return self._entry is not None

    def hold(self) -> None:
        """Take the claim, or make sure that it still stands.

        Raises:
            ClaimRefused: clocks cannot be set safely.
        """
        if self._entry is not None:
            self._keep_watchdog(self._entry)
            return
        permission = preflight(self._gpu)
        if permission.controller is None:
            raise ClaimRefused(
                f"clocks are left alone: {permission.reason}. To change that: {permission.remedy}"
            )
        self._controller = permission.controller
        try:
            self._take(permission.controller)
        except (OSError, InputError) as error:
            self._unlock()
            raise ClaimRefused(
                f"clocks are left alone: what is needed to restore them cannot be kept ({error}); "
                "set KAREUS_STATE_DIR to a writable directory of this machine"
            ) from error
        except ClaimRefused:
            self._unlock()
            raise

    def _take(self, controller: Controller) -> None:
        self._directory = state_dir()
        self._lock = GpuLock(self._gpu.uuid, "control", self._directory)
        if not self._lock.acquire():
            raise ClaimRefused(
                f"clocks are left alone: another process sets those of {self._gpu.name} {self._gpu.uuid} "
                f"({self._lock.holder or 'unknown'}); one owner a GPU, the first keeps it"
            )
        self._finish_predecessor(controller)
        limit_mw = self._gpu.power_limit_mw() if self._sets_limit else None
        if self._sets_limit and limit_mw is None:
            raise ClaimRefused(
                "clocks are left alone: the power limit cannot be read, so it could not be restored"
            )
        what = Undo(sm_lock=self._sets_sm, memory_lock=self._sets_memory, power_limit_before_mw=limit_mw)
        entry = entry_for(self._gpu, what)
        write_entry(entry, self._directory)
        try:
            self._keep_watchdog(entry)
        except ClaimRefused:
            remove_entry(entry.gpu_uuid, self._directory)
            raise
        self._entry = entry

    def _finish_predecessor(self, controller: Controller) -> None:
        left = read_entry(self._gpu.uuid, self._directory)
        if left is None:
            return
        if left.is_from_this_boot():
            failures = undo(controller, self._gpu, left.undo)
            if failures:
                raise ClaimRefused(f"clocks are left alone: a crashed job's settings remain ({failures[0]})")
        remove_entry(left.gpu_uuid, self._directory)

    def _keep_watchdog(self, entry: JournalEntry) -> None:
        if not self._use_watchdog or (self._watchdog is not None and self._watchdog.alive):
            return
        if self._watchdog is not None:
            self.watchdog_restarts += 1
            self._watchdog.dismiss()
        assert self._lock is not None
        assert self._directory is not None
        try:
            self._watchdog = Watchdog(entry, self._directory, self._lock.fileno())
        except OSError as error:
            self._watchdog = None
            raise ClaimRefused(f"clocks are left alone: the watchdog cannot be started ({error})") from error
        if not self._watchdog.wait_ready():
            self._watchdog.dismiss(1.0)
            self._watchdog = None
            raise ClaimRefused("clocks are left alone: the watchdog did not become ready")

    def set(self, name: str, value: int) -> Failure | None:
        """Set one value of `Settings` by name; only while held."""
        assert self._controller is not None
        setters = {
            "sm_clock_mhz": self._controller.lock_sm_clock,
            "memory_clock_mhz": self._controller.lock_memory_clock,
            "power_limit_mw": self._controller.set_power_limit,
        }
        self._touched.add(name)
        return setters[name](value)

    def differences(self, wanted: Settings, changes: Sequence[str]) -> list[str]:
        """Read back the values that NVML can read at once; one sentence for each that differs."""
        found = []
        if "power_limit_mw" in changes:
            limit_mw = self._gpu.power_limit_mw()
            if limit_mw is not None and limit_mw != wanted.power_limit_mw:
                found.append(f"set a power limit of {wanted.power_limit_mw} mW, read back {limit_mw} mW")
        return found

    def release(self) -> list[Failure]:
        """Undo what was set, then give up journal, watchdog and lock, in that order.

        Returns:
            What could not be undone; the watchdog then tries again, and the journal stays for
            `kareus reset-clocks`.
        """
        if self._entry is None or self._controller is None:
            return []
        planned = self._entry.undo
        limit_mw = planned.power_limit_before_mw if "power_limit_mw" in self._touched else None
        touched = Undo(
            sm_lock="sm_clock_mhz" in self._touched,
            memory_lock="memory_clock_mhz" in self._touched,
            power_limit_before_mw=limit_mw,
        )
        failures = undo(self._controller, self._gpu, touched)
        if failures:  # the watchdog keeps lock and journal, and tries again when this process has ended
            return failures
        try:
            remove_entry(self._entry.gpu_uuid, self._directory)
        except OSError as error:
            failures.append(Failure(function="remove journal", code=OPERATING_SYSTEM, detail=str(error)))
        self._entry = None
        if self._watchdog is not None:
            self._watchdog.dismiss()
            self._watchdog = None
        self._unlock()
        return failures

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
