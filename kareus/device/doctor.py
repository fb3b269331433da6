"""`kareus doctor`: what is here, what may be used, and what to do about the rest. Changes nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from kareus.device.capabilities import FEATURES, TorchFacts, probe_torch
from kareus.device.environment import Override, overrides
from kareus.device.examine import GpuFacts, examine
from kareus.device.gpu import Gpu
from kareus.device.journal import read_all
from kareus.device.locks import state_dir
from kareus.device.nvml import Failure, Nvml, session
from kareus.device.visible import read_inventory, visible_devices

SCHEMA = "kareus.doctor/1"


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """One knob of a schedule: whether `solve` may use it here, why, and what would change that."""

    available: bool
    reason: str
    remedy: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `kareus doctor` knows.

    Attributes:
        ok: NVML answers, there is a GPU, and its energy can be read.
        versions: of Kareus, Python, nvidia-ml-py, driver, CUDA driver, torch, NCCL.
        gpus: every GPU of the host, `cuda_index` where this process sees it.
        torch_features: feature -> present; empty with `torch_problem` where torch cannot be probed.
        environment: variables that override us.
        knobs: what `solve` may use.
        advice: what to do, most important first.
        nvml_failures: "function:NAME" -> count.
    """

    ok: bool
    versions: dict[str, str]
    gpus: list[GpuFacts]
    torch_features: dict[str, bool]
    torch_problem: str
    environment: list[dict[str, str]]
    knobs: dict[str, Knob]
    advice: list[str]
    nvml_failures: dict[str, int]
    schema: str = SCHEMA


def diagnose(*, measure: bool = True, probe: bool = True, env: Mapping[str, str] | None = None) -> Report:
    """Find out everything; never raises.

    Args:
        measure: measure the energy counters' periods (about 1.3 s, all GPUs at once).
        probe: ask torch for its features (imports torch in another process).
        env: the environment; os.environ by default.
    """
    environment = os.environ if env is None else env
    nvml = session()
    gpus = examine_all(nvml, environment, measure=measure) if nvml.started else []
    torch = probe_torch() if probe else TorchFacts(problem="not asked for")
    found = overrides(environment)
    knobs = knobs_of(gpus, torch, found)
    usable = any(gpu.energy_source != "none" for gpu in gpus)
    return Report(
        ok=usable, versions=versions(nvml, torch), gpus=gpus, torch_features=torch.features,
        torch_problem=torch.problem,
        environment=[{"name": o.name, "value": o.value, "effect": o.effect} for o in found],
        knobs=knobs, advice=advice(nvml, gpus, torch, knobs, found), nvml_failures=nvml.failure_counts(),
    )  # fmt: skip


def examine_all(nvml: Nvml, env: Mapping[str, str], *, measure: bool) -> list[GpuFacts]:
    """Examine every GPU of the host, side by side."""
    inventory = read_inventory(nvml)
    cuda = {device.gpu.index: device.cuda_index for device in reversed(visible_devices(inventory, env))}
    opened = []
    for physical in inventory:
        handle = nvml.call("nvmlDeviceGetHandleByIndex", physical.index)
        if not isinstance(handle, Failure):
            opened.append(Gpu(nvml, handle, physical.index, mig=physical.mig_enabled))
    if not opened:
        return []
    with ThreadPoolExecutor(len(opened)) as pool:
        return list(
            pool.map(lambda gpu: examine(gpu, cuda_index=cuda.get(gpu.index), measure=measure), opened)
        )


def versions(nvml: Nvml, torch: TorchFacts) -> dict[str, str]:
    """Return version numbers by name, "" where there is none."""
    driver, cuda = nvml.call("nvmlSystemGetDriverVersion"), nvml.call("nvmlSystemGetCudaDriverVersion_v2")
    try:
        bindings = importlib.metadata.version("nvidia-ml-py")
    except importlib.metadata.PackageNotFoundError:
        bindings = ""
    return {
        "kareus": str(sys.modules["kareus"].__version__),  # importing the name would reach torch
        "python": platform.python_version(),
        "nvidia_ml_py": bindings,
        "driver": "" if isinstance(driver, Failure) else str(driver),
        "cuda_driver": "" if isinstance(cuda, Failure) else f"{cuda // 1000}.{cuda % 1000 // 10}",
        "torch": torch.torch,
        "torch_cuda": torch.cuda,
        "nccl": torch.nccl,
    }


def knobs_of(gpus: Sequence[GpuFacts], torch: TorchFacts, found: Sequence[Override]) -> dict[str, Knob]:
    """Return which knobs `solve` may use, from what was found."""
    knobs = {
        "cta_budgets": _by_feature(torch, "nccl_config", "NCCL communicators take an SM budget"),
        "launch_points": _by_feature(torch, "fsdp2_custom_comms", "FSDP2 lets a collective be issued late"),
        "copy_engine": _copy_engine(gpus, torch),
        "separate_reduce_scatter_group": _by_feature(
            torch,
            "fsdp2_separate_reduce_scatter_group",
            "reduce-scatters may have a communicator of their own",
        ),
        "ddp_bucket_sizes": _by_feature(torch, "ddp_bucket_cap_mb_list", "DDP buckets may differ in size"),
        "compute_sm_margin": _by_feature(
            torch, "green_contexts", "GEMMs may leave SMs free; off unless measured to help"
        ),
    }
    for override in found:
        if override.knob:
            text = f"{override.name}={override.value} {override.effect}"
            knobs[override.knob] = Knob(available=False, reason=text, remedy=f"unset {override.name}")
    return {**knobs, **_clock_knobs(gpus)}


def _by_feature(torch: TorchFacts, feature: str, meaning: str) -> Knob:
    if not torch.features:
        return Knob(
            available=False,
            reason=f"torch could not be asked ({torch.problem})",
            remedy="install torch >= 2.9",
        )
    if torch.features.get(feature, False):
        return Knob(available=True, reason=meaning)
    since = FEATURES[feature]
    built = ", built with NCCL" if feature.startswith("nccl") else ""
    return Knob(
        available=False, reason=f"torch {torch.torch} lacks it", remedy=f"use torch >= {since}{built}"
    )


def _copy_engine(gpus: Sequence[GpuFacts], torch: TorchFacts) -> Knob:
    knob = _by_feature(torch, "symmetric_memory", "GPUs of this host reach each other's memory over NVLink")
    if not knob.available:
        return knob
    if not gpus:
        return Knob(available=False, reason="there is no GPU that answers")
    if len(gpus) < 2:
        return Knob(available=False, reason="there is one GPU in this host")
    without = [gpu.index for gpu in gpus if gpu.num_nvlinks == 0]
    if without:
        return Knob(available=False, reason=f"GPUs {without} have no active NVLink")
    return knob


def _clock_knobs(gpus: Sequence[GpuFacts]) -> dict[str, Knob]:
    names = ("set_clocks", "set_memory_clock", "set_power_limit")
    if not gpus:
        return {name: Knob(available=False, reason="there is no GPU that answers") for name in names}
    refused = next((gpu for gpu in gpus if not gpu.may_set_clocks), None)
    if refused is not None:
        knob = Knob(available=False, reason=refused.reason, remedy=refused.remedy)
        return dict.fromkeys(names, knob)
    via = f'through {gpus[0].via}; opt-in (clocks="apply")'
    one_memory_clock = any(len(gpu.memory_clocks_mhz) < 2 for gpu in gpus)
    no_range = any(gpu.power_limit_min_w is None for gpu in gpus)
    no_clocks = any(len(gpu.sm_clocks_mhz) < 2 for gpu in gpus)
    return {
        "set_clocks": Knob(
            available=not no_clocks, reason="the card names no clocks to lock" if no_clocks else via
        ),
        "set_memory_clock": Knob(
            available=not one_memory_clock,
            reason="the card has one memory clock" if one_memory_clock else via,
        ),
        "set_power_limit": Knob(
            available=not no_range, reason="the card's limit cannot be set" if no_range else via
        ),
    }


def advice(
    nvml: Nvml,
    gpus: Sequence[GpuFacts],
    torch: TorchFacts,
    knobs: Mapping[str, Knob],
    found: Sequence[Override],
) -> list[str]:
    """Return what to do, most important first."""
    said: list[str] = []
    if not nvml.started:
        failure = nvml.start()
        said.append(
            f"NVML cannot be used: {failure}. Offline commands (inspect, solve, simulate) still work."
        )
    elif not gpus:
        said.append("no GPU answers: check `nvidia-smi`. Offline commands still work.")
    for gpu in gpus:
        where = f"GPU {gpu.index} ({gpu.name})"
        if gpu.energy_source == "none":
            said.append(f"{where} has neither energy counter nor power reading: energy stays unknown.")
        if gpu.foreign_pids:
            said.append(
                f"{where} is also used by processes {list(gpu.foreign_pids)}: its energy includes theirs."
            )
        if gpu.mig:
            said.append(f"{where} is divided by MIG: energy is that of the whole GPU, clocks are left alone.")
    said += _journal_advice()
    said += [f"unset {o.name}: it {o.effect}" for o in found if o.knob]
    said += [
        f"{name}: {knob.reason}" + (f"; {knob.remedy}" if knob.remedy else "")
        for name, knob in knobs.items()
        if not knob.available and not any(o.knob == name for o in found)
    ]
    return list(dict.fromkeys(said))


def _journal_advice() -> list[str]:
    try:
        entries, problems = read_all(state_dir(create=False))
    except OSError as error:
        return [f"crash journals cannot be kept ({error}): set KAREUS_STATE_DIR, or clocks stay off."]
    dead = [entry for entry in entries if not entry.is_writer_alive()]
    said = [
        f"process {entry.pid} ended without restoring {entry.gpu_name} {entry.gpu_uuid}: "
        "run `kareus reset-clocks`."
        for entry in dead
    ]
    return said + [f"a crash journal cannot be read: {problem}" for problem in problems]


def to_document(report: Report) -> dict[str, Any]:
    """Return the report as a JSON document, schema first."""
    document: dict[str, Any] = msgspec.to_builtins(report)
    return {"schema": document.pop("schema"), **document}
