"""The one communication hook a DDP model gets, and the scaling that comes with having one.

Torch divides gradients by the world size while it copies them into a bucket, but not where a hook is
registered. The hook does it in the same place and in the same way, so that losses keep their bits:
multiplied by the reciprocal when copied in, divided where a gradient already was a view of the bucket.

Torch cannot take a hook off again. After detach it passes buckets on as stock would; a later attach to
the same model uses it again.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from kareus.errors import UsageError
from kareus.runtime import torch_api
from kareus.runtime.paths import GroupPath

ATTRIBUTE = "_kareus_hook"


class GradientScaling:
    """Divides a bucket by the world size exactly as stock DDP does.

    Stock multiplies by the reciprocal while copying a gradient in, and divides in place where the
    gradient is a view of the bucket already (`gradient_as_bucket_view` after the first step without
    `set_to_none`). For powers of two the two are the same bits; for other sizes each gradient's case is
    noted before the bucket is filled.
    """

    def __init__(self, model: DistributedDataParallel, world_size: int) -> None:
        self._world_size = world_size
        self._power_of_two = world_size & (world_size - 1) == 0
        self._folds = self._power_of_two and torch_api.backend_name(model.process_group) == "nccl"
        self._addresses: dict[int, int] = {}
        self._handles: list[Any] = []
        if not self._power_of_two and model.gradient_as_bucket_view:
            for parameter in torch_api.ddp_parameters(model):
                hook: Any = parameter.register_post_accumulate_grad_hook
                self._handles.append(hook(self._note))

    def _note(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._addresses[id(parameter)] = parameter.grad.data_ptr()

    def apply(self, bucket: Any, *, may_fold: bool) -> Any:
        """Scale the bucket's buffer in place; returns the reduction operator to use on it.

        With NCCL and a power of two the division is left to its AVG, which multiplies each contribution
        by the (then exact) reciprocal before it sums: the same bits without another pass over memory.

        Args:
            may_fold: the bucket goes through the model's own kind of process group.
        """
        if may_fold and self._folds:
            return dist.ReduceOp.AVG
        self._scale(bucket)
        return dist.ReduceOp.SUM

    def _scale(self, bucket: Any) -> None:
        buffer = bucket.buffer()
        if not self._handles:
            buffer.mul_(1.0 / self._world_size)
            return
        start = buffer.data_ptr()
        end = start + buffer.numel() * buffer.element_size()
        for parameter, view in zip(bucket.parameters(), bucket.gradients(), strict=True):
            address = self._addresses.pop(id(parameter), 0)
            if start <= address < end:
                view.div_(self._world_size)
            else:
                view.mul_(1.0 / self._world_size)


class BucketDriver(Protocol):
    """Who decides how buckets travel while attached."""

    def reduce(self, bucket: Any, scaling: GradientScaling) -> torch.futures.Future[torch.Tensor]:
        """Scale and reduce one bucket."""


class HookSlot:
    """What the registered hook calls.

    Attributes:
        driver: the attached session's, None after detach. scaling: of this model's buckets.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self._group: dist.ProcessGroup = model.process_group
        self.scaling = GradientScaling(model, dist.get_world_size(self._group))
        self._path = GroupPath()
        self.driver: BucketDriver | None = None

    def __call__(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Scale a bucket and reduce it."""
        if self.driver is not None:
            return self.driver.reduce(bucket, self.scaling)
        op = self.scaling.apply(bucket, may_fold=True)
        return self._path.all_reduce(bucket.buffer(), self._group, op)


def hook_slot(model: DistributedDataParallel, *, create: bool = False) -> HookSlot | None:
    """Return the slot of a model, None where it has none and none is to be created."""
    slot: HookSlot | None = vars(model).get(ATTRIBUTE)
    if slot is None and create:
        created = HookSlot(model)

        def kareus_hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP checks annotations by identity
            return created(bucket)

        model.register_comm_hook(None, kareus_hook)
        vars(model)[ATTRIBUTE] = created
        return created
    return slot


def refuse_foreign_hook(model: DistributedDataParallel) -> None:
    """Check that a model has no communication hook but perhaps one that a detached session left.

    Raises:
        UsageError: it has the user's own, or another session's.
    """
    existing = torch_api.ddp_hook_name(model)
    if existing and not is_ours(model):
        raise UsageError(
            f"this DDP model already has the communication hook {existing!r}, which decides how gradients "
            "travel; attach Kareus to a model without one, or train it without Kareus"
        )


def is_ours(model: DistributedDataParallel) -> bool:
    """Return True where the hook a model has is the pass-through of a session that was detached."""
    slot = hook_slot(model)
    return slot is not None and slot.driver is None and bool(torch_api.ddp_hook_name(model))
