"""Long runs with faults injected, and schedules that are bad on purpose."""

from __future__ import annotations

import contextlib
import random
import time
from typing import Any

import torch
import torch.distributed as dist
from dist_hard import _without_hooks
from dist_models import (
    OFF,
    batch,
    ddp,
    every_knob,
    fsdp_schedule,
    make_net,
    observe,
    optimizer_of,
    shard,
    weights,
)

import kareus
from kareus.runtime.guard import GuardSettings
from kareus.runtime.paths import GroupPath, PeerCopyPath
from kareus.schedule import CollectiveKey, Decision, Path, Schedule

SWAP_EVERY = 60


def _loop(rank: int, steps: int, wrapper: str, schedules: list[Any]) -> dict[str, Any]:
    """Train with faults; attach to the next schedule every SWAP_EVERY steps (none: never attached)."""
    shared = random.Random(11)  # faults that all ranks share
    alone = random.Random(100 + rank)  # surprises of this rank only
    net = make_net(blocks=3)
    model: Any = shard(net) if wrapper == "fsdp2" else ddp(net)
    plain = net.blocks[1].inner
    optimizer = optimizer_of(model)
    session: Any = None
    losses, arms, counts = [], [], {}
    for step in range(steps):
        if schedules and step % SWAP_EVERY == 0:
            if session is not None:
                arms += [r.arm for r in session.records]
                counts = {**counts, **session.tally.counts}
                session.detach()
            schedule = schedules[step // SWAP_EVERY % len(schedules)]
            session = kareus.attach(model, optimizer, schedule=schedule, guard=OFF)
        fault = shared.random()
        surprise = alone.random()
        net.skip = 2 if wrapper == "fsdp2" and fault < 0.05 else -1
        if 0.05 <= fault < 0.08:
            model.eval()
            with torch.no_grad():
                model(batch(rank, 9000 + step))
            model.train()
        if 0.08 <= fault < 0.11:
            _raise_in_forward(net, model, rank, wrapper)
        elif surprise < 0.05 and wrapper == "ddp":
            _raise_in_forward(net, model, rank, wrapper)  # this rank alone: a bad batch, retried
        # This rank alone goes around the module that a launch point is on.
        bypass = surprise > 0.93
        net.blocks[1].inner = _without_hooks.__get__(net.blocks[1]) if bypass else plain  # type: ignore[method-assign]
        if 0.97 < surprise < 0.975 and schedules:
            session.pilot.leave("surprised alone")
        micro = 2 if 0.11 <= fault < 0.2 else 1
        optimizer.zero_grad()
        total = []
        for index in range(micro):
            silent = index < micro - 1 and fault < 0.16
            if wrapper == "fsdp2":
                model.set_requires_gradient_sync(not silent)
            quiet: Any = model.no_sync() if silent and wrapper == "ddp" else contextlib.nullcontext()
            with quiet:
                loss = model(batch(rank, 10 * step + index)).pow(2).mean()
                loss.backward()
            total.append(float(loss.detach()).hex())
        optimizer.step()
        losses.append(" ".join(total))
    if session is not None:
        arms += [r.arm for r in session.records]
        counts = {**counts, **session.tally.counts}
        session.detach()
    return {
        "losses": losses, "weights": weights(model), "arms": arms, "counts": counts,
    }  # fmt: skip


def _raise_in_forward(net: Any, model: Any, rank: int, wrapper: str) -> None:
    if wrapper == "fsdp2" and not hasattr(model, "reset_iter_state"):
        return  # torch before 2.13 cannot go on from there by itself

    def boom(*_: Any) -> None:
        raise ValueError("as a bad batch does")

    handle = net.blocks[2].register_forward_pre_hook(boom)
    with contextlib.suppress(ValueError):
        model(batch(rank, 7))
    handle.remove()
    if wrapper == "fsdp2":
        model.reset_iter_state()


def faults(rank: int, world_size: int, *, wrapper: str, steps: int) -> Any:
    """Run with faults as stock and with schedules swapped while training."""
    start = time.monotonic()
    stock = _loop(rank, steps, wrapper, [])
    stock_s = time.monotonic() - start
    net = make_net(blocks=3)
    fingerprint, keys = observe(shard(net) if wrapper == "fsdp2" else ddp(net), rank)
    make = fsdp_schedule if wrapper == "fsdp2" else every_knob
    schedules = [make(fingerprint, keys), make(fingerprint, keys[: len(keys) // 2], forward_prefetch=1)]
    found = _loop(rank, steps, wrapper, schedules)
    return {
        "equal": found["losses"] == stock["losses"] and found["weights"] == stock["weights"],
        "first_difference": next(
            (i for i, (a, b) in enumerate(zip(found["losses"], stock["losses"], strict=True)) if a != b), None
        ),
        "scheduled": found["arms"].count("scheduled"),
        "counts": found["counts"],
        "seconds": [stock_s, time.monotonic() - start - stock_s],
    }


class SlowPath:
    """Takes `seconds` longer for some collectives: a machine on which a choice is bad."""

    def __init__(self, inner: Any, seconds: float, slow: Any) -> None:
        self.inner, self.seconds, self.slow, self.name = inner, seconds, slow, inner.name

    def supports(self, *arguments: Any) -> bool:
        return bool(self.inner.supports(*arguments))

    def _wait(self, group: dist.ProcessGroup) -> None:
        if self.slow(group):
            time.sleep(self.seconds)

    def all_gather(self, output: Any, tensor: Any, group: Any, async_op: bool) -> Any:
        self._wait(group)
        return self.inner.all_gather(output, tensor, group, async_op)

    def reduce_scatter(self, output: Any, tensor: Any, group: Any, op: Any, async_op: bool) -> Any:
        self._wait(group)
        return self.inner.reduce_scatter(output, tensor, group, op, async_op)

    def all_reduce(self, tensor: Any, group: Any, op: Any) -> Any:
        self._wait(group)
        return self.inner.all_reduce(tensor, group, op)


class SlowCompute:
    """Compute that is slow while the schedule is in force: too few SMs left for it, or too low a clock."""

    def __init__(self, model: Any, seconds: float) -> None:
        self.model, self.seconds, self.handle = model, seconds, None

    def on_arm(self, *, scheduled: bool) -> None:
        self.finish()
        if scheduled:
            self.handle = self.model.register_forward_pre_hook(lambda *_: time.sleep(self.seconds))

    def finish(self) -> None:
        if self.handle is not None:
            self.handle.remove()
        self.handle = None


def bad_schedule(rank: int, world_size: int, *, wrapper: str, kind: str, knob: str, steps: int = 50) -> Any:
    """Replay a schedule whose choice is slow on this machine, under the guard's default settings."""

    def make() -> Any:
        return shard(make_net()) if wrapper == "fsdp2" else ddp(make_net())

    def train(model: Any, optimizer: Any) -> list[str]:
        losses = []
        for step in range(steps):
            optimizer.zero_grad()
            loss = model(batch(rank, step)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()).hex())
        return losses

    stock = make()
    expected = train(stock, optimizer_of(stock))
    fingerprint, observed = observe(make(), rank)
    keys: list[CollectiveKey] = [k for k in observed if k.kind == kind]
    choices: dict[str, dict[str, Any]] = {"path": {"path": Path.COPY_ENGINE}, "budget": {"num_ctas": 1}}
    margin = 64 if knob == "compute" else None
    schedule = Schedule(
        fingerprint=fingerprint,
        decisions=tuple(Decision(collective=k, **choices.get(knob, {})) for k in keys),
        compute_sm_margin=margin,
    )
    model = make()
    optimizer = optimizer_of(model)
    session = kareus.attach(model, optimizer, schedule=schedule, guard=GuardSettings())
    conductor: Any = session.conductor
    rungs = set(conductor.ladder.groups.values())
    slow = 0.03  # well above what a busy machine adds
    if knob == "compute":
        session.switch(SlowCompute(model, 2 * slow))
    for path, inner in list(conductor.paths.items()):
        assert isinstance(inner, GroupPath | PeerCopyPath)
        if path is Path.COPY_ENGINE:
            conductor.paths[path] = SlowPath(inner, slow, lambda _: True)
        else:
            conductor.paths[path] = SlowPath(inner, slow, lambda group: group in rungs)
    losses = train(model, optimizer)
    report = session.report()
    arms = [r.arm for r in session.records]
    session.detach()
    return {
        "equal": losses == expected and weights(model) == weights(stock),
        "scheduled": arms.count("scheduled"),
        "last": arms[-5:],
        "guard": report["guard"],
        "reason": report["reason"],
    }


def good_schedule(rank: int, world_size: int, *, steps: int = 60) -> Any:
    """A schedule that is faster on this machine stays in force once the guard has seen it."""
    model: Any = ddp(make_net())
    optimizer = optimizer_of(model)
    session = kareus.attach(model, optimizer)
    for step in range(5):
        optimizer.zero_grad()
        model(batch(rank, step)).pow(2).mean().backward()
        optimizer.step()
    keys, fingerprint = list(session.observed), session.fingerprint
    session.detach()
    assert fingerprint is not None
    schedule = Schedule(
        fingerprint=fingerprint, decisions=tuple(Decision(collective=k, num_ctas=4) for k in keys)
    )
    session = kareus.attach(model, optimizer, schedule=schedule, guard=GuardSettings())
    conductor: Any = session.conductor
    rungs = set(conductor.ladder.groups.values())
    conductor.paths[Path.NCCL] = SlowPath(GroupPath(), 0.015, lambda group: group not in rungs)
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(rank, step)).pow(2).mean().backward()
        optimizer.step()
    state, report = session.state, session.report()
    session.detach()
    return {"state": state, "guard": report["guard"]}
