"""Early gathers: started inside the optimizer, dropped where somebody could see that."""

from __future__ import annotations

from typing import Any

import torch
from dist_models import OFF, batch, make_net, observe, optimizer_of, shard, weights

import kareus
from kareus.runtime.paths import GroupPath
from kareus.schedule import Path, Schedule

STEPS = 10


class PlainAdamW(torch.optim.AdamW):
    """A user's own subclass: what it does in a step is not known."""


class Script:
    """One training loop with something done between its steps."""

    def __init__(self, rank: int, oddity: str) -> None:
        self.rank, self.oddity = rank, oddity
        self.model: Any = shard(make_net())
        kinds = {"subclass": PlainAdamW, "momentum": torch.optim.SGD}
        keywords: dict[str, Any] = {"momentum": 0.9} if oddity == "momentum" else {}
        if oddity == "two optimizers":
            parameters = list(self.model.parameters())
            self.optimizers = [
                torch.optim.AdamW(parameters[:5], lr=1e-2),
                torch.optim.SGD(parameters[5:], lr=1e-2),
            ]
        else:
            make = kinds.get(oddity, torch.optim.AdamW)
            self.optimizers = [make(self.model.parameters(), lr=1e-2, **keywords)]
        self.hook_saw: list[bool] = []
        if oddity == "hook":
            self.optimizers[0].register_step_post_hook(
                lambda *_: self.hook_saw.append(all(p.grad is not None for p in self.model.parameters()))
            )

    def step(self, step: int) -> str:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = self.model(batch(self.rank, step)).pow(2).mean()
        loss.backward()
        if not (self.oddity == "skipped on one rank" and step == 6 and self.rank == 1):
            for optimizer in self.optimizers:
                optimizer.step()
        self._between(step)
        return float(loss.detach()).hex()

    def _between(self, step: int) -> None:
        first = self.model.blocks[0].norm.weight
        with torch.no_grad():
            if self.oddity == "written on one rank" and step == 6 and self.rank == 1:
                first.add_(0.125)
            if self.oddity == "written always":
                first.data.mul_(0.999)
            if self.oddity == "loaded" and step == 6:
                state = {k: v * 1.125 for k, v in self.model.state_dict().items()}
                self.model.load_state_dict(state)
            if self.oddity == "evaluated" and step == 6:
                self.model(batch(self.rank, 99))
        if self.oddity == "failed" and step == 6:
            self._fail()

    def _fail(self) -> None:
        """A step whose optimizer raises half way, on all ranks, after which training goes on."""
        self.model(batch(self.rank, 98)).pow(2).mean().backward()
        rate = self.optimizers[0].param_groups[0]["lr"]
        self.optimizers[0].param_groups[0]["lr"] = "fast"
        try:
            self.optimizers[0].step()
        except TypeError:
            pass
        else:
            raise AssertionError("the optimizer took a learning rate that is no number")
        self.optimizers[0].param_groups[0]["lr"] = rate


class WhenGathered(GroupPath):
    """Notes, at each gather, which of the model's units the optimizer has updated since the last look."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.before = weights(model)
        self.inside = False
        self.seen: list[list[str]] = []

    def all_gather(self, output: Any, tensor: Any, group: Any, async_op: bool) -> Any:
        if self.inside:
            names = [name for name, _ in self._model.named_parameters()]
            now = weights(self._model)
            changed = {
                "rest"
                if name.startswith(("blocks.1", "blocks.2"))
                else "first block"
                if name.startswith("blocks.0")
                else "root"
                for name, old, new in zip(names, self.before, now, strict=True)
                if old != new
            }
            self.seen.append(sorted(changed))
        return super().all_gather(output, tensor, group, async_op)


def early(rank: int, world_size: int, *, oddity: str, answer_within_s: float | None = None) -> Any:
    """Train as stock and with early gathers; return what both gave and what was seen."""
    fingerprint, _ = observe(shard(make_net()), rank)
    stock = Script(rank, oddity)
    expected = [stock.step(step) for step in range(STEPS)]
    script = Script(rank, oddity)
    schedule = Schedule(fingerprint=fingerprint, early_gathers=2)
    session: Any = kareus.attach(script.model, script.optimizers, schedule=schedule, guard=OFF)
    if answer_within_s is not None:
        session.driver.early._timeout_s = answer_within_s
    losses = [script.step(step) for step in range(STEPS)]
    pending = len(session.driver.early._pending)
    report = session.report()
    session.detach()
    return {
        "equal": losses == expected and weights(script.model) == weights(stock.model),
        "counts": report["counts"],
        "pending": pending,
        "hook_saw": [stock.hook_saw, script.hook_saw],
        "arms": [r.arm for r in session.records],
        "collectives": [r.num_collectives for r in session.records],
        "clean": not any("unshard" in vars(unit.group) for unit in session.job.units),
        "hooks": [len(o._optimizer_step_pre_hooks) for o in script.optimizers],
        "gradients": all(p.grad is not None for p in script.model.parameters()),
    }


def order(rank: int, world_size: int, *, oddity: str = "") -> Any:
    """Return what the optimizer had updated when each early gather was issued, in one scheduled step."""
    fingerprint, _ = observe(shard(make_net()), rank)
    script = Script(rank, oddity)
    schedule = Schedule(fingerprint=fingerprint, early_gathers=2)
    session: Any = kareus.attach(script.model, script.optimizers, schedule=schedule, guard=OFF)
    path = session.conductor.paths[Path.NCCL] = WhenGathered(script.model)
    for step in range(5):
        script.step(step)
    optimizer = script.optimizers[0]
    optimizer.zero_grad()
    script.model(batch(rank, 5)).pow(2).mean().backward()
    path.before, path.inside = weights(script.model), True
    optimizer.step()
    path.inside = False
    session.detach()
    return {"state": session.records[-1].arm, "seen": path.seen}
