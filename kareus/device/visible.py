"""Which physical GPU a CUDA device index means.

NVML ignores CUDA_VISIBLE_DEVICES and counts in PCI order, so an index must be translated. The rules of
the variable (CUDA programming guide, "CUDA Environment Variables"): a list of indices, or of UUIDs or
unambiguous beginnings of UUIDs, or of MIG instances; the list ends at its first invalid entry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kareus.device.gpu import Gpu
from kareus.device.nvml import Failure, Nvml


@dataclass(frozen=True, kw_only=True, slots=True)
class MigInstance:
    """A slice of a GPU: its UUID ("MIG-..."), GPU instance id and compute instance id."""

    uuid: str
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PhysicalGpu:
    """One GPU of NVML's list: index (PCI order), UUID ("GPU-..."), name and MIG instances."""

    index: int
    uuid: str
    name: str
    mig_enabled: bool = False
    mig: tuple[MigInstance, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class VisibleDevice:
    """What CUDA device `cuda_index` is.

    Attributes:
        cuda_index: position in CUDA's list, from 0.
        gpu: the physical GPU. mig: the instance of it, or None for all of it.
        certain: False where CUDA's order is its own affair (different GPU models without
            CUDA_DEVICE_ORDER=PCI_BUS_ID, or indices on a GPU divided by MIG).
    """

    cuda_index: int
    gpu: PhysicalGpu
    mig: MigInstance | None = None
    certain: bool = True


def visible_devices(inventory: Sequence[PhysicalGpu], env: Mapping[str, str]) -> tuple[VisibleDevice, ...]:
    """Translate CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.

    Args:
        inventory: all GPUs, in NVML's order.
        env: the environment.

    Returns:
        CUDA's devices in its order; empty where the variable hides all of them.
    """
    value = env.get("CUDA_VISIBLE_DEVICES")
    pci_order = env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    same_model = len({gpu.name for gpu in inventory}) <= 1
    certain = pci_order or same_model
    if value is None:
        return _by_index(range(len(inventory)), inventory, certain)
    entries = [entry.strip() for entry in value.split(",")]
    if entries[0].startswith("GPU-"):
        return _by_uuid(entries, inventory)
    if entries[0].startswith("MIG-"):
        return _by_mig(entries, inventory)
    indices: list[int] = []
    for entry in entries:
        number = re.match(r"\d+", entry)  # strtol: "1x" is 1, "-1" and "" end the list
        if number is None or int(number.group()) >= len(inventory):
            break
        if int(number.group()) in indices:  # a repeated device hides all of them
            return ()
        indices.append(int(number.group()))
    return _by_index(indices, inventory, certain)


def _by_index(
    indices: Sequence[int], inventory: Sequence[PhysicalGpu], certain: bool
) -> tuple[VisibleDevice, ...]:
    found = []
    for position, index in enumerate(indices):
        gpu = inventory[index]
        mig = gpu.mig[0] if gpu.mig_enabled and gpu.mig else None
        found.append(
            VisibleDevice(cuda_index=position, gpu=gpu, mig=mig, certain=certain and not gpu.mig_enabled)
        )
    return tuple(found)


def _by_uuid(entries: Sequence[str], inventory: Sequence[PhysicalGpu]) -> tuple[VisibleDevice, ...]:
    found: list[PhysicalGpu] = []
    for entry in entries:
        matching = [gpu for gpu in inventory if entry and gpu.uuid.lower().startswith(entry.lower())]
        if len(matching) != 1:
            break
        if matching[0] in found:
            return ()
        found.append(matching[0])
    return tuple(VisibleDevice(cuda_index=position, gpu=gpu) for position, gpu in enumerate(found))


def _by_mig(entries: Sequence[str], inventory: Sequence[PhysicalGpu]) -> tuple[VisibleDevice, ...]:
    found: list[VisibleDevice] = []
    for entry in entries:
        matching = [(gpu, mig) for gpu in inventory for mig in gpu.mig if _names_mig(entry, gpu, mig)]
        if len(matching) != 1:
            break
        gpu, mig = matching[0]
        found.append(VisibleDevice(cuda_index=len(found), gpu=gpu, mig=mig))
    return tuple(found)


def _names_mig(entry: str, gpu: PhysicalGpu, mig: MigInstance) -> bool:
    """True for "MIG-<uuid>", a beginning of it, or the older "MIG-GPU-<uuid>/<gi>/<ci>"."""
    if entry.startswith("MIG-GPU-"):
        uuid, _, rest = entry.removeprefix("MIG-").partition("/")
        return uuid.lower() == gpu.uuid.lower() and rest == f"{mig.gpu_instance}/{mig.compute_instance}"
    return bool(entry) and mig.uuid.lower().startswith(entry.lower())


def read_inventory(nvml: Nvml) -> tuple[PhysicalGpu, ...]:
    """Ask NVML for every GPU and its MIG instances; GPUs that do not answer keep their place."""
    count = nvml.call("nvmlDeviceGetCount")
    found = []
    for index in range(0 if isinstance(count, Failure) else int(count)):
        handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
        if isinstance(handle, Failure):
            found.append(PhysicalGpu(index=index, uuid="", name=""))
            continue
        gpu = Gpu(nvml, handle, index)
        mig_enabled = bool(gpu.mig_enabled())
        instances = _mig_instances(nvml, gpu) if mig_enabled else ()
        found.append(
            PhysicalGpu(index=index, uuid=gpu.uuid, name=gpu.name, mig_enabled=mig_enabled, mig=instances)
        )
    return tuple(found)


def _mig_instances(nvml: Nvml, gpu: Gpu) -> tuple[MigInstance, ...]:
    limit = gpu.call("nvmlDeviceGetMaxMigDeviceCount", optional=True)
    found = []
    for position in range(0 if isinstance(limit, Failure) else int(limit)):
        handle = gpu.call("nvmlDeviceGetMigDeviceHandleByIndex", position, optional=True)
        if isinstance(handle, Failure):
            continue
        facts: list[Any] = [
            nvml.call(function, handle)
            for function in (
                "nvmlDeviceGetUUID",
                "nvmlDeviceGetGpuInstanceId",
                "nvmlDeviceGetComputeInstanceId",
            )
        ]
        if not any(isinstance(fact, Failure) for fact in facts):
            uuid, gpu_instance, compute_instance = facts
            found.append(
                MigInstance(uuid=str(uuid), gpu_instance=gpu_instance, compute_instance=compute_instance)
            )
    return tuple(found)


def open_gpu(
    nvml: Nvml, cuda_index: int, *, uuid: str | None = None, env: Mapping[str, str] | None = None
) -> Gpu | None:
    """Open the GPU that CUDA calls `cuda_index`.

    Args:
        nvml: a started session.
        cuda_index: CUDA's device index in this process; a process that sees one GPU uses that one, whatever
            its local rank.
        uuid: the device's UUID where the caller knows it ("GPU-..." or bare); overrides the index.
        env: the environment; os.environ by default.

    Returns:
        The GPU, or None where it is hidden, unknown or does not answer.
    """
    inventory = read_inventory(nvml)
    chosen = None
    mig = False
    if uuid is not None:
        wanted = uuid.lower().removeprefix("gpu-")
        chosen = next((gpu for gpu in inventory if gpu.uuid.lower().removeprefix("gpu-") == wanted), None)
    if chosen is None:
        devices = visible_devices(inventory, os.environ if env is None else env)
        if len(devices) == 1:
            cuda_index = 0
        device = devices[cuda_index] if 0 <= cuda_index < len(devices) else None
        chosen = device.gpu if device is not None else None
        mig = device is not None and device.mig is not None
    if chosen is None:
        return None
    handle = nvml.call("nvmlDeviceGetHandleByIndex", chosen.index)
    return (
        None
        if isinstance(handle, Failure)
        else Gpu(nvml, handle, chosen.index, mig=mig or chosen.mig_enabled)
    )
