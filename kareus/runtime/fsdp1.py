"""FSDP1 (`FullyShardedDataParallel`): the little it lets one set from outside.

Its all-gathers cannot be intercepted, so a budget holds for every collective of the model alike, and only
when the wrapper is built. Everything else needs `fully_shard` (FSDP2).
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from kareus.errors import UsageError
from kareus.runtime import torch_api
from kareus.schedule import MAX_CTAS


def fsdp1_kwargs(
    *,
    num_ctas: int | None = None,
    forward_prefetch: bool | None = None,
    backward_prefetch: bool | None = None,
    limit_all_gathers: bool | None = None,
    ranks: list[int] | None = None,
) -> dict[str, Any]:
    """Return arguments for `FullyShardedDataParallel(model, **kareus.runtime.fsdp1_kwargs(...))`.

    Creates a process group when a budget is given, so every rank must call it alike.

    Args:
        num_ctas: SM budget of all its collectives, 1..32 NCCL thread blocks; no effect with gloo.
        forward_prefetch: gather the next unit before the current one computes.
        backward_prefetch: True gathers the next unit before the current one's gradients, False not at all.
        limit_all_gathers: keep the CPU from running more than two gathers ahead.
        ranks: of the group, all by default.

    Raises:
        UsageError: a budget out of range, or no process group.
    """
    found: dict[str, Any] = {}
    if num_ctas is not None:
        if not 1 <= num_ctas <= MAX_CTAS:
            raise UsageError(f"num_ctas must be 1..{MAX_CTAS}, found {num_ctas}")
        if not dist.is_initialized():
            raise UsageError(
                "fsdp1_kwargs(num_ctas=...) needs a process group; call init_process_group first"
            )
        nccl = torch_api.backend_name() == "nccl"
        options = torch_api.nccl_options(num_ctas, high_priority=False) if nccl else None
        found["process_group"] = torch_api.new_group(
            ranks, description=f"kareus_fsdp1_{num_ctas}", options=options
        )
    if forward_prefetch is not None:
        found["forward_prefetch"] = forward_prefetch
    if backward_prefetch is not None:
        from torch.distributed.fsdp import BackwardPrefetch

        found["backward_prefetch"] = BackwardPrefetch.BACKWARD_PRE if backward_prefetch else None
    if limit_all_gathers is not None:
        found["limit_all_gathers"] = limit_all_gathers
    return found
