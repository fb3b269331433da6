"""A GPU in software: behaves by a CostModel plus noise, behind NVML's functions as the real device does.

`SoftGpu.measure` is the sitting at a bench: it runs a sample for a window, moves the energy counter and
returns what a measurement would have read. `SoftGpu.open` gives the same `Gpu` that `kareus.device` makes
of a real card, so meters and the clock governor work on it unchanged; a clock lock or power limit they set
changes what the next sample takes. Nothing it returns is a measurement of hardware, and its name says so.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from kareus.device.gpu import Gpu
from kareus.device.nvml import NOT_SUPPORTED, Nvml
from kareus.model.cost import CostModel
from kareus.model.predict import predict
from kareus.model.profile import Profile, Sample

SM_CLOCK, SW_POWER_CAP, IDLE, LOCKED = 1, 0x4, 0x1, 0x2  # of nvml.h: a clock domain and event reasons
CLOCK_STEP_MHZ = 15
MEMORY_CLOCK_MHZ = 3201
COUNTER_PERIOD_S = 0.1  # the energy counter of an H200 moves this often


class SoftError(Exception):
    """An NVML return code, as nvidia-ml-py raises it."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML code {value}")
        self.value = value


class SoftGpu:
    """A GPU whose time, energy and clocks come from a cost model.

    Args:
        cost: what it behaves by. noise: relative standard deviation of a measured time; energies get as
            much again. seed: of the noise.

    Attributes:
        now_s: its own time; only `measure` and `idle` move it. sm_lock_mhz: 0 is unlocked.
        power_limit_mw: in force. sm_sets: clock locks set so far.
    """

    NVMLError = SoftError

    def __init__(self, cost: CostModel, *, noise: float = 0.005, seed: int = 0) -> None:
        self._cost, self._noise = cost, noise
        self._random = np.random.default_rng(seed)
        self._energy_j = 0.0
        self._counter_mj, self._counter_s = 0, 0.0
        self._power_w, self._clock_mhz, self._reasons = cost["static_power_w"], cost["min_clock_mhz"], IDLE
        self._default_limit_mw = round(cost["power_limit_w"] * 1e3)
        self.name = f"software {cost.gpu}"
        self.now_s, self.sm_lock_mhz, self.sm_sets = 0.0, 0, 0
        self.power_limit_mw = self._default_limit_mw

    def open(self) -> Gpu:
        """Return it as `kareus.device` sees a card."""
        return Gpu(_SoftNvml(self), self, 0)

    def measure(self, profile: Profile, sample: Sample, *, window_s: float = 3.0) -> Sample:
        """Run a sample over and over for a window and return it as measured.

        Args:
            profile: holds the workload a step sample names. sample: the setting; its figures are replaced.
            window_s: length of the window.
        """
        found = predict(profile, (sample,), self._behaviour())
        time_us, energy_j = float(found.time_us[0]), float(found.energy_j[0])
        count = max(1, round(window_s * 1e6 / time_us))
        time_us *= 1 + self._noise * self._random.standard_normal()
        energy_j *= 1 + self._noise * self._random.standard_normal()
        clock = float(found.sm_clock_mhz[0])
        ceiling = self.sm_lock_mhz or self._cost["max_clock_mhz"]
        self._reasons = SW_POWER_CAP if clock < ceiling - 1 else (LOCKED if self.sm_lock_mhz else 0)
        self._clock_mhz, self._power_w = clock, energy_j / time_us * 1e6
        self._pass(count * time_us * 1e-6)
        return msgspec.structs.replace(
            sample,
            time_us=time_us,
            time_spread_us=self._noise * time_us,
            energy_j=energy_j,
            energy_spread_j=self._noise * energy_j,
            sm_clock_mhz=clock,
            count=count,
            window_s=count * time_us * 1e-6,
            throttle=("sw_power_cap",) if self._reasons == SW_POWER_CAP else (),
        )

    def idle(self, seconds: float) -> None:
        """Let time pass with nothing running."""
        self._reasons = IDLE
        self._clock_mhz, self._power_w = self._cost["min_clock_mhz"], self._cost["static_power_w"]
        self._pass(seconds)

    def _behaviour(self) -> CostModel:
        """The cost model under the lock and limit in force."""
        changed = {"power_limit_w": self.power_limit_mw / 1e3}
        if self.sm_lock_mhz:
            changed["max_clock_mhz"] = float(min(self.sm_lock_mhz, self._cost["max_clock_mhz"]))
        return self._cost.with_values(changed)

    def _pass(self, seconds: float) -> None:
        self._energy_j += self._power_w * seconds
        self.now_s += seconds
        ticks = int((self.now_s - self._counter_s) / COUNTER_PERIOD_S)
        if ticks:
            self._counter_s += ticks * COUNTER_PERIOD_S
            late_j = self._power_w * (self.now_s - self._counter_s)
            self._counter_mj = round((self._energy_j - late_j) * 1e3)

    # NVML's functions, by the names nvidia-ml-py gives them; the handle is this object.

    def nvmlDeviceGetUUID(self, _: Any) -> str:
        """Return an identifier no real GPU has."""
        return "GPU-50f7ba2e-0000-0000-0000-000000000000"

    def nvmlDeviceGetName(self, _: Any) -> str:
        """Return the device name."""
        return self.name

    def nvmlDeviceGetPciInfo(self, _: Any) -> SimpleNamespace:
        """Return an address on a bus no machine has."""
        return SimpleNamespace(busId="FFFF:FF:1F.0")

    def nvmlDeviceGetTotalEnergyConsumption(self, _: Any) -> int:
        """Return the energy counter, mJ."""
        return self._counter_mj

    def nvmlDeviceGetFieldValues(self, _: Any, fields: list[Any]) -> list[SimpleNamespace]:
        """Return power, mW, for the instant power field; the only one there is."""
        power = SimpleNamespace(uiVal=round(self._power_w * 1e3))
        return [SimpleNamespace(nvmlReturn=0, value=power) for _ in fields]

    def nvmlDeviceGetClockInfo(self, _: Any, domain: int) -> int:
        """Return the clock of a domain, MHz."""
        return round(self._clock_mhz) if domain == SM_CLOCK else MEMORY_CLOCK_MHZ

    def nvmlDeviceGetCurrentClocksEventReasons(self, _: Any) -> int:
        """Return why the clock is what it is."""
        return self._reasons

    def nvmlDeviceGetPowerManagementLimit(self, _: Any) -> int:
        """Return the limit in force, mW."""
        return self.power_limit_mw

    def nvmlDeviceGetPowerManagementDefaultLimit(self, _: Any) -> int:
        """Return the limit it started with, mW."""
        return self._default_limit_mw

    def nvmlDeviceGetPowerManagementLimitConstraints(self, _: Any) -> tuple[int, int]:
        """Return the lowest and highest limit, mW."""
        return self._default_limit_mw * 2 // 7, self._default_limit_mw

    def nvmlDeviceGetSupportedMemoryClocks(self, _: Any) -> list[int]:
        """Return the one memory clock, MHz."""
        return [MEMORY_CLOCK_MHZ]

    def nvmlDeviceGetSupportedGraphicsClocks(self, _: Any, __: int) -> list[int]:
        """Return the SM clocks that can be locked, MHz, descending."""
        low, high = round(self._cost["min_clock_mhz"]), round(self._cost["max_clock_mhz"])
        return list(range(high, low - 1, -CLOCK_STEP_MHZ))

    def nvmlDeviceGetMigMode(self, _: Any) -> tuple[int, int]:
        """It cannot be divided."""
        raise SoftError(NOT_SUPPORTED)

    def nvmlDeviceGetComputeRunningProcesses(self, _: Any) -> list[Any]:
        """Return no processes: nothing runs on it but what `measure` runs."""
        return []

    def nvmlDeviceSetGpuLockedClocks(self, _: Any, low: int, high: int) -> None:
        """Lock the SM clock, MHz; it takes effect with the next sample, and at once where one is under way."""
        self.sm_lock_mhz = high
        self.sm_sets += 1
        if self._reasons != IDLE:
            self._clock_mhz = float(min(high, self._clock_mhz) if self._reasons == SW_POWER_CAP else high)

    def nvmlDeviceResetGpuLockedClocks(self, _: Any) -> None:
        """Remove the lock."""
        self.sm_lock_mhz = 0

    def nvmlDeviceSetPowerManagementLimit(self, _: Any, limit_mw: int) -> None:
        """Set the power limit, mW."""
        self.power_limit_mw = limit_mw


class _SoftNvml(Nvml):
    """A session whose driver is the software GPU."""

    def __init__(self, driver: SoftGpu) -> None:
        super().__init__()
        self._module = driver
