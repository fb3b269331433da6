"""One host's part of bench_shaped_link.py, started by torchrun."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path as File
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import kareus
from kareus.collect.options import CollectOptions
from kareus.schedule import Decision, Schedule

OBSERVED = 5  # steps until a schedule is in force


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Linear(dim, 4 * dim)
        self.up = nn.Linear(4 * dim, dim)
        self.tail = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.up(torch.relu(self.mix(self.norm(x))))
        return x + self.down(torch.relu(self.tail(x)))


class Net(nn.Module):
    def __init__(self, dim: int, blocks: int) -> None:
        super().__init__()
        self.embed = nn.Linear(dim, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(blocks))
        self.head = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Bench:
    """Builds the job in both arms and times blocks of it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rank = dist.get_rank()

    def net(self) -> Net:
        torch.manual_seed(3)
        return Net(self.args.dim, self.args.blocks)

    def build(self, schedule: Schedule | None = None) -> tuple[Any, torch.optim.Optimizer]:
        net = self.net()
        model: Any = net
        if self.args.wrapper == "fsdp2":
            for block in net.blocks:
                fully_shard(block)
            fully_shard(net)
        else:
            model = DistributedDataParallel(net, **kareus.ddp_kwargs(schedule))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def steps(self, model: Any, optimizer: Any, count: int, first: int = 0) -> list[str]:
        losses = []
        for step in range(first, first + count):
            generator = torch.Generator().manual_seed(2 * step + self.rank)
            x = torch.randn(self.args.rows, self.args.dim, generator=generator)
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()).hex())
        return losses

    def timed_ms(self, model: Any, optimizer: Any, count: int) -> float:
        """Return the slowest rank's mean step time."""
        dist.barrier()
        start = time.perf_counter()
        self.steps(model, optimizer, count)
        mine = torch.tensor([(time.perf_counter() - start) / count * 1e3])
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        return float(mine)

    def observe(self) -> tuple[tuple[Any, ...], Any]:
        """Return the collectives of a stock step and the job's fingerprint."""
        model, optimizer = self.build()
        probe = kareus.attach(model, optimizer)
        self.steps(model, optimizer, OBSERVED)
        probe.detach()
        return probe.observed, probe.fingerprint

    def collect(self) -> None:
        """Record a window of stock steps into the directory that KAREUS_COLLECT names."""
        model, optimizer = self.build()
        session = kareus.attach(model, optimizer)
        self.steps(model, optimizer, CollectOptions().steps_needed + 1)
        session.detach()

    def communication_ms(self, keys: tuple[Any, ...], fingerprint: Any) -> float:
        """Return how long the collectives of one stock step take with nothing beside them."""
        sizes = {unit.name: unit.numel for unit in fingerprint.units}
        total = sum(sizes.values())
        buckets = [k for k in keys if k.kind == "all_reduce"]
        found = []
        for _ in range(3):
            dist.barrier()
            start = time.perf_counter()
            for key in keys:
                if key.kind == "all_reduce":
                    dist.all_reduce(torch.zeros(total // len(buckets)))
                    continue
                part = torch.zeros(-(-sizes[key.unit] // dist.get_world_size()))  # padded as FSDP2 pads
                whole = torch.zeros(len(part) * dist.get_world_size())
                if key.kind == "all_gather":
                    dist.all_gather_into_tensor(whole, part)
                else:
                    dist.reduce_scatter_tensor(part, whole)
            found.append((time.perf_counter() - start) * 1e3)
        return sorted(found)[1]

    def candidates(self, fingerprint: Any, keys: tuple[Any, ...]) -> dict[str, Schedule]:
        """Return the schedules that are tried."""
        if self.args.wrapper == "ddp":
            return {
                f"buckets of {size} MB": Schedule(fingerprint=fingerprint, ddp_bucket_cap_mb=size)
                for size in (2.0, 4.0, 8.0)
            }
        plain = tuple(Decision(collective=key) for key in keys)
        return {
            f"gathered {depth} ahead, reduced {late} late": Schedule(
                fingerprint=fingerprint,
                decisions=plain,
                forward_prefetch=depth,
                backward_prefetch=depth,
                reduce_scatter_deferral=late,
            )
            for depth, late in ((1, 0), (2, 0), (2, 1))
        }


class Arms:
    """Stock and one schedule, ready to run blocks of either."""

    def __init__(self, bench: Bench, schedule: Schedule, *, check: bool = False) -> None:
        self.bench = bench
        self.model, self.optimizer = bench.build(schedule)
        self.session: Any = kareus.attach(
            self.model, self.optimizer, schedule=schedule, guard=False, on_mismatch="error"
        )
        losses = bench.steps(self.model, self.optimizer, 8)
        assert self.session.state == "replay", self.session.report()
        self.shares = bench.args.wrapper == "fsdp2"  # DDP's buckets are fixed in the model
        self.equal: bool | None = None
        self.other = (self.model, self.optimizer) if self.shares else bench.build()
        if check:
            model, optimizer = bench.build()
            self.equal = bench.steps(model, optimizer, 8) == losses
        elif not self.shares:
            bench.steps(*self.other, 3)

    def stock_ms(self, count: int) -> float:
        if not self.shares:
            return self.bench.timed_ms(*self.other, count)
        self.session.driver.uninstall()
        self.session._closed = True  # as never attached: its step boundaries do nothing
        found = self.bench.timed_ms(self.model, self.optimizer, count)
        self.session._closed = False
        self.session.driver.install()
        return found

    def scheduled_ms(self, count: int) -> float:
        return self.bench.timed_ms(self.model, self.optimizer, count)

    def timeline(self, schedule: bool) -> dict[str, Any]:
        """Return one step's collectives as [name, start ms, end ms], and its exposed communication."""
        session, other = self.session, None
        if not schedule:
            model, optimizer = self.bench.build()
            other = session = kareus.attach(model, optimizer)
        else:
            model, optimizer = self.model, self.optimizer
        self.bench.steps(model, optimizer, OBSERVED)
        rows: list[list[Any]] = []
        watch = session.conductor.watch
        leave: Callable[[Any, Any], None] = watch.leave
        dist.barrier()
        start = time.perf_counter()

        def leaving(flight: Any, mark: Any) -> None:
            ended = time.perf_counter()
            rows.append([str(flight.key), (flight.since_s - start) * 1e3, (ended - start) * 1e3])
            leave(flight, mark)

        watch.leave = leaving
        self.bench.steps(model, optimizer, 1)
        length_ms = (time.perf_counter() - start) * 1e3
        watch.leave = leave
        session.report()
        record = session.records[-1]
        if other is not None:
            other.detach()
        return {
            "step_ms": length_ms,
            "exposed_comm_ms": None if record.exposed_comm_us is None else record.exposed_comm_us / 1e3,
            "collectives_ms": sorted(rows, key=lambda row: row[1]),
        }

    def close(self) -> None:
        self.session.detach()


def search(bench: Bench) -> tuple[Schedule, dict[str, Any]]:
    """Try schedules of one setting for the whole step in short blocks; returns the best."""
    keys, fingerprint = bench.observe()
    tried = {}
    found = bench.candidates(fingerprint, keys)
    for name, schedule in found.items():
        arms = Arms(bench, schedule)
        times = [[arms.stock_ms(2), arms.scheduled_ms(2)] for _ in range(2)]
        tried[name] = sum(scheduled for _, scheduled in times) / sum(stock for stock, _ in times)
        arms.close()
    best = min(tried, key=lambda name: tried[name])
    return found[best], {"tried": tried, "chosen": best}


def measure(bench: Bench, schedule: Schedule) -> dict[str, Any]:
    """Measure a schedule against stock in pairs of blocks; returns everything raw."""
    args = bench.args
    keys, fingerprint = bench.observe()
    arms = Arms(bench, schedule, check=True)
    pairs = []
    for pair in range(args.pairs):
        if pair % 2 == 0:
            stock = arms.stock_ms(args.steps)
            pairs.append([stock, arms.scheduled_ms(args.steps)])
        else:
            scheduled = arms.scheduled_ms(args.steps)
            pairs.append([arms.stock_ms(args.steps), scheduled])
    result = {
        "communication_ms": bench.communication_ms(keys, fingerprint),
        "compute_ms": compute_ms(bench),
        "collectives": len(keys),
        "schedule": json.loads(schedule.to_bytes()),
        "losses_equal": arms.equal,
        "pairs_ms": pairs,
        "timelines": {"stock": arms.timeline(False), "scheduled": arms.timeline(True)},
    }
    arms.close()
    return result


def compute_ms(bench: Bench) -> float:
    """Return the step time of the bare model on every rank at once, the slowest rank's."""
    net = bench.net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    bench.timed_ms(net, optimizer, 2)
    return sorted(bench.timed_ms(net, optimizer, 2) for _ in range(5))[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wrapper", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--dim", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--mode", choices=("calibrate", "collect", "replay", "search"), required=True)
    parser.add_argument("--schedule", default=None, help="what replay measures")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    bench = Bench(args)
    result: dict[str, Any] = {"torch": str(torch.__version__)}
    if args.mode == "calibrate":
        result["compute_ms"] = compute_ms(bench)
        result["communication_ms"] = bench.communication_ms(*bench.observe())
    elif args.mode == "collect":
        bench.collect()
    else:
        schedule = Schedule.load(args.schedule) if args.mode == "replay" else None
        if schedule is None:
            schedule, found = search(bench)
            result |= found
        result |= measure(bench, schedule)
    if bench.rank == 0:
        File(args.out).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
