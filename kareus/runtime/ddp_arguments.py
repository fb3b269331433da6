"""What a schedule fixes when a DDP wrapper is built: bucket sizes."""

from __future__ import annotations

from typing import Any

from kareus.runtime import torch_api
from kareus.schedule import Schedule

_asked = False


def ddp_kwargs(schedule: str | Schedule | None = None) -> dict[str, Any]:
    """Return the arguments of `DistributedDataParallel` that a schedule fixes at construction.

    Use as `DDP(model, **kareus.ddp_kwargs("schedule.json"))`. Without a schedule, and for values this
    torch does not know, nothing is set.

    Args:
        schedule: a schedule or its file; None reads KAREUS_SCHEDULE, and without that returns nothing.

    Raises:
        InputError: a file that cannot be read or is no schedule.
    """
    global _asked
    if torch_api.environment("KAREUS_DISABLE") == "1":
        return {}
    _asked = True
    source = schedule or torch_api.environment("KAREUS_SCHEDULE")
    if source is None:
        return {}
    plan = Schedule.load(source) if isinstance(source, str) else source
    found: dict[str, Any] = {}
    if plan.ddp_bucket_cap_mb is not None:
        found["bucket_cap_mb"] = plan.ddp_bucket_cap_mb
    if plan.ddp_bucket_cap_mb_list and torch_api.capabilities()["ddp_bucket_cap_mb_list"]:
        found["bucket_cap_mb_list"] = list(plan.ddp_bucket_cap_mb_list)
        found.pop("bucket_cap_mb", None)
    return found


def asked() -> bool:
    """Return whether this process asked for the arguments: only then may a schedule for it set them."""
    return _asked
