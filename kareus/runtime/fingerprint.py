"""What the running job is, in the terms a schedule is keyed by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from kareus.errors import UsageError
from kareus.runtime import torch_api
from kareus.schedule import CollectiveKey, Fingerprint, Schedule, UnitShape

Wrapper = Literal["fsdp2", "fsdp1", "ddp"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The wrapped model and where it runs.

    Attributes:
        wrapper: how the model is wrapped.
        root: the module that owns the names: FSDP's root, or the DDP wrapper.
        device: where its collectives run. world_size, rank: of the default group.
        units: FSDP2 units, empty otherwise.
    """

    wrapper: Wrapper
    root: nn.Module
    device: torch.device
    world_size: int
    rank: int
    units: tuple[torch_api.FsdpUnit, ...] = ()

    @property
    def named_root(self) -> nn.Module:
        """The module that launch points are named from (inside the wrapper for DDP and FSDP1)."""
        inner: nn.Module = self.root if self.wrapper == "fsdp2" else self.root.module  # type: ignore[assignment]
        return inner


def describe_job(model: nn.Module) -> Job:
    """Find out how a model is wrapped.

    Raises:
        UsageError: no process group, or a model without exactly one wrapper.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise UsageError(
            "kareus.attach needs a process group, found none; call torch.distributed.init_process_group first"
        )
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for test, wrapper in ((torch_api.is_ddp, "ddp"), (torch_api.is_fsdp1, "fsdp1")):
        if test(model):
            parameter = next(model.parameters(), None)
            device = parameter.device if parameter is not None else torch.device("cpu")
            return Job(wrapper=wrapper, root=model, device=device, world_size=world_size, rank=rank)  # type: ignore[arg-type]
    root = torch_api.fsdp_root(model)
    if root is None:
        raise UsageError(
            f"kareus.attach expected a model wrapped with DistributedDataParallel or fully_shard (FSDP2), "
            f"found {type(model).__name__} with no single outermost wrapper; wrap it first, and call attach "
            "once for each wrapped model"
        )
    units = tuple(torch_api.fsdp_units(root))
    device = units[0].group.device if units else torch.device("cpu")
    return Job(wrapper="fsdp2", root=root, device=device, world_size=world_size, rank=rank, units=units)


def fingerprint(job: Job) -> Fingerprint:
    """Return the job's fingerprint; `collectives` stays empty, it is only known after a step ran."""
    if job.wrapper == "fsdp2":
        units = tuple(UnitShape(name=u.name, numel=u.numel, dtype=u.dtype) for u in job.units)
        return Fingerprint(
            wrapper="fsdp2", world_size=job.world_size, units=units, conditions=conditions(job.device)
        )
    parameters = (
        torch_api.ddp_parameters(job.root)  # type: ignore[arg-type]
        if job.wrapper == "ddp"
        else [p for p in job.root.parameters() if p.requires_grad]
    )
    dtype = parameters[0].dtype if parameters else torch.float32
    unit = UnitShape(
        name="",
        numel=sum(p.numel() for p in parameters),
        dtype=torch_api.DTYPE_NAMES.get(dtype, str(dtype).removeprefix("torch.")),
    )
    return Fingerprint(
        wrapper="ddp", world_size=job.world_size, units=(unit,), conditions=conditions(job.device)
    )


def sequence_problem(schedule: Schedule, observed: tuple[CollectiveKey, ...]) -> str:
    """Return how the collectives of an observed stock step differ from the schedule's, "" where they fit.

    Further micro-batches than the recorded step had are no difference: only names count.
    """
    expected = {_name(key) for key in schedule.fingerprint.collectives}
    expected = expected or {_name(d.collective) for d in schedule.decisions}
    found = {_name(key) for key in observed}
    missing = sorted(expected - found)
    extra = sorted(found - expected) if schedule.fingerprint.collectives else []
    parts = [
        f"{title} {', '.join(items[:4])}" for title, items in (("missing", missing), ("new", extra)) if items
    ]
    if not parts:
        return ""
    return f"a step issues other collectives than the schedule was made for ({'; '.join(parts)})"


def _name(key: CollectiveKey) -> str:
    return str(CollectiveKey(kind=key.kind, unit=key.unit, phase=key.phase))


def conditions(device: torch.device) -> dict[str, str]:
    """Return what only warns when it differs: torch, GPU and NCCL versions."""
    found = {"torch": str(torch.__version__)}
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    return found
