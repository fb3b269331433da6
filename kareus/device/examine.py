"""Everything that can be read about one GPU without changing it."""

from __future__ import annotations

from typing import Any

import msgspec

from kareus.device.gpu import Gpu, event_names
from kareus.device.locks import foreign_processes
from kareus.device.nvml import INVALID_ARGUMENT, Failure
from kareus.device.period import CounterPeriod, measure_counter_period
from kareus.device.permissions import preflight

# FP32 cores of an SM by compute capability (CUDA C++ programming guide, arithmetic throughput); NVML
# counts cores, not SMs.
CORES_PER_SM = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
CORES_PER_SM_SINCE_8_6 = 128
MAX_NVLINKS = 36  # NVML_NVLINK_MAX_LINKS of driver 580


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU; None and "" mean that NVML did not say.

    Attributes:
        index: NVML's (PCI order). cuda_index: CUDA's in this process, None: not visible.
        uuid, name, pci_bus_id, compute_capability: as NVML tells them.
        num_sms: streaming multiprocessors. memory_gib: HBM in GiB.
        sm_clocks_mhz: clocks that can be locked, descending. memory_clocks_mhz: likewise.
        sm_clock_mhz: now. events: why it is what it is.
        power_limit_w, power_limit_default_w, power_limit_min_w, power_limit_max_w: board power limit.
        mig: divided by MIG. num_nvlinks: active NVLinks. persistence: persistence mode.
        energy_source: "counter", "power" or "none". power_field: "instant" or "average".
        counter_period_s, counter_period_measured: update period of the energy counter.
        foreign_pids: processes of others, None unknown.
        may_set_clocks, via, reason, remedy: see `permissions.Permission`.
    """

    index: int
    cuda_index: int | None
    uuid: str
    name: str
    pci_bus_id: str
    compute_capability: str
    num_sms: int | None
    memory_gib: float | None
    sm_clocks_mhz: tuple[int, ...]
    memory_clocks_mhz: tuple[int, ...]
    sm_clock_mhz: int | None
    events: list[str]
    power_limit_w: float | None
    power_limit_default_w: float | None
    power_limit_min_w: float | None
    power_limit_max_w: float | None
    mig: bool
    num_nvlinks: int
    persistence: bool | None
    energy_source: str
    power_field: str
    counter_period_s: float
    counter_period_measured: bool
    foreign_pids: tuple[int, ...] | None
    may_set_clocks: bool
    via: str
    reason: str
    remedy: str


def examine(gpu: Gpu, *, cuda_index: int | None = None, measure: bool = True) -> GpuFacts:
    """Read everything about a GPU.

    Args:
        gpu: the GPU. cuda_index: CUDA's index of it in this process.
        measure: measure the counter's update period, which takes about 1.3 s.
    """
    permission = preflight(gpu)
    limits = gpu.power_limit_range_mw()
    capability = _value(gpu.call("nvmlDeviceGetCudaComputeCapability", optional=True))
    memory = _value(gpu.call("nvmlDeviceGetMemoryInfo", optional=True))
    persistence = _value(gpu.call("nvmlDeviceGetPersistenceMode", optional=True))
    has_counter = gpu.energy_mj() is not None
    has_power = gpu.power_mw() is not None
    period = measure_counter_period(gpu.energy_mj) if measure and has_counter else CounterPeriod()
    return GpuFacts(
        index=gpu.index, cuda_index=cuda_index, uuid=gpu.uuid, name=gpu.name, pci_bus_id=gpu.pci_bus_id,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else "",
        num_sms=_num_sms(gpu, capability),
        memory_gib=round(memory.total / 2**30, 1) if memory is not None else None,
        sm_clocks_mhz=gpu.supported_sm_clocks_mhz(), memory_clocks_mhz=gpu.supported_memory_clocks_mhz(),
        sm_clock_mhz=gpu.sm_clock_mhz(), events=event_names(gpu.event_reasons() or 0),
        power_limit_w=_watts(gpu.power_limit_mw()),
        power_limit_default_w=_watts(gpu.power_limit_default_mw()),
        power_limit_min_w=_watts(limits[0]) if limits else None,
        power_limit_max_w=_watts(limits[1]) if limits else None,
        mig=bool(gpu.mig_enabled()), num_nvlinks=_num_nvlinks(gpu),
        persistence=None if persistence is None else bool(persistence),
        energy_source="counter" if has_counter else "power" if has_power else "none",
        power_field=gpu.power_field, counter_period_s=round(period.period_s, 4),
        counter_period_measured=period.measured, foreign_pids=foreign_processes(gpu.compute_pids()),
        may_set_clocks=permission.allowed, via=permission.via, reason=permission.reason,
        remedy=permission.remedy,
    )  # fmt: skip


def _value(outcome: Any) -> Any:
    return None if isinstance(outcome, Failure) else outcome


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _num_sms(gpu: Gpu, capability: object) -> int | None:
    cores = _value(gpu.call("nvmlDeviceGetNumGpuCores", optional=True))
    if not isinstance(cores, int) or not isinstance(capability, tuple) or capability < (7, 0):
        return None
    return cores // CORES_PER_SM.get(capability, CORES_PER_SM_SINCE_8_6)


def _num_nvlinks(gpu: Gpu) -> int:
    active = 0
    for link in range(MAX_NVLINKS):
        # past the last link the driver refuses the argument
        state = gpu.nvml.call(
            "nvmlDeviceGetNvLinkState", gpu.handle, link, optional=True, expected=INVALID_ARGUMENT
        )
        if isinstance(state, Failure):
            break
        active += bool(state)
    return active
