"""What this job runs on, for the manifest and the trace's header."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Sequence
from typing import Any

import torch

from kareus.runtime import ddp_arguments, torch_api
from kareus.runtime.environment import BUDGET_OVERRIDES
from kareus.trace.manifest import Gradient


def nccl_version() -> tuple[int, ...]:
    """Return the version of the NCCL that torch loaded."""
    version: Any = torch.cuda.nccl.version
    return tuple(version())


def device_facts(device: torch.device) -> dict[str, Any]:
    """Return gpu, num_sms, driver, cuda, torch, nccl and python as the manifest names them."""
    facts: dict[str, Any] = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "gpu": "cpu",
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": properties.name,
            "num_sms": properties.multi_processor_count,
            "cuda": torch.version.cuda or "",
            "nccl": ".".join(str(part) for part in nccl_version()),
        }
    return facts


def gpu_uuid(device: torch.device) -> str:
    """Return the CUDA device's UUID, "" where there is none."""
    if device.type != "cuda":
        return ""
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))


def command_line() -> str:
    """Return how this process was started."""
    words = getattr(sys, "orig_argv", sys.argv)
    return " ".join([os.path.basename(words[0]), *words[1:]])


def host_name() -> str:
    """Return this machine's name."""
    return socket.gethostname()


def capabilities(device: torch.device, *, hosts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return which knobs a schedule for this job may turn, each False with its reason.

    Args:
        hosts: the ranks on each machine.
    """
    torch_has = torch_api.capabilities()
    backend = torch_api.backend_name()
    found: dict[str, Any] = {
        "launch_points": torch_has["fsdp2_launch_points"],
        "backend": backend,
        **torch_has,
    }
    overriding = [name for name in BUDGET_OVERRIDES if os.environ.get(name)]
    reason = ""
    if backend != "nccl":
        reason = f"{backend} has no SM budgets"
    elif not torch_has["nccl_cta_budget"]:
        reason = "this torch has no ProcessGroupNCCL.Options"
    elif overriding:
        reason = f"{', '.join(overriding)} is set and overrides them"
    found["cta_budgets"] = not reason
    if reason:
        found["cta_budgets_reason"] = reason
    reason = _no_copy_engine(device, hosts)
    found["copy_engine"] = not reason
    if reason:
        found["copy_engine_reason"] = reason
    elif len(hosts) > 1:
        found["copy_engine_hosts"] = [list(ranks) for ranks in hosts]
    found["ddp_buckets"] = ddp_arguments.asked()
    return found


def gradients(model: Any) -> tuple[Gradient, ...]:
    """Return what a DDP model reduces, in registration order; named from inside the wrapper."""
    return tuple(
        Gradient(module=name.rpartition(".")[0], numel=p.numel(), num_bytes=p.numel() * p.element_size())
        for name, p in torch_api.ddp_named_parameters(model)
    )


def _no_copy_engine(device: torch.device, hosts: Sequence[Sequence[int]]) -> str:
    if device.type != "cuda" or torch_api.backend_name() != "nccl":
        return "needs GPUs and NCCL"
    if len(hosts) > 1 and all(len(ranks) == 1 for ranks in hosts):
        return "each rank runs on a host of its own"
    if os.environ.get("NCCL_P2P_DISABLE") == "1":
        return "NCCL_P2P_DISABLE=1: peer access was switched off for this job"
    others = [i for i in range(torch.cuda.device_count()) if i != device.index]
    if any(not torch.cuda.can_device_access_peer(device.index or 0, other) for other in others):
        return "a GPU of this host cannot read its peer's memory"
    return "" if _has_symmetric_memory() else "this torch has no symmetric memory"


def _has_symmetric_memory() -> bool:
    """Whether torch's module is there; `torch.distributed` itself does not import it."""
    try:
        from torch.distributed import _symmetric_memory
    except ImportError:
        return False
    return hasattr(_symmetric_memory, "rendezvous")
