"""May this process set clocks, and if not, what exactly would change that? Reads only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kareus.device.control import Controller, NvmlController
from kareus.device.gpu import Gpu
from kareus.device.nvml import Failure
from kareus.device.zeusd import Zeusd, ZeusdController

CAP_SYS_ADMIN = 21  # linux/capability.h


@dataclass(frozen=True, kw_only=True, slots=True)
class Permission:
    """Whether and how clocks can be set on one GPU.

    Attributes:
        allowed: as far as can be told without setting anything.
        via: "nvml", "zeusd" or "".
        reason: why, in a sentence.
        remedy: what to do about it; "" where nothing is needed.
        controller: how to set; None where not allowed.
    """

    allowed: bool
    via: str
    reason: str
    remedy: str = ""
    controller: Controller | None = None


def has_sys_admin(status: str | None = None) -> bool:
    """True when CAP_SYS_ADMIN is effective, read from the text of /proc/self/status."""
    if status is None:
        try:
            status = Path("/proc/self/status").read_text()
        except OSError:
            return os.geteuid() == 0
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_ADMIN & 1)
    return False


def in_container() -> bool:
    """True when a container runtime left its mark on this process."""
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return True
    # systemd-nspawn and podman set "container", in lower case
    return any(name in os.environ for name in ("KUBERNETES_SERVICE_HOST", "container"))


def remedy() -> str:
    """Return what to do in order to set clocks, for where this process runs."""
    daemon = "or ask an administrator for zeusd (sudo zeusd serve) and set ZEUSD_SOCK_PATH to its socket"
    if in_container():
        return f"start the container with --cap-add SYS_ADMIN as root, {daemon}"
    return f"run as root or with CAP_SYS_ADMIN, {daemon}"


def controller_for(gpu: Gpu) -> Controller:
    """Return the way to set a GPU without asking whether it is allowed: zeusd where it answers, else NVML."""
    path = os.environ.get("ZEUSD_SOCK_PATH")
    if path:
        daemon = Zeusd(path, gpu.nvml)
        number = daemon.find_gpu(gpu.pci_bus_id)
        if not isinstance(number, Failure):
            return ZeusdController(daemon, number)
    return NvmlController(gpu)


def preflight(gpu: Gpu, *, status: str | None = None) -> Permission:
    """Find out how clocks could be set on a GPU, without setting anything.

    A daemon named by ZEUSD_SOCK_PATH is preferred: somebody decided that it should be used.

    Args:
        gpu: the GPU. status: text of /proc/self/status, for tests.
    """
    if gpu.lost:
        return Permission(allowed=False, via="", reason="the GPU is lost", remedy="reset the GPU or reboot")
    if gpu.mig:
        return Permission(
            allowed=False, via="", reason="the GPU is divided by MIG and its clocks serve all instances",
            remedy="turn MIG off (nvidia-smi -mig 0, as administrator) to control clocks",
        )  # fmt: skip
    path = os.environ.get("ZEUSD_SOCK_PATH")
    if path:
        daemon = Zeusd(path, gpu.nvml)
        number = daemon.find_gpu(gpu.pci_bus_id)
        if not isinstance(number, Failure):
            return Permission(
                allowed=True, via="zeusd", reason=f"zeusd answers on {path}",
                controller=ZeusdController(daemon, number),
            )  # fmt: skip
        if not has_sys_admin(status):
            return Permission(
                allowed=False, via="", reason=str(number), remedy=f"check zeusd behind ZEUSD_SOCK_PATH={path}"
            )
    if has_sys_admin(status):
        return Permission(
            allowed=True, via="nvml", reason="this process has CAP_SYS_ADMIN", controller=NvmlController(gpu)
        )
    return Permission(allowed=False, via="", reason="this process lacks CAP_SYS_ADMIN", remedy=remedy())
