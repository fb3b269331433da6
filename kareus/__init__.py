"""Kareus: schedules communication beside computation in PyTorch training.

    session = kareus.attach(model, optimizer, schedule="schedule.json")

Only what a training script needs is exported here; it is imported on first use, so that the offline
half (`kareus inspect`, `solve`, `simulate`, `report`) never imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Schedule", "attach", "ddp_kwargs"]

if TYPE_CHECKING:
    from kareus.runtime import attach, ddp_kwargs
    from kareus.schedule import Schedule


def __getattr__(name: str) -> Any:
    if name in ("attach", "ddp_kwargs"):
        from kareus import runtime

        return getattr(runtime, name)
    if name == "Schedule":
        from kareus.schedule import Schedule

        return Schedule
    raise AttributeError(f"module 'kareus' has no attribute {name!r}")
