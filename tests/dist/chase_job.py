"""What the processes of a test world do: follow a carbon series by swapping schedules between steps."""

from __future__ import annotations

import time
from typing import Any

import torch.distributed as dist
from dist_models import OFF, ddp, every_knob, fsdp_schedule, make_net, observe, optimizer_of, shard, train, weights

import kareus
from kareus.plan.policies.chase import ChaseCost, known
from kareus.plan.policies.choose import Point
from kareus.plan.policies.series import Series

STEPS = 6  # of one interval
FAST = Point(label="fast", time_s=1.0, energy_j=300.0)
SLOW = Point(label="slow", time_s=1.2, energy_j=240.0)
GRAMS = (100.0, 900.0, 900.0, 100.0)  # break-even is at 600 with the cost below


def follow(rank: int, world_size: int, *, wrapper: str) -> Any:
    """Rank 0 decides at the start of each interval; all ranks swap where its choice has changed."""

    def make() -> Any:
        return shard(make_net()) if wrapper == "fsdp2" else ddp(make_net())

    fingerprint, keys = observe(make(), rank)
    schedules = {
        "fast": fsdp_schedule(fingerprint, keys) if wrapper == "fsdp2" else every_knob(fingerprint, keys),
        "slow": every_knob(fingerprint, keys, copies=False),
    }
    series = Series(
        start_s=tuple(float(i * STEPS) for i in range(len(GRAMS))), value=GRAMS, interval_s=float(STEPS)
    )
    cost = ChaseCost(max_power_w=300, max_intensity=900, eta=0.6)
    stock = make()
    expected = train(stock, optimizer_of(stock), rank, STEPS * len(GRAMS))

    model = make()
    optimizer = optimizer_of(model)
    session = None
    losses, running, arms, swaps_s = [], [], [], []
    for interval in range(len(GRAMS)):
        choice = [cost.choose([FAST, SLOW], known(series, interval * STEPS)).label if rank == 0 else ""]
        dist.broadcast_object_list(choice)
        if not running or running[-1] != choice[0]:
            began = time.perf_counter()
            if session is not None:
                session.detach()
            session = kareus.attach(model, optimizer, schedule=schedules[choice[0]], guard=OFF)
            swaps_s.append(time.perf_counter() - began)
        running.append(choice[0])
        before = len(session.records)
        losses += train(model, optimizer, rank, STEPS, first=interval * STEPS)
        session.report()
        arms.append([r.arm for r in session.records[before:]])
    reasons = session.report()["reason"]
    session.detach()
    return {
        "equal": losses == expected and weights(model) == weights(stock),
        "running": running,
        "arms": arms,
        "reason": reasons,
        "swaps_s": swaps_s,
    }
