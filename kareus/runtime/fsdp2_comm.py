"""The communication objects that stand in for FSDP2's own, one of each kind a unit.

FSDP calls them on its communication streams. They are the public way in: the same signature from torch
2.9 to 2.14.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from kareus.runtime.paths import scale_for
from kareus.runtime.torch_api import AllGather, FsdpUnit, ReduceScatter
from kareus.schedule import Path

if TYPE_CHECKING:
    from kareus.runtime.fsdp2 import Fsdp2Driver


class _Planned:
    """What both stand-ins share: whose unit it is, and memory from the object that is replaced."""

    def __init__(self, driver: Fsdp2Driver, unit: FsdpUnit, inner: Any) -> None:
        self.driver, self.unit, self.inner = driver, unit, inner
        self._plain = _is_default(inner)
        vars(self)["allocate"] = inner.allocate  # one call less for each collective

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate as the replaced object does."""
        tensor: torch.Tensor = self.inner.allocate(size, dtype=dtype, device=device)
        return tensor


class PlannedAllGather(_Planned, AllGather):
    """Stands in for a unit's all-gather."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Issue the all-gather as planned."""
        driver, conductor = self.driver, self.driver.conductor
        ticket = driver.open("all_gather", self.unit, input_tensor, group)
        flight = conductor.enter(ticket)
        work = None
        background = self._plain and driver.gathers_in_background(ticket)
        try:
            if self._plain:
                work = ticket.path.all_gather(
                    output_tensor, input_tensor, ticket.group, async_op or background
                )
            else:
                work = self.inner(
                    output_tensor=output_tensor,
                    input_tensor=input_tensor,
                    group=ticket.group,
                    async_op=async_op,
                )
        finally:
            if background and work is not None:
                work = conductor.goes_on(flight, work)
            else:
                conductor.leave(flight)
        driver.stalls.gather_issued(self.unit.name)
        driver.after_issue(ticket)
        return work


class PlannedReduceScatter(_Planned, ReduceScatter):
    """Stands in for a unit's reduce-scatter."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Issue the reduce-scatter as planned."""
        driver, conductor = self.driver, self.driver.conductor
        ticket = driver.open("reduce_scatter", self.unit, input_tensor, group)
        path = ticket.path
        if path.name != "nccl" and not _can_sum(op):
            path = conductor.paths[Path.NCCL]
            driver.tally.add("path_unavailable", f"{ticket.key}: the copy path cannot reduce with {op}")
        flight = conductor.enter(ticket)
        try:
            if self._plain:
                work = path.reduce_scatter(output_tensor, input_tensor, ticket.group, op, async_op)
            else:
                work = self.inner(
                    output_tensor=output_tensor,
                    input_tensor=input_tensor,
                    group=ticket.group,
                    op=op,
                    async_op=async_op,
                )
        finally:
            conductor.leave(flight)
        driver.stalls.reduce_issued()
        driver.after_issue(ticket)
        return work


def _is_default(inner: Any) -> bool:
    """Return True for torch's plain collectives, which a path may carry out in their place."""
    return type(inner).__name__ in ("DefaultAllGather", "DefaultReduceScatter")


def _can_sum(op: Any) -> bool:
    try:
        scale_for(op, 2)
    except ValueError:
        return False
    return True
