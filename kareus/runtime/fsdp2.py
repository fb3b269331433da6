"""FSDP2: every all-gather and reduce-scatter goes through here.

Interception uses the public custom communication objects (`fsdp2_comm`); launch points, prefetch depth
and deferral hang on methods of the parameter groups (`fsdp2_units`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from kareus.runtime import torch_api
from kareus.runtime.conductor import Conductor, Ticket
from kareus.runtime.deferral import ReduceDeferral
from kareus.runtime.early_gathers import EarlyGathers
from kareus.runtime.exchange import Exchange
from kareus.runtime.fingerprint import Job
from kareus.runtime.fsdp2_comm import PlannedAllGather, PlannedReduceScatter
from kareus.runtime.fsdp2_units import wrap_unit
from kareus.runtime.launch import LaunchBoard
from kareus.runtime.stalls import Stalls
from kareus.runtime.torch_api import FsdpUnit
from kareus.runtime.windows import Target, Windows, anchor_token, plan_windows, point_token
from kareus.schedule import LaunchPoint

REDUCE = "reduce"  # a window's target that is a reduce-scatter held back
KINDS = ("all_gather", "reduce_scatter")


class Fsdp2Driver:
    """Carries out a schedule inside one FSDP2 model.

    Args:
        job: the model. conductor: hands out tickets.
    """

    def __init__(self, job: Job, conductor: Conductor) -> None:
        self.job, self.conductor = job, conductor
        self.timeline, self.tally = conductor.timeline, conductor.tally
        self.units = [unit for unit in job.units if unit.lone]
        self.order: list[FsdpUnit] = []
        self._by_group = {id(unit.group): unit for unit in self.units}
        self._issued: set[tuple[str, str]] = set()
        self._originals: list[tuple[FsdpUnit, Any, Any]] = []
        self._user_prefetch: list[tuple[FsdpUnit, list[Any], list[Any]]] = []
        self._by_name = {unit.name: unit for unit in self.units}
        self._targets: dict[str, list[Target]] = {}
        self._at_need: set[Target] = set()
        self._windows = Windows()
        self._tokens: list[str] = []
        self._occurrences: dict[tuple[str, str], int] = {}
        self.compute_stream: Any = None
        self.early: EarlyGathers | None = None
        self.stalls = Stalls(conductor)
        self._lists_taken = False
        self._name_targets()
        self._ahead = self._phases_ahead()
        self._unwrap_root: Callable[[], None] = lambda: None
        self.board = LaunchBoard(
            job.root,
            self.timeline,
            active=self._acting,
            tally=self.tally,
            on_met=self.on_met,
            observing=self._observing,
            on_seen=lambda point: self._tokens.append(point_token(point)),
        )
        schedule = conductor.schedule
        self.deferral = ReduceDeferral(
            0 if schedule is None else schedule.reduce_scatter_deferral, active=lambda: conductor.scheduling
        )

    def _phases_ahead(self) -> frozenset[str]:
        """Return the phases whose gathers a schedule issues ahead of their need on a device without streams."""
        schedule = self.conductor.schedule
        if schedule is None or self.stalls.enabled:
            return frozenset()
        depths = {"forward": schedule.forward_prefetch, "backward": schedule.backward_prefetch}
        launched = {phase for found in self._targets.values() for _, phase in found if phase != REDUCE}
        return frozenset(launched | {phase for phase, depth in depths.items() if depth})

    def install(self) -> None:
        """Place the communication objects, the method wrappers and the launch hooks."""
        for unit in self.job.units:
            if not unit.lone:
                self.tally.add(
                    "several_groups",
                    f"unit {unit.name!r} has several parameter groups, which torch does not let us "
                    "intercept; its collectives stay as in stock",
                )
        self._unwrap_root = torch_api.on_root_forward(self.job.root, self._begin_pass)
        for unit in self.units:
            gather, scatter = unit.group._all_gather_comm, unit.group._reduce_scatter_comm
            self._originals.append((unit, gather, scatter))
            unit.module.set_custom_all_gather(PlannedAllGather(self, unit, gather))  # type: ignore[operator]
            unit.module.set_custom_reduce_scatter(PlannedReduceScatter(self, unit, scatter))  # type: ignore[operator]
            missing = torch_api.missing_unit_methods(unit.group)
            if missing:
                self.tally.add(
                    "no_launch_points", f"this torch has no {missing}: launch points stay as in stock"
                )
                continue
            wrap_unit(self, unit)
        if self.early is not None:
            self.early.install()
        self.board.install(self.conductor.launch_points(), elsewhere=self.points_elsewhere())

    @property
    def is_paced(self) -> bool:
        """True where points inside or around units matter: to launches, or to where a clock region starts."""
        schedule = self.conductor.schedule
        return bool(self.conductor.launch_points()) or (
            schedule is not None and any(region.start is not None for region in schedule.every_region)
        )

    @property
    def defers(self) -> bool:
        """True where reduce-scatters may be held back."""
        schedule = self.conductor.schedule
        deferral = schedule is not None and schedule.reduce_scatter_deferral > 0
        return deferral or any(phase == REDUCE for found in self._targets.values() for _, phase in found)

    def _name_targets(self) -> None:
        """Sort launched collectives by their points."""
        for unit in self.units:
            scatter = self.conductor.decision("reduce_scatter", unit.name, "backward")
            if scatter is not None and scatter.launch is not None:
                self._targets.setdefault(point_token(scatter.launch), []).append((unit.name, REDUCE))
            for phase in ("forward", "backward"):
                decision = self.conductor.decision("all_gather", unit.name, phase)
                if decision is None or decision.launch is None:
                    continue
                if decision.launch == LaunchPoint(module=unit.name, phase=phase, side="before"):
                    self._at_need.add((unit.name, phase))
                else:
                    self._targets.setdefault(point_token(decision.launch), []).append((unit.name, phase))

    def points_elsewhere(self) -> set[str]:
        """Return the modules whose points the unit wrappers report."""
        return {unit.name for unit in self.units if not torch_api.missing_unit_methods(unit.group)}

    # While training

    def _acting(self) -> bool:
        return self.conductor.scheduling and not torch_api.is_capturing(self.timeline.device)

    def _observing(self) -> bool:
        return self.conductor.arm == "observe" and not self.conductor.evaluating

    def meet_anchor(self, event: str, unit: FsdpUnit) -> None:
        """Note a unit event; issue what its window still holds."""
        if not self._targets:
            return
        occurrence = self._occurrences.get((event, unit.name), 0)
        self._occurrences[event, unit.name] = occurrence + 1
        token = anchor_token(event, unit.name, occurrence)
        if self._observing():
            self._tokens.append(token)
        elif self._acting():
            for target in self._windows.before_anchor.get(token, ()):
                self._launch(target)

    def must_hold(self, unit: FsdpUnit) -> bool:
        """Return whether a unit's reduce-scatter has a launch point that is still to come."""
        if not self._acting() or (unit.name, REDUCE) not in self._windows.launched:
            return False
        decision = self.conductor.decision("reduce_scatter", unit.name, "backward")
        return decision is not None and decision.launch not in self.board.marks

    def _launch(self, target: Target) -> None:
        unit = self._by_name[target[0]]
        if target[1] == REDUCE:
            self.deferral.release(unit.group)
        elif target not in self._issued and not torch_api.is_gathered(unit.group):
            torch_api.prefetch_unshard(unit.group, target[1])

    def order_hash(self) -> int:
        """Return 32 bits of the observed pass, 0 where nothing of the schedule depends on it."""
        if self.early is None and not self._targets:
            return 0
        early = None if self.early is None else self.early.seen()
        return zlib.crc32(msgspec.json.encode([self._tokens, early]))

    def prepare(self, exchange: Exchange | None) -> None:
        """Fix the issue order of launched all-gathers from rank 0's observed pass; all ranks call it."""
        if self.early is not None:
            self.early.prepare(exchange)
        if not self._targets:
            return
        tokens = self._tokens
        if exchange is not None:
            tokens = msgspec.json.decode(exchange.broadcast(msgspec.json.encode(tokens)), type=list[str])
        self._windows = plan_windows(tokens, self._targets)
        for point in self._windows.dropped:
            self.tally.add(
                "launch_unreachable", f"launch {point} was not met; its collectives start as in stock"
            )

    def _begin_pass(self) -> None:
        self.conductor.evaluating = not torch.is_grad_enabled()
        self.board.begin_pass()
        self._issued.clear()
        self._occurrences.clear()
        if self._observing():
            self._tokens.clear()
        self.deferral.begin_pass()
        if self.early is not None:
            self.early.begin_pass()
        if self.conductor.arm == "observe":
            self.order.clear()

    def entered_forward(self, unit: FsdpUnit) -> None:
        """Note the order of units; gather ahead what the schedule's depth says."""
        conductor = self.conductor
        if conductor.arm == "observe" and not conductor.evaluating and unit not in self.order:
            self.order.append(unit)
        if not conductor.scheduling:
            return
        for target in self._forward_targets(unit):
            if not self._has_launch(target, "forward"):
                torch_api.prefetch_unshard(target.group, "forward")

    def _forward_targets(self, unit: FsdpUnit) -> list[FsdpUnit]:
        """Return the units to gather once `unit` has begun its forward."""
        depth = self.conductor.schedule.forward_prefetch if self.conductor.schedule else None
        if depth is None:
            for owner, forward, _ in self._user_prefetch if self._lists_taken else ():
                if owner is unit:
                    return self._units_of(forward)
            return []
        if unit not in self.order:
            return []
        at = self.order.index(unit)
        return self.order[at + 1 : at + 1 + depth]

    def backward_prefetch(self, target: Any, pass_type: str, original: Callable[[Any, str], None]) -> None:
        """Stand in for FSDP's own backward prefetch of the unit before the current one."""
        if not self.conductor.scheduling or pass_type != "backward":
            original(target, pass_type)
            return
        schedule = self.conductor.schedule
        depth = schedule.backward_prefetch if schedule is not None else None
        targets = [target]
        if depth is not None:
            done = torch_api.forward_order(target)
            at = len(done) - 1 - done[::-1].index(target) if target in done else 0
            targets = [done[i] for i in range(at, max(-1, at - depth), -1)] or [target]
            if depth == 0:
                targets = []
        for group in targets:
            unit = self._by_group.get(id(group))
            if unit is None or not self._has_launch(unit, "backward"):
                original(group, pass_type)

    def _has_launch(self, unit: FsdpUnit, phase: str) -> bool:
        """Return whether a gather waits for a launch point; its own unit's start means: when it is needed."""
        return (unit.name, phase) in self._windows.launched or (unit.name, phase) in self._at_need

    def on_met(self, point: LaunchPoint) -> None:
        """Issue what waits for a launch point that was just met."""
        token = point_token(point)
        for target in self._windows.at_point.get(token, ()):
            if target in self._issued and target in self._targets[token]:
                self.conductor.measure.missed += 1
            self._launch(target)

    def open(self, kind: str, unit: FsdpUnit, tensor: torch.Tensor, group: dist.ProcessGroup) -> Ticket:
        """Return the ticket of a collective; its stream waits for the launch point, where that was met."""
        backward = kind == "reduce_scatter" or torch_api.in_backward()
        phase = "backward" if backward else torch_api.unit_phase(unit.group)
        if kind == "all_gather":
            self._issued.add((unit.name, phase))
        num_bytes = tensor.numel() * tensor.element_size()
        ticket = self.conductor.open(kind, unit.name, phase, num_bytes, group)
        launch = ticket.decision.launch
        early = self.early is not None and self.early.issuing
        if launch is not None and not early and not torch_api.is_capturing(self.timeline.device):
            mark = self.board.marks.get(launch)
            if mark is not None:
                self.timeline.wait(mark)
            else:
                self.conductor.measure.missed += 1
        if ticket.decision.serialise and self.compute_stream is not None:
            self.timeline.wait_stream(self.timeline.current_stream(), self.compute_stream)
        return ticket

    def gathers_in_background(self, ticket: Ticket) -> bool:
        """Return whether a gather on CPU goes on while compute does.

        On CUDA streams do that. FSDP2's collectives on CPU block instead, so that gathering ahead would
        gain nothing: where the schedule sets how far ahead, gloo's threads carry the gather out.
        """
        early = self.early is not None and self.early.issuing
        return (
            self.conductor.scheduling
            and (early or ticket.key.phase in self._ahead)
            and ticket.path.name == "nccl"
            and not ticket.decision.serialise
        )

    def after_issue(self, ticket: Ticket) -> None:
        """Make compute wait for a collective that nothing shall run beside."""
        if ticket.decision.serialise and self.compute_stream is not None:
            self.timeline.wait_stream(self.compute_stream, self.timeline.current_stream())

    # Switching and leaving

    def end_step(self) -> None:
        """Complete what is measured of the step that ends."""
        self.stalls.end_step()

    def on_arm(self) -> None:
        """Take over the user's prefetch lists while the schedule sets prefetching, give them back after."""
        schedule = self.conductor.schedule
        if schedule is None:
            return
        if self.early is not None and self.early.drop():
            self.conductor.begin_step()  # a step of another arm shall not count them
        wants_forward = schedule.forward_prefetch is not None or self._any_launch("forward")
        wants_backward = schedule.backward_prefetch is not None or self._any_launch("backward")
        take = self.conductor.arm == "scheduled" and (wants_forward or wants_backward)
        if take and not self._lists_taken:
            self._user_prefetch = []
            for unit in self.units:
                state = unit.state
                forward, backward = state._states_to_forward_prefetch, state._states_to_backward_prefetch
                self._user_prefetch.append((unit, forward, backward))
                if wants_forward:
                    state._states_to_forward_prefetch = []
                if wants_backward:
                    state._states_to_backward_prefetch = []
        elif not take and self._lists_taken:
            for unit, forward, backward in self._user_prefetch:
                unit.state._states_to_forward_prefetch = forward
                unit.state._states_to_backward_prefetch = backward
        self._lists_taken = take

    def _any_launch(self, phase: str) -> bool:
        return any(self._has_launch(unit, phase) for unit in self.units)

    def unit_named(self, name: str) -> FsdpUnit:
        """Return a unit by its name."""
        return self._by_name[name]

    def _units_of(self, states: list[Any]) -> list[FsdpUnit]:
        return [unit for state in states for unit in self.units if unit.state is state]

    def uninstall(self) -> None:
        """Put torch's own methods and the replaced communication objects back."""
        if self.early is not None:
            self.early.uninstall()
        for unit, gather, scatter in self._originals:
            unit.module.set_custom_all_gather(gather)  # type: ignore[operator]
            unit.module.set_custom_reduce_scatter(scatter)  # type: ignore[operator]
            for name in torch_api.UNIT_METHODS:
                unit.group.__dict__.pop(name, None)
            self.deferral.unwrap_final_callback(unit.state)
        self._originals.clear()
        self._unwrap_root()
        self.board.remove()
