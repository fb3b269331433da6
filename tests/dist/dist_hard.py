"""The hard cases: what real training loops do to a wrapped model."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
import torch.distributed as dist
from dist_models import (
    OFF,
    Net,
    batch,
    ddp,
    every_knob,
    fsdp_schedule,
    make_net,
    optimizer_of,
    shard,
    weights,
)
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import kareus
from kareus.schedule import CollectiveKey, Decision, LaunchPoint, Schedule

STEPS = 12


class Rewrapped(nn.Module):
    """Checkpoints a whole unit, so that recomputation passes through FSDP's own hooks."""

    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return out


class Job:
    """One training job with the oddities asked for; built twice, run as stock and with a schedule."""

    def __init__(self, rank: int, *, wrapper: str, oddity: str, wrap: dict[str, Any]) -> None:
        self.rank, self.wrapper, self.oddity = rank, wrapper, oddity
        net = make_net(recompute={"ac": "yes", "ac reentrant": "reentrant"}.get(oddity, ""))
        self.net = net
        if oddity == "frozen":
            for parameter in net.blocks[0].parameters():
                parameter.requires_grad_(False)
        if oddity == "half":
            net.half()
        if wrapper == "ddp":
            if oddity == "compiled":
                net.blocks[1] = torch.compile(net.blocks[1], backend="eager")  # type: ignore[assignment]
            self.model: Any = ddp(net, **wrap)
        else:
            self.model = self._shard(net, wrap)
        self.optimizer = self._optimizer()

    def _shard(self, net: Net, wrap: dict[str, Any]) -> Net:
        if self.oddity in ("ac unit", "ac unit reentrant"):
            for index, block in enumerate(net.blocks):
                fully_shard(block, **wrap)
                net.blocks[index] = Rewrapped(block, self.oddity.endswith("reentrant"))  # type: ignore[assignment]
            fully_shard(net, **wrap)
            return net
        if self.oddity == "compiled":
            net.blocks[1].compile(backend="eager")
            net.blocks[2] = torch.compile(net.blocks[2], backend="eager")  # type: ignore[assignment]
        if self.oddity == "grouped":
            fully_shard([net.embed, net.head], **wrap)
        shard(net, **wrap)
        if self.oddity == "user prefetch":
            blocks: Any = list(net.blocks)
            blocks[0].set_modules_to_forward_prefetch([blocks[1], blocks[2]])
            blocks[2].set_modules_to_backward_prefetch([blocks[1], blocks[0]])
        return net

    def _optimizer(self) -> torch.optim.Optimizer:
        if self.oddity == "half":
            return torch.optim.SGD(self.model.parameters(), lr=1e-2)
        return optimizer_of(self.model)

    def step(self, step: int) -> str:
        if self.oddity == "skipped module":
            self.net.skip = 1 if step in (4, 9) else -1
        if self.oddity == "unused":
            self.net.skip = 1 if (step + self.rank) % 3 == 0 else -1
        if self.oddity == "evaluation" and step % 4 == 3:
            self.model.eval()
            with torch.no_grad():
                self.model(batch(self.rank, 500 + step))
            self.model.train()
        if self.oddity == "exception" and step == 7:
            self._fail_once()
        if self.oddity == "checkpoint" and step == 6:
            state = {k: v.clone() for k, v in self.model.state_dict().items()}
            self.model.load_state_dict(state)
            self.optimizer.load_state_dict(self.optimizer.state_dict())
        self.optimizer.zero_grad(set_to_none=self.oddity not in ("half", "kept"))
        loss = self._passes(step)
        self.optimizer.step()
        return float(loss.detach()).hex()

    def _passes(self, step: int) -> torch.Tensor:
        if self.oddity not in ("accumulate", "accumulate no sync"):
            rows = 3 if self.oddity == "uneven" and step == STEPS - 1 and self.rank == 0 else 4
            return self._one(batch(self.rank, step, rows))
        losses = []
        for micro in range(3):
            silent = micro < 2 and self.oddity == "accumulate no sync"
            quiet: Any = contextlib.nullcontext()
            if silent and self.wrapper == "ddp":
                quiet = self.model.no_sync()
            if self.wrapper == "fsdp2":
                self.model.set_requires_gradient_sync(not silent)
            with quiet:
                losses.append(self._one(batch(self.rank, 10 * step + micro)))
        return torch.stack(losses).sum()

    def _one(self, x: torch.Tensor) -> torch.Tensor:
        if self.oddity == "half":
            x = x.half()
        if self.oddity.endswith("reentrant"):
            x.requires_grad_(True)
        loss: torch.Tensor = self.model(x).float().pow(2).mean()
        loss.backward()
        return loss.detach()

    def _fail_once(self) -> None:
        """An exception in the middle of forward, on all ranks, after which training goes on."""
        if self.wrapper == "fsdp2" and not hasattr(self.model, "reset_iter_state"):
            return  # torch before 2.13 cannot go on from there by itself; the test is skipped

        def boom(*_: Any) -> None:
            raise ValueError("as a bad batch does")

        handle = self.net.blocks[2].register_forward_pre_hook(boom)
        with contextlib.suppress(ValueError):
            self.model(batch(self.rank, 7))
        handle.remove()
        if self.wrapper == "fsdp2":
            self.model.reset_iter_state()

    def train(self, steps: int = STEPS) -> list[str]:
        return [self.step(step) for step in range(steps)]


def hard(
    rank: int, world_size: int, *, wrapper: str, oddity: str, wrap: dict[str, Any] | None = None,
    copies: bool = True,
) -> Any:  # fmt: skip
    """Train as stock and with every knob changed."""
    arguments: dict[str, Any] = {"wrapper": wrapper, "oddity": oddity, "wrap": wrap or {}}
    stock = Job(rank, **arguments)  # never attached to: what torch does by itself
    expected = stock.train()
    watched = Job(rank, **arguments)
    watcher = kareus.attach(watched.model, watched.optimizer)
    watched.train(4)
    keys = list(watcher.observed)
    counts = [r.num_collectives for r in watcher.records]
    watcher.detach()
    make = fsdp_schedule if wrapper == "fsdp2" else every_knob
    assert watcher.fingerprint is not None
    schedule = make(watcher.fingerprint, keys, copies=copies)
    job = Job(rank, **arguments)
    session = kareus.attach(job.model, job.optimizer, schedule=schedule, guard=OFF)
    losses = job.train()
    report = session.report()
    session.detach()
    return {
        "equal": losses == expected and weights(job.model) == weights(stock.model),
        "losses": [losses, expected],
        "arms": [r.arm for r in session.records],
        "counts": [counts, [r.num_collectives for r in session.records]],
        "hashes": [r.issue_hash for r in session.records],
        "issued": [str(key) for key in session.issued],
        "report": report,
    }


def two_models(rank: int, world_size: int) -> Any:
    """Two wrapped models in one loop, each with its own session."""

    def run(schedules: list[Any] | None, steps: int = 8) -> Any:
        jobs = [Job(rank, wrapper=wrapper, oddity="", wrap={}) for wrapper in ("fsdp2", "ddp")]
        sessions = [
            kareus.attach(j.model, j.optimizer, schedule=s, guard=OFF)
            for j, s in zip(jobs, schedules or [], strict=False)
        ]
        losses = [[job.step(step) for job in jobs] for step in range(steps)]
        made = [
            (fsdp_schedule if j.wrapper == "fsdp2" else every_knob)(s.fingerprint, list(s.observed))
            for j, s in zip(jobs, sessions, strict=False)
        ]
        arms = [[r.arm for r in s.records] for s in sessions]
        for session in sessions:
            session.detach()
        return losses, [weights(j.model) for j in jobs], made, arms

    losses, bits, _, _ = run(None)
    _, _, schedules, _ = run([None, None], steps=4)
    again, bits_again, _, arms = run(schedules)
    return {
        "equal": losses == again and bits == bits_again,
        "scheduled": [a.count("scheduled") for a in arms],
    }


def restart(rank: int, world_size: int, *, port: int) -> Any:
    """Destroy all groups, form the world anew, attach again."""
    first = hard(rank, world_size, wrapper="fsdp2", oddity="")
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo")
    second = hard(rank, world_size, wrapper="fsdp2", oddity="")
    return {"equal": first["equal"] and second["equal"], "losses": [first["losses"][0], second["losses"][0]]}


def detached(rank: int, world_size: int, *, wrapper: str) -> Any:
    """After detach a model trains as one that was never attached, and holds nothing of ours."""
    stock = Job(rank, wrapper=wrapper, oddity="", wrap={})
    expected = stock.train() + stock.train()
    job = Job(rank, wrapper=wrapper, oddity="", wrap={})
    session = kareus.attach(job.model, job.optimizer)
    keys, fingerprint = [], session.fingerprint
    losses = job.train()
    keys = list(session.observed)
    session.detach()
    schedule = (fsdp_schedule if wrapper == "fsdp2" else every_knob)(fingerprint, keys)
    if wrapper == "fsdp2":
        session = kareus.attach(job.model, job.optimizer, schedule=schedule, guard=OFF)
        losses = losses[:0]
        job = Job(rank, wrapper=wrapper, oddity="", wrap={})
        session.detach()
        session = kareus.attach(job.model, job.optimizer, schedule=schedule, guard=OFF)
        losses = job.train()
        session.detach()
    left = sum(
        name in vars(group)
        for unit in (session.job.units if session.job is not None else ())
        for group in [unit.group]
        for name in ("pre_forward", "post_forward", "pre_backward", "post_backward", "_prefetch_unshard")
    )
    hooks = sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in job.net.modules()) - sum(
        len(m._forward_pre_hooks) + len(m._forward_hooks) for m in stock.net.modules()
    )
    losses += job.train()
    return {
        "equal": losses == expected and weights(job.model) == weights(stock.model),
        "left": left,
        "hooks": hooks,
        "active": session.active,
    }


def bypassed_point(rank: int, world_size: int) -> Any:
    """Rank 1 alone never calls the module a launch point is on; the issue order must not notice."""
    expected = Job(rank, wrapper="fsdp2", oddity="", wrap={}).train()
    job = Job(rank, wrapper="fsdp2", oddity="", wrap={})
    session = kareus.attach(job.model, job.optimizer)
    job.train(4)
    schedule = fsdp_schedule(session.fingerprint, list(session.observed))
    session.detach()
    job = Job(rank, wrapper="fsdp2", oddity="", wrap={})
    session = kareus.attach(job.model, job.optimizer, schedule=schedule, guard=OFF)
    losses = []
    for step in range(STEPS):
        if rank == 1 and step == 6:
            for block in job.net.blocks:
                block.inner = _without_hooks.__get__(block)  # type: ignore[method-assign]
        losses.append(job.step(step))
    session.detach()
    return {
        "equal": losses == expected,
        "hashes": [r.issue_hash for r in session.records],
        "missed": [r.missed for r in session.records],
    }


def _without_hooks(block: Any, x: torch.Tensor) -> torch.Tensor:
    x = x + block.attention(block.norm(x))
    out = x
    for layer in block.mlp:
        out = layer.forward(out)
    return x + out


def launch_order(rank: int, world_size: int) -> Any:
    """Only launch points: the order in which collectives are issued is what they say."""

    def gather(unit: str, phase: str, module: str, where: str, side: str) -> Decision:
        return Decision(
            collective=CollectiveKey(kind="all_gather", unit=unit, phase=phase),  # type: ignore[arg-type]
            launch=LaunchPoint(module=module, phase=where, side=side),  # type: ignore[arg-type]
        )

    expected = Job(rank, wrapper="fsdp2", oddity="", wrap={}).train()
    watched = Job(rank, wrapper="fsdp2", oddity="", wrap={})
    session = kareus.attach(watched.model, watched.optimizer)
    watched.train(4)
    observed = [str(key) for key in session.observed]
    fingerprint = session.fingerprint
    session.detach()
    assert fingerprint is not None
    schedule = Schedule(
        fingerprint=fingerprint,
        decisions=(
            gather("blocks.2", "forward", "blocks.0.attention", "forward", "before"),
            gather("blocks.1", "forward", "blocks.0.mlp", "forward", "before"),
            gather("blocks.0", "backward", "blocks.2.mlp", "backward", "after"),
            gather("blocks.1", "backward", "blocks.1", "backward", "before"),
            Decision(
                collective=CollectiveKey(kind="reduce_scatter", unit="blocks.2", phase="backward"),
                launch=LaunchPoint(module="blocks.1.mlp", phase="backward", side="after"),
            ),
        ),
    )
    job = Job(rank, wrapper="fsdp2", oddity="", wrap={})
    session = kareus.attach(job.model, job.optimizer, schedule=schedule, guard=OFF)
    losses = job.train()
    issued = [str(key) for key in session.issued]
    missed = sum(r.missed for r in session.records)
    session.detach()
    return {"equal": losses == expected, "observed": observed, "issued": issued, "missed": missed}
