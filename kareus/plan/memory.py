"""Extra GPU memory of a plan, over stock's: communicators, copy-engine buffers, parameters gathered for longer."""

from __future__ import annotations

from dataclasses import dataclass

from kareus.model.cost import CostModel
from kareus.model.simulate import Simulation
from kareus.plan.options import copy_buffer_bytes, ladder_key
from kareus.schedule import Path, Schedule
from kareus.trace.identity import collective_key
from kareus.trace.types import StepGraph


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtraMemory:
    """Bytes on one GPU beyond stock's.

    Attributes:
        communicators: of SM budgets that stock has not. copy_buffers: symmetric memory of the copy engine.
        gathered: by how much the peak of gathered parameters rises, in the simulated step.
    """

    communicators: int = 0
    copy_buffers: int = 0
    gathered: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.communicators + self.copy_buffers + self.gathered


def extra_memory(
    schedule: Schedule, graph: StepGraph, cost: CostModel, *, stock: Simulation, planned: Simulation
) -> ExtraMemory:
    """Return what a schedule needs beyond stock.

    Args:
        schedule: any of this step. graph: the step. cost: says what a communicator takes.
        stock, planned: simulations of the step without and with the schedule.
    """
    members = {collective_key(c): c for c in graph.collectives}
    rungs: set[tuple[str, int]] = set()
    buffers: dict[str, int] = {}
    for decision in schedule.decisions:
        member = members.get(decision.collective)
        if member is None:
            continue
        if decision.path is Path.COPY_ENGINE:
            key = ladder_key(member)  # buffers are kept per rank tuple and kind, as large as the largest user
            buffers[key] = max(buffers.get(key, 0), copy_buffer_bytes(member))
        elif decision.num_ctas is not None:
            rungs.add((ladder_key(member), decision.num_ctas))
    return ExtraMemory(
        communicators=len(rungs) * round(cost["communicator_mb"] * 1e6),
        copy_buffers=sum(buffers.values()),
        gathered=max(planned.peak_gathered_bytes - stock.peak_gathered_bytes, 0),
    )
