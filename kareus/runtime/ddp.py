"""DistributedDataParallel: budget, path and launch point of every bucket's all-reduce."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from kareus.runtime import torch_api
from kareus.runtime.conductor import Conductor, StepMeasure, Ticket
from kareus.runtime.ddp_hook import GradientScaling, HookSlot, hook_slot, refuse_foreign_hook
from kareus.runtime.divergence import Flight
from kareus.runtime.exchange import Exchange
from kareus.runtime.fingerprint import Job
from kareus.runtime.launch import LaunchBoard

KINDS = ("all_reduce",)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A bucket that was scaled and not yet issued."""

    ticket: Ticket
    buffer: torch.Tensor
    op: Any


class DdpDriver:
    """Carries out a schedule inside one DDP model.

    Args:
        job: the model. conductor: hands out tickets.

    Raises:
        UsageError: the model has a communication hook already.
    """

    def __init__(self, job: Job, conductor: Conductor) -> None:
        self.job, self.conductor = job, conductor
        self.timeline, self.tally = conductor.timeline, conductor.tally
        self.model: DistributedDataParallel = job.root  # type: ignore[assignment]
        refuse_foreign_hook(self.model)
        self.slot: HookSlot | None = None
        self.group: dist.ProcessGroup = self.model.process_group
        self.board = LaunchBoard(
            job.named_root,
            self.timeline,
            active=lambda: conductor.scheduling and not torch_api.is_capturing(self.timeline.device),
            tally=self.tally,
            on_met=lambda _: self._drain(force=False),
        )
        self._queue: deque[tuple[_Waiting, torch.futures.Future[torch.Tensor]]] = deque()
        self._last: Any = None
        self._handles: list[Any] = []

    def install(self) -> None:
        """Register the communication hook, once in a model's life, and the launch hooks."""
        self.slot = hook_slot(self.model, create=True)
        assert self.slot is not None
        self.slot.driver = self
        self.board.install(self.conductor.launch_points())
        self._handles.append(self.model.register_forward_pre_hook(lambda *_: self._begin_pass()))

    def points_elsewhere(self) -> set[str]:
        """Return the modules whose points are not hooked: none."""
        return set()

    def _begin_pass(self) -> None:
        if self._queue:
            self.tally.add("buckets_dropped", "a backward pass ended early; its waiting buckets were dropped")
            self._queue.clear()
        self.conductor.evaluating = not torch.is_grad_enabled()
        self.board.begin_pass()

    def reduce(self, bucket: Any, scaling: GradientScaling) -> torch.futures.Future[torch.Tensor]:
        """Scale and reduce one bucket; called by the hook, in bucket order."""
        buffer = bucket.buffer()
        ticket = self.conductor.open(
            "all_reduce",
            f"bucket.{bucket.index()}",
            "backward",
            buffer.numel() * buffer.element_size(),
            self.group,
        )
        op = scaling.apply(bucket, may_fold=ticket.path.name == "nccl")
        if bucket.is_last():
            capturing = torch_api.is_capturing(self.timeline.device)
            self._last = None if capturing else self.timeline.mark(timing=True)
        launch = ticket.decision.launch
        waits = launch is not None and launch in self.board.reachable and launch not in self.board.marks
        if not self._queue and (not waits or bucket.is_last()):
            if waits:
                self.conductor.measure.missed += 1
            return self._issue(_Waiting(ticket, buffer, op), last=bucket.is_last())
        devices = [buffer.device] if buffer.device.type == "cuda" else None
        promise: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        self._queue.append((_Waiting(ticket, buffer, op), promise))
        self._drain(force=bucket.is_last())
        return promise

    def _drain(self, *, force: bool) -> None:
        """Issue waiting buckets, oldest first, up to one whose launch point has not been met."""
        while self._queue:
            bucket, promise = self._queue[0]
            launch = bucket.ticket.decision.launch
            if launch is not None and launch in self.board.reachable and launch not in self.board.marks:
                if not force:
                    return
                self.conductor.measure.missed += 1
            self._queue.popleft()
            _forward(self._issue(bucket, last=force and not self._queue), promise)

    def _issue(self, bucket: _Waiting, *, last: bool) -> torch.futures.Future[torch.Tensor]:
        ticket = bucket.ticket
        launch = ticket.decision.launch
        mark = self.board.marks.get(launch) if launch is not None else None
        if mark is not None and not torch_api.is_capturing(self.timeline.device):
            self.timeline.wait(mark)
        flight = self.conductor.enter(ticket)
        future = ticket.path.all_reduce(bucket.buffer, ticket.group, bucket.op)
        measure, waiter = self.conductor.measure, self._last if last else None

        def done(finished: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            self._ended(flight, measure, waiter)
            return finished.value()

        result = future.then(done)
        if ticket.decision.serialise:
            result.wait()
        return result

    def _ended(self, flight: Flight, measure: StepMeasure, waiter: Any) -> None:
        """Note that the device is done with a bucket where this runs; on CUDA, that it will be there."""
        if torch_api.is_capturing(self.timeline.device):
            self.conductor.watch.leave(flight, None)
            return
        ended = self.timeline.mark(timing=True)
        if waiter is not None:
            measure.stalls.append((waiter, ended))
        on_cpu = self.timeline.device.type == "cpu"
        self.conductor.watch.leave(flight, None if on_cpu else ended)

    def order_hash(self) -> int:
        """Nothing that ranks would have to agree on."""
        return 0

    def prepare(self, exchange: Exchange | None) -> None:
        """Nothing to agree on: buckets are issued in their own order."""

    def end_step(self) -> None:
        """Nothing to complete: buckets are measured as they end."""

    def on_arm(self) -> None:
        """Nothing to switch: decisions are looked up for each bucket."""

    def uninstall(self) -> None:
        """Take the launch hooks off; the communication hook stays as a pass-through of stock's all-reduce."""
        if self.slot is not None:
            self.slot.driver = None
        self.board.remove()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _forward(source: torch.futures.Future[torch.Tensor], promise: torch.futures.Future[torch.Tensor]) -> None:
    """Complete a promise with the value or the error of a future."""

    def settle(done: torch.futures.Future[torch.Tensor]) -> None:
        try:
            value = done.value()
        except RuntimeError as error:
            promise.set_exception(error)  # type: ignore[arg-type]
            return
        promise.set_result(value)

    source.then(settle)
