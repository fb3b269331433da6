"""What a recording's manifest keeps of this machine, so that a laptop knows which knobs existed."""

from __future__ import annotations

import os

from kareus.device.environment import overrides
from kareus.device.examine import examine
from kareus.device.nvml import Failure, session
from kareus.device.visible import open_gpu, read_inventory

Finding = str | bool | int | float | list[int] | list[str]


def findings(local_rank: int = 0, *, measure: bool = True) -> dict[str, Finding]:
    """Return flat facts about this rank's GPU and environment for `Manifest.capabilities`.

    Without NVML only the environment is reported, and keys of what is unknown are left out, so a reader's
    defaults hold. torch's features are the caller's to add (this package does not import torch).

    Args:
        local_rank: as for `open_meter`.
        measure: measure the energy counter's period (about 1.3 s).

    Returns:
        gpu, gpu_uuid, driver, num_sms, num_gpus, num_nvlinks, mig, energy_source, energy_period_ms,
        energy_period_measured, sm_clocks_mhz, memory_clocks_mhz, power_limit_w and its _default, _min, _max,
        set_clocks and set_clocks_reason, foreign_processes, overrides ("NAME=value"), and cta_budgets,
        launch_points with their _reason where the environment takes them away.
    """
    found: dict[str, Finding] = {}
    present = overrides(os.environ)
    found["overrides"] = [f"{override.name}={override.value}" for override in present]
    for override in present:
        if override.knob:
            found[override.knob] = False
            found[f"{override.knob}_reason"] = f"{override.name} was set: it {override.effect}"
    nvml = session()
    gpu = open_gpu(nvml, local_rank) if nvml.started else None
    if gpu is None:
        found["set_clocks"] = False
        found["set_clocks_reason"] = "NVML did not answer"
        return found
    facts = examine(gpu, cuda_index=local_rank, measure=measure)
    driver = nvml.call("nvmlSystemGetDriverVersion")
    known: dict[str, Finding | None] = {
        "gpu": facts.name, "gpu_uuid": facts.uuid,
        "driver": None if isinstance(driver, Failure) else str(driver),
        "num_sms": facts.num_sms, "num_gpus": len(read_inventory(nvml)), "num_nvlinks": facts.num_nvlinks,
        "mig": facts.mig, "energy_source": facts.energy_source,
        "energy_period_ms": facts.counter_period_s * 1e3,
        "energy_period_measured": facts.counter_period_measured,
        "sm_clocks_mhz": list(facts.sm_clocks_mhz), "memory_clocks_mhz": list(facts.memory_clocks_mhz),
        "power_limit_w": facts.power_limit_w, "power_limit_default_w": facts.power_limit_default_w,
        "power_limit_min_w": facts.power_limit_min_w, "power_limit_max_w": facts.power_limit_max_w,
        "set_clocks": facts.may_set_clocks, "set_clocks_reason": facts.reason,
        "foreign_processes": None if facts.foreign_pids is None else list(facts.foreign_pids),
    }  # fmt: skip
    found.update({name: value for name, value in known.items() if value is not None})
    return found
