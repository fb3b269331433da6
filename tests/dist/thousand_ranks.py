"""One rank of a job of many on torch's fake process group; prints what Kareus exchanged as one JSON line.

    python thousand_ranks.py RANKS

The peers are played: each answers as rank 0 does, in the shape and number a real group would bring back.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import msgspec
import torch.distributed as dist
from dist_models import OFF, fsdp_schedule, make_net, optimizer_of, shard, train
from torch.testing._internal.distributed.fake_pg import FakeStore

import kareus
from kareus.errors import MismatchError
from kareus.runtime import entry


class Answered:
    """An exchange that is complete."""

    def __init__(self, rows: list[list[float]]) -> None:
        self.rows = rows

    def result(self, timeout_s: float) -> list[list[float]]:
        return self.rows


class EchoExchange:
    """Every peer answers what this rank said; the last one with a problem of its own where asked to."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.calls, self.started, self.sent = ranks, [], 0, 0
        self.odd_rank = False

    def gather(self, value: Any) -> list[Any]:
        self.calls.append("gather")
        data = msgspec.json.encode(value)
        self.sent += len(data)
        answers = [msgspec.json.decode(data) for _ in range(self.ranks)]
        if self.odd_rank and isinstance(answers[-1], dict):
            answers[-1]["problems"] = ["forward_prefetch is 1 here, rank 0 has 2"]
        return answers

    def compare(self, vector: list[float]) -> list[list[float]]:
        self.calls.append("compare")
        self.sent += 8 * len(vector)
        rows = [list(vector) for _ in range(self.ranks)]
        if self.odd_rank:
            rows[-1][0] = 1.0
        return rows

    def broadcast(self, data: bytes) -> bytes:
        self.calls.append("broadcast")
        self.sent += len(data)
        return data

    def start(self, vector: list[float]) -> Answered:
        self.started += 1
        return Answered([list(vector) for _ in range(self.ranks)])


def main() -> None:
    ranks, steps = int(sys.argv[1]), 30
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    model = shard(make_net(dim=32))
    watched = kareus.attach(model, optimizer := optimizer_of(model))
    train(model, optimizer, 0, 4)
    schedule = fsdp_schedule(watched.fingerprint, list(watched.observed), copies=False)
    watched.detach()

    exchange = EchoExchange(ranks)
    entry.make_exchange = lambda device: exchange
    start, cpu = time.perf_counter(), time.process_time()
    session = kareus.attach(model, optimizer, schedule=schedule, guard=OFF)
    attach_s, attach_cpu_s = time.perf_counter() - start, time.process_time() - cpu
    at_attach = list(exchange.calls)
    exchange.calls.clear()
    train(model, optimizer, 0, steps, first=4)
    arms = [r.arm for r in session.records]
    in_steps = list(exchange.calls)
    session.detach()

    other = EchoExchange(ranks)
    other.odd_rank = True
    entry.make_exchange = lambda device: other
    try:
        kareus.attach(model, optimizer, schedule=schedule)
        mismatch = ""
    except MismatchError as error:
        mismatch = str(error)
    print(
        json.dumps(
            {
                "attach_calls": at_attach,
                "attach_s": attach_s,
                "attach_cpu_s": attach_cpu_s,
                "bytes_sent_by_a_rank": exchange.sent,
                "schedule_bytes": len(schedule.to_bytes()),
                "blocking_calls_in_steps": in_steps,
                "started_in_steps": exchange.started,
                "steps": steps,
                "arms": arms,
                "mismatch": mismatch,
            }
        )
    )


if __name__ == "__main__":
    main()
