"""Early gathers: the next step's first all-gathers start inside the optimizer.

At the start of a step nothing can run beside the first all-gathers, but the optimizer that came before
has work enough. The first units in forward order are updated first, and each one's gather starts as soon
as its update is done, while the optimizer goes on with the others (`split_step`). Where the step cannot be
split, gathers start when all of it is done, beside whatever comes before the next forward.

A gather reads parameters early, so it is dropped, and done again when needed, where that might be seen:

- before an evaluation, after `load_state_dict`, and after any write that torch counts in a tensor's version,
- when the schedule leaves force, and when the optimizer steps again before anything was used.

Torch counts no writes through `.data` or `torch._foreach_*`. Jobs that write so in every step are found by
comparing values while stock steps are observed, and get no early gathers; a job that does it now and then
must not be given any, which is why a schedule has them only when asked for.

Ranks agree twice a step, by one number over the CPU: that all are at the optimizer (one may skip a step
whose loss is not finite), and that none has seen a write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kareus.runtime import torch_api
from kareus.runtime.exchange import Exchange
from kareus.runtime.split_step import SplitStep
from kareus.runtime.torch_api import FsdpUnit

if TYPE_CHECKING:
    from kareus.runtime.fsdp2 import Fsdp2Driver

Snapshot = list[tuple[torch.Tensor, int, int, int]]


class EarlyGathers:
    """Starts the next step's first all-gathers inside the last optimizer's step.

    Args:
        driver: of the model. count: units, in forward order. exchange: to the other ranks.
        optimizer: the last one of a step. timeout_s: how long to wait for another rank's word.
    """

    def __init__(
        self,
        driver: Fsdp2Driver,
        count: int,
        exchange: Exchange,
        optimizer: torch.optim.Optimizer,
        *,
        timeout_s: float,
    ) -> None:
        self._driver, self._conductor, self._tally = driver, driver.conductor, driver.tally
        self._count, self._exchange, self._timeout_s = count, exchange, timeout_s
        self._optimizer = optimizer
        # The session marks the step's end in a post hook of its own.
        self._split = SplitStep(optimizer, own_pre_hooks=1, own_post_hooks=2)
        self._units: list[FsdpUnit] = []
        self._pending: dict[str, tuple[FsdpUnit, Snapshot]] = {}
        self._waiting: list[FsdpUnit] = []
        self._watched: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._written = self._lost = self._issuing = False
        self._handles: list[Any] = []

    def install(self) -> None:
        """Place the optimizer's hooks, and the units' wrappers where they are known already."""
        for unit in self._units:
            self._guard_use(unit)
        self._handles = [
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(self._after_step),
        ]

    def seen(self) -> tuple[bool, list[str]]:
        """Return whether parameters were written between observed steps, and which units come first."""
        return self._written, [unit.name for unit in self._driver.order[: self._count]]

    def prepare(self, exchange: Exchange | None) -> None:
        """Choose the units from the observed order; all ranks call it, alike in what they saw or not."""
        self._watched.clear()
        written, names = self.seen()
        if exchange is not None:
            seen = exchange.gather([written, names])
            written, names = any(item[0] for item in seen), seen[0][1]
        units = [self._driver.unit_named(name) for name in names]
        if written:
            self._refuse("parameters are written between optimizer.step() and the next forward")
            return
        if any(torch_api.offloads(unit.group) for unit in units):
            self._refuse("shards live in host memory")
            return
        self._units = units
        for unit in units:
            self._guard_use(unit)

    def _refuse(self, why: str) -> None:
        self._tally.add("no_early_gathers", f"{why}; the first all-gathers start as in stock")

    def _guard_use(self, unit: FsdpUnit) -> None:
        """Check what is pending before anything uses it: a forward, or the user's own `unshard()`."""
        original = unit.group.unshard

        def unshard(*args: Any, **kwargs: Any) -> Any:
            self.check()
            return original(*args, **kwargs)

        unit.group.unshard = unshard

    # In the optimizer

    def _before_step(self, _: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._split.abandon()
        self._waiting = []
        self.drop()  # its parameters are about to change
        if not self._units or self._lost or not self._conductor.scheduling:
            return
        if torch_api.is_capturing(self._driver.timeline.device) or torch.compiler.is_compiling():
            return
        if self._agree(True) is not True:
            return
        units = [unit for unit in self._units if not torch_api.is_gathered(unit.group)]
        problem = self._split.problem(arguments, keywords)
        if problem:
            self._tally.add("step_not_split", f"{problem}: early gathers start when all of the step is done")
            self._waiting = units
            return
        for unit in units:
            self._split.update(torch_api.sharded_parameters(unit.group))
            self._issue(unit)

    def _after_step(self, *_: Any) -> None:
        self._split.finish()
        for unit in self._waiting:
            self._issue(unit)
        self._waiting = []
        if self._conductor.arm == "observe":
            self._watched = [
                (tensor, tensor.detach().clone())
                for unit in self._driver.order[: self._count]
                for tensor in map(torch_api.local_tensor, torch_api.sharded_parameters(unit.group))
            ]

    def _issue(self, unit: FsdpUnit) -> None:
        timeline = self._driver.timeline
        if timeline.device.type == "cuda":
            torch_api.gather_after(unit.group, timeline.mark())
        self._issuing = True
        try:
            with self._conductor.for_next_step():
                torch_api.prefetch_unshard(unit.group, "forward")
        finally:
            self._issuing = False
        self._pending[unit.name] = (unit, _snapshot(unit))

    @property
    def issuing(self) -> bool:
        """True while a gather is issued early: its launch point does not count."""
        return self._issuing

    # Before they are used

    def begin_pass(self) -> None:
        """Look at parameters where stock is observed; check what is pending."""
        if self._watched:
            self._written |= any(not torch.equal(now, then) for now, then in self._watched)
            self._watched.clear()
        self.check()

    def check(self) -> None:
        """Drop what is pending where any rank might see that it was gathered early."""
        if self._issuing or not self._pending:
            return
        if self._conductor.evaluating:  # all ranks evaluate together, or stock would hang
            self.drop()
            return
        unwritten = all(_unchanged(unit, before) for unit, before in self._pending.values())
        if self._agree(unwritten) is False:
            self._tally.add("early_gathers_dropped", "parameters were written since optimizer.step()")
            self.drop()
        self._pending.clear()

    def _agree(self, mine: bool) -> bool | None:
        if self._lost:
            return mine
        answer = self._exchange.all_true(mine, self._timeout_s)
        if answer is None:
            self._lost = True
            self._refuse("another rank did not answer at optimizer.step()")
        return answer

    def drop(self) -> bool:
        """Forget gathers that nobody used; return whether there were any."""
        pending, self._pending = self._pending, {}
        for unit, _ in pending.values():
            torch_api.drop_gather(unit.group)
        return bool(pending)

    def uninstall(self) -> None:
        """Take hooks and wrappers off."""
        self.drop()
        for handle in self._handles:
            handle.remove()
        for unit in self._units:
            unit.group.__dict__.pop("unshard", None)
        self._handles = []


def _snapshot(unit: FsdpUnit) -> Snapshot:
    """Return what torch counts of a unit's parameters, and which tensors they are."""
    found: Snapshot = []
    for parameter in torch_api.sharded_parameters(unit.group):
        local = torch_api.local_tensor(parameter)
        found.append((parameter, parameter._version, local._version, local.data_ptr()))
    return found


def _unchanged(unit: FsdpUnit, before: Snapshot) -> bool:
    now = _snapshot(unit)
    return len(now) == len(before) and all(
        a[0] is b[0] and a[1:] == b[1:] for a, b in zip(now, before, strict=True)
    )
