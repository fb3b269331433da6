"""DistributedDataParallel: every bucket's all-reduce goes through one communication hook.

Torch divides gradients by the world size while it copies them into a bucket, but not where a hook is
registered. The hook does it in the same place and in the same way, so that losses keep their bits:
multiplied by the reciprocal when copied in, divided where a gradient already was a view of the bucket.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from kareus.errors import UsageError
from kareus.runtime import torch_api
from kareus.runtime.agreement import Exchange
from kareus.runtime.conductor import Conductor, Ticket
from kareus.runtime.fingerprint import Job
from kareus.runtime.launch import LaunchBoard
from kareus.schedule import Schedule

KINDS = ("all_reduce",)


def ddp_kwargs(schedule: str | Schedule | None = None) -> dict[str, Any]:
    """Return the arguments of `DistributedDataParallel` that a schedule fixes at construction.

    Use as `DDP(model, **kareus.ddp_kwargs("schedule.json"))`. Without a schedule, and for values this
    torch does not know, nothing is set.

    Args:
        schedule: a schedule or its file; None reads KAREUS_SCHEDULE, and without that returns nothing.

    Raises:
        InputError: a file that cannot be read or is no schedule.
    """
    if torch_api.environment("KAREUS_DISABLE") == "1":
        return {}
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
        self._addresses: dict[int, int] = {}
        self._handles: list[Any] = []
        if not self._power_of_two and model.gradient_as_bucket_view:
            for parameter in torch_api.ddp_parameters(model):
                hook: Any = parameter.register_post_accumulate_grad_hook
                self._handles.append(hook(self._note))

    def _note(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._addresses[id(parameter)] = parameter.grad.data_ptr()

    def apply(self, bucket: Any) -> None:
        """Scale the bucket's buffer in place."""
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

    def remove(self) -> None:
        """Take the gradient hooks off; until DDP itself goes, `apply` then treats all as copied in."""
        for handle in self._handles:
            handle.remove()


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
        existing = torch_api.ddp_hook_name(self.model)
        if existing:
            raise UsageError(
                f"this DDP model already has the communication hook {existing!r}, which decides how "
                "gradients travel; attach Kareus to a model without one, or train it without Kareus"
            )
        self.group: dist.ProcessGroup = self.model.process_group
        self.scaling = GradientScaling(self.model, dist.get_world_size(self.group))
        self.board = LaunchBoard(
            job.named_root,
            self.timeline,
            active=lambda: conductor.scheduling and not torch_api.is_capturing(self.timeline.device),
            tally=self.tally,
            on_met=lambda _: self._drain(force=False),
        )
        self._queue: deque[tuple[Ticket, torch.Tensor, torch.futures.Future[torch.Tensor]]] = deque()
        self._last: Any = None
        self._handles: list[Any] = []

    def group_tuples(self) -> list[tuple[int, ...]]:
        """Return the rank tuple of the model's group."""
        return [torch_api.group_ranks(self.group)]

    def install(self) -> None:
        """Register the communication hook (torch cannot take it off again) and the launch hooks."""

        def kareus_hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP checks annotations by identity
            return self._hook(bucket)

        self.model.register_comm_hook(None, kareus_hook)
        self.board.install(self.conductor.launch_points())
        self._handles.append(self.model.register_forward_pre_hook(lambda *_: self._begin_pass()))

    def points_elsewhere(self) -> set[str]:
        """Return the modules whose points are not hooked: none."""
        return set()

    def _begin_pass(self) -> None:
        if self._queue:
            self.tally.add("buckets_dropped", "a backward pass ended early; its waiting buckets were dropped")
            self._queue.clear()
        self.conductor.evaluating = not (self.model.training and torch.is_grad_enabled())
        self.board.begin_pass()

    def _hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        self.scaling.apply(bucket)
        buffer = bucket.buffer()
        ticket = self.conductor.open(
            "all_reduce",
            f"bucket.{bucket.index()}",
            "backward",
            buffer.numel() * buffer.element_size(),
            self.group,
        )
        if bucket.is_last():
            self._last = self.timeline.mark(timing=self.conductor.sampling)
        launch = ticket.decision.launch
        waits = launch is not None and launch in self.board.reachable and launch not in self.board.marks
        if not self._queue and (not waits or bucket.is_last()):
            if waits:
                self.conductor.measure.missed += 1
            return self._issue(ticket, buffer, last=bucket.is_last())
        devices = [buffer.device] if buffer.device.type == "cuda" else None
        promise: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        self._queue.append((ticket, buffer, promise))
        self._drain(force=bucket.is_last())
        return promise

    def _drain(self, *, force: bool) -> None:
        """Issue waiting buckets, oldest first, up to one whose launch point has not been met."""
        while self._queue:
            ticket, buffer, promise = self._queue[0]
            launch = ticket.decision.launch
            if launch is not None and launch in self.board.reachable and launch not in self.board.marks:
                if not force:
                    return
                self.conductor.measure.missed += 1
            self._queue.popleft()
            _forward(self._issue(ticket, buffer, last=force and not self._queue), promise)

    def _issue(
        self, ticket: Ticket, buffer: torch.Tensor, *, last: bool
    ) -> torch.futures.Future[torch.Tensor]:
        launch = ticket.decision.launch
        mark = self.board.marks.get(launch) if launch is not None else None
        if mark is not None and not torch_api.is_capturing(self.timeline.device):
            self.timeline.wait(mark)
        token = self.conductor.watch.enter(ticket.key)
        future = ticket.path.all_reduce(buffer, ticket.group)
        measure, waiter = self.conductor.measure, self._last if last else None
        sampling = self.conductor.sampling

        def done(finished: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            on_cpu = self.timeline.device.type == "cpu"
            self.conductor.watch.leave(token, None if on_cpu else self.timeline.mark())
            if waiter is not None and sampling:
                measure.stalls.append((waiter, self.timeline.mark(timing=True)))
            return finished.value()

        result = future.then(done)
        if ticket.decision.serialise:
            result.wait()
        return result

    def prepare(self, exchange: Exchange) -> None:
        """Nothing to agree on: buckets are issued in their own order."""

    def on_arm(self) -> None:
        """Nothing to switch: decisions are looked up for each bucket."""

    def uninstall(self) -> None:
        """Take the launch hooks off; the communication hook stays as a pass-through of stock's all-reduce."""
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
