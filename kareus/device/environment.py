"""Environment variables that override, or get in the way of, what a schedule asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """One variable that is set.

    Attributes:
        name, value: the variable.
        knob: the knob it takes away ("" where it only matters).
        effect: what it does, in a sentence.
    """

    name: str
    value: str
    knob: str
    effect: str


# NCCL lets the environment override a communicator's own configuration (init.cc, envConfigOverride).
_SILENT = "overrides every communicator's own configuration, so SM budgets have no effect; unset it"
KNOWN: dict[str, tuple[str, str]] = {
    "NCCL_MAX_CTAS": ("cta_budgets", _SILENT),
    "NCCL_MIN_CTAS": ("cta_budgets", _SILENT),
    "NCCL_CTA_POLICY": ("cta_budgets", _SILENT),
    "NCCL_CGA_CLUSTER_SIZE": ("cta_budgets", _SILENT),
    "NCCL_MAX_NCHANNELS": ("", "bounds the SMs of every communicator from above"),
    "NCCL_MIN_NCHANNELS": (
        "",
        "bounds the SMs of every communicator from below; small budgets may be ignored",
    ),
    "NCCL_NTHREADS": ("", "changes the speed of a given SM budget"),
    "NCCL_ALGO": ("", "fixes NCCL's algorithm; profiles made without it do not apply"),
    "NCCL_PROTO": ("", "fixes NCCL's protocol; profiles made without it do not apply"),
    "NCCL_P2P_DISABLE": ("", "sends traffic between GPUs of one host through host memory"),
    "NCCL_P2P_LEVEL": ("", "limits which GPUs talk directly"),
    "NCCL_SHM_DISABLE": ("", "sends traffic inside the host through the network"),
    "NCCL_NVLS_ENABLE": ("", "switches NVLink multicast; it changes the SMs that a collective needs"),
    "NCCL_TUNER_PLUGIN": ("", "a plugin chooses NCCL's algorithm and channels"),
    "NCCL_LAUNCH_ORDER_IMPLICIT": ("", "orders launches of several communicators; overlap may be lost"),
    "NCCL_CONF_FILE": ("", "may set any NCCL variable from a file"),
    "CUDA_DEVICE_MAX_CONNECTIONS": ("", "with 1, streams run in launch order and gates may serialise"),
    "CUDA_LAUNCH_BLOCKING": ("launch_points", "makes every launch wait: nothing overlaps; unset it"),
    "TORCH_NCCL_BLOCKING_WAIT": ("launch_points", "makes every collective wait on the CPU; unset it"),
    "TORCH_NCCL_AVOID_RECORD_STREAMS": ("", "changes when communication buffers are freed"),
    "PYTORCH_CUDA_ALLOC_CONF": ("", "changes the allocator; memory limits of a plan may not hold"),
    "NVIDIA_TF32_OVERRIDE": ("", "changes the speed and power of matrix products"),
    "KAREUS_DISABLE": ("", "makes kareus.attach do nothing"),
}


def overrides(env: Mapping[str, str]) -> tuple[Override, ...]:
    """Return the known variables that are set, in the order of the table.

    Args:
        env: the environment.
    """
    return tuple(
        Override(name=name, value=env[name], knob=knob, effect=effect)
        for name, (knob, effect) in KNOWN.items()
        if env.get(name) and not _is_off(name, env[name])
    )


def _is_off(name: str, value: str) -> bool:
    """True where a switch is set to what it is anyway."""
    switches = ("CUDA_LAUNCH_BLOCKING", "TORCH_NCCL_BLOCKING_WAIT", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
    return name in switches and value == "0"
