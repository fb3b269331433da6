"""One GPU as this package sees it: typed readings in SI-like integer units, None where there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from kareus.device.nvml import GPU_IS_LOST, RESET_REQUIRED, Failure, Nvml

CLOCK_SM, CLOCK_MEMORY = 1, 2  # nvmlClockType_t
FIELD_POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT, scope 0 is the GPU itself
EVENT_GPU_IDLE = 0x1  # nvmlClocksEventReason*
EVENT_SW_POWER_CAP = 0x4
EVENT_CAPPED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80  # power cap, hardware slowdown, thermal, power brake
EVENT_NAMES = {
    0x1: "gpu_idle", 0x2: "clocks_setting", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake", 0x100: "display_clock",
}  # fmt: skip


def event_names(reasons: int) -> list[str]:
    """Return the names of the set bits of nvmlClocksEventReasons."""
    return [name for bit, name in EVENT_NAMES.items() if reasons & bit]


class HasGpu(Protocol):
    """Anything that reads one GPU, such as an EnergyMeter."""

    @property
    def gpu(self) -> Gpu:
        """The GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RawSample:
    """One reading: energy counter in mJ, power in mW, SM clock in MHz; None where NVML gave none."""

    energy_mj: int | None
    power_mw: int | None
    sm_clock_mhz: int | None


class Gpu:
    """Readings of one NVML device handle. Every method returns None instead of raising.

    Attributes:
        nvml: the guarded session.
        handle: NVML's handle (of the whole GPU, also where the process sees a MIG instance of it).
        index: NVML index (PCI order; not CUDA's).
        uuid, name, pci_bus_id: as NVML tells them, "" unknown.
        mig: the process computes on a MIG instance; readings are those of the whole GPU.
        lost: NVML said the GPU is gone or needs a reset; no further calls are made.
        zero_power_reads: power readings of 0 that were dropped (NVML gives 0 when polled too fast).
    """

    def __init__(self, nvml: Nvml, handle: Any, index: int, *, mig: bool = False) -> None:
        self.nvml = nvml
        self.handle = handle
        self.index = index
        self.mig = mig
        self.lost = False
        self.zero_power_reads = 0
        self._instant_power = True
        self.uuid = str(self._get("nvmlDeviceGetUUID") or "")
        self.name = str(self._get("nvmlDeviceGetName") or "")
        pci = self._get("nvmlDeviceGetPciInfo")
        self.pci_bus_id = _text(pci.busId) if pci is not None else ""

    @property
    def gpu(self) -> Gpu:
        """Itself, so that a Gpu can stand where a meter can."""
        return self

    def call(self, function: str, *args: Any, optional: bool = False) -> Any | Failure:
        """Call an NVML function on this GPU; a lost GPU is not asked again."""
        if self.lost:
            self.nvml.failures[function, GPU_IS_LOST] += 1
            return Failure(function=function, code=GPU_IS_LOST)
        outcome = self.nvml.call(function, self.handle, *args, optional=optional)
        if isinstance(outcome, Failure) and outcome.code in (GPU_IS_LOST, RESET_REQUIRED):
            self.lost = True
        return outcome

    def _get(self, function: str, *args: Any, optional: bool = False) -> Any | None:
        outcome = self.call(function, *args, optional=optional)
        return None if isinstance(outcome, Failure) else outcome

    def energy_mj(self) -> int | None:
        """Total energy since the driver was loaded, mJ (Volta and later; moves about every 100 ms)."""
        value = self._get("nvmlDeviceGetTotalEnergyConsumption", optional=True)
        return None if value is None else int(value)

    @property
    def power_field(self) -> str:
        """Which power is read: "instant", or "average" (over one second on most GPUs since Ampere)."""
        return "instant" if self._instant_power else "average"

    def power_mw(self) -> int | None:
        """Board power of the GPU, mW: the instant field where there is one, else nvmlDeviceGetPowerUsage."""
        value = self._instant_power_mw() if self._instant_power else None
        if value is None and not self.lost:
            usage = self._get("nvmlDeviceGetPowerUsage", optional=True)
            value = None if usage is None else int(usage)
        if value == 0:
            self.zero_power_reads += 1
            return None
        return value

    def _instant_power_mw(self) -> int | None:
        fields = self._get("nvmlDeviceGetFieldValues", [(FIELD_POWER_INSTANT, 0)], optional=True)
        if fields is None:
            return None
        if fields[0].nvmlReturn != 0:
            self._instant_power = False
            self.nvml.note("nvmlDeviceGetFieldValues[186]", int(fields[0].nvmlReturn), quiet=True)
            return None
        return int(fields[0].value.uiVal)

    def sm_clock_mhz(self) -> int | None:
        """Actual SM clock, MHz."""
        return self._int("nvmlDeviceGetClockInfo", CLOCK_SM)

    def memory_clock_mhz(self) -> int | None:
        """Actual memory clock, MHz."""
        return self._int("nvmlDeviceGetClockInfo", CLOCK_MEMORY)

    def event_reasons(self) -> int | None:
        """Bits of nvmlClocksEventReasons: why the clock is what it is."""
        value = self._get("nvmlDeviceGetCurrentClocksEventReasons", optional=True)
        if value is None and not self.lost:  # the name before driver 535
            value = self._get("nvmlDeviceGetCurrentClocksThrottleReasons", optional=True)
        return None if value is None else int(value)

    def power_limit_mw(self) -> int | None:
        """The power limit that was set, mW."""
        return self._int("nvmlDeviceGetPowerManagementLimit", optional=True)

    def power_limit_default_mw(self) -> int | None:
        """The limit the card starts with, mW."""
        return self._int("nvmlDeviceGetPowerManagementDefaultLimit", optional=True)

    def power_limit_range_mw(self) -> tuple[int, int] | None:
        """Lowest and highest limit that can be set, mW."""
        value = self._get("nvmlDeviceGetPowerManagementLimitConstraints", optional=True)
        return None if value is None else (int(value[0]), int(value[1]))

    def supported_memory_clocks_mhz(self) -> tuple[int, ...]:
        """Memory clocks that can be locked, MHz, descending; () unknown."""
        value = self._get("nvmlDeviceGetSupportedMemoryClocks", optional=True)
        return tuple(sorted((int(v) for v in value or ()), reverse=True))

    def supported_sm_clocks_mhz(self, memory_clock_mhz: int | None = None) -> tuple[int, ...]:
        """SM clocks that can be locked, MHz, descending; at the highest memory clock by default."""
        if memory_clock_mhz is None:
            memory = self.supported_memory_clocks_mhz()
            if not memory:
                return ()
            memory_clock_mhz = memory[0]
        value = self._get("nvmlDeviceGetSupportedGraphicsClocks", memory_clock_mhz, optional=True)
        return tuple(sorted((int(v) for v in value or ()), reverse=True))

    def mig_enabled(self) -> bool | None:
        """Whether the GPU is divided into MIG instances; None where it cannot be."""
        value = self._get("nvmlDeviceGetMigMode", optional=True)
        return None if value is None else bool(value[0])

    def compute_pids(self) -> tuple[int, ...] | None:
        """Processes computing on this GPU, as numbered by the host; None unknown."""
        value = self._get("nvmlDeviceGetComputeRunningProcesses", optional=True)
        return None if value is None else tuple(int(process.pid) for process in value)

    def sample(self) -> RawSample:
        """Read counter, power and SM clock, in that order."""
        return RawSample(
            energy_mj=self.energy_mj(), power_mw=self.power_mw(), sm_clock_mhz=self.sm_clock_mhz()
        )

    def _int(self, function: str, *args: Any, optional: bool = False) -> int | None:
        value = self._get(function, *args, optional=optional)
        return None if value is None else int(value)


def _text(value: bytes | str) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value
