"""What being attached costs: CPU time per collective, and step time under an identity schedule.

    python tests/bench/runtime_overhead.py                    # CPU, torch's fake process group
    python tests/bench/runtime_overhead.py --device cuda      # one GPU; device step times

Attached and plain blocks of steps of one model alternate in one process, in pairs. Writes raw numbers
as JSON; nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path as File
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

sys.path[:0] = [str(File(__file__).resolve().parents[1] / "gpu"), str(File(__file__).resolve().parents[2])]

from fake_world import StandIn, fake_world, sharded  # noqa: E402

import kareus  # noqa: E402
from kareus.runtime.guard import GuardSettings  # noqa: E402
from kareus.runtime.torch_api import AllGather, ReduceScatter, fsdp_units  # noqa: E402
from kareus.schedule import Decision, Schedule  # noqa: E402


class PlainGather(AllGather):
    """What the stand-in does, without Kareus: both arms see the same values."""

    def __init__(self, path: StandIn) -> None:
        self.path = path

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> None:
        return self.path.all_gather(output_tensor, input_tensor, group, async_op)


class PlainScatter(ReduceScatter):
    def __init__(self, path: StandIn) -> None:
        self.path = path

    allocate = PlainGather.allocate

    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False
    ) -> None:
        return self.path.reduce_scatter(output_tensor, input_tensor, group, op, async_op)


class BareStandIn(StandIn):
    """Without the events that tests look at."""

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        yield


def issue_cost_us(session: Any, repeats: int) -> list[float]:
    """Return microseconds of CPU to get leave for one collective and to watch it, without issuing any."""
    conductor, unit = session.conductor, session.job.units[0]
    conductor.arm = "scheduled"
    group, found = dist.group.WORLD, []
    for _ in range(repeats):
        conductor.begin_step()
        start = time.perf_counter()
        for _ in range(100):
            ticket = conductor.open("all_gather", unit.name, "forward", 1 << 20, group)
            conductor.leave(conductor.enter(ticket))
        found.append((time.perf_counter() - start) * 1e4)
    return found


def step_times_ms(model: Any, optimizer: Any, x: torch.Tensor, steps: int) -> tuple[float, float]:
    """Return the mean step time of a block of steps, and the CPU time of this process in it."""
    cuda = x.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    start, start_cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    cpu_ms = (time.process_time() - start_cpu) / steps * 1e3
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps * 1e3, cpu_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--steps", type=int, default=2, help="steps of a block")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("-o", "--output", default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device("cpu")
    x = torch.randn(args.rows, args.dim, device=device)
    with fake_world():
        model = sharded(device, args.dim)
        stand_in = BareStandIn(device)
        for unit in fsdp_units(model):
            unit.module.set_custom_all_gather(PlainGather(stand_in))
            unit.module.set_custom_reduce_scatter(PlainScatter(stand_in))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        probe = kareus.attach(model, optimizer)
        step_times_ms(model, optimizer, x, 3)
        keys, fingerprint = probe.observed, probe.fingerprint
        probe.detach()
        assert fingerprint is not None
        identity = Schedule(
            fingerprint=fingerprint, decisions=tuple(Decision(collective=key) for key in keys)
        )
        session = kareus.attach(model, optimizer, schedule=identity, guard=GuardSettings(enabled=False))
        step_times_ms(model, optimizer, x, 5)
        state, driver = session.state, session.driver
        assert driver is not None

        def block(attached: bool) -> tuple[float, float]:
            # One model for both arms: two equal models differ by percents through where they lie in memory.
            session._closed = not attached
            if attached:
                driver.install()
            found = step_times_ms(model, optimizer, x, args.steps)
            if attached:
                driver.uninstall()
            return found

        driver.uninstall()
        pairs, cpu_pairs = [], []
        for pair in range(args.pairs):
            order = (False, True) if pair % 2 == 0 else (True, False)
            times = {attached: block(attached) for attached in order}
            pairs.append([times[False][0], times[True][0]])
            cpu_pairs.append([times[False][1], times[True][1]])
        session._closed = False
        driver.install()
        costs = issue_cost_us(session, 50)
        session.detach()
    ratios = np.array([attached / plain for plain, attached in pairs])
    random = np.random.default_rng(0)
    draws = np.median(random.choice(ratios, (2000, len(ratios))), axis=1)
    result = {
        "schema": "kareus.bench_overhead/1",
        "command": " ".join(sys.argv),
        "date": time.strftime("%Y-%m-%d"),
        "machine": torch.cuda.get_device_name()
        if args.device == "cuda"
        else platform.processor() or platform.machine(),
        "torch": str(torch.__version__),
        "state": state,
        "collectives_per_step": len(keys),
        "plain_ms": float(np.median([p[0] for p in pairs])),
        "cost_per_collective_us": float(np.median([b - a for a, b in pairs])) * 1e3 / len(keys),
        "cpu_per_collective_us": float(np.median([b - a for a, b in cpu_pairs])) * 1e3 / len(keys),
        "ratio": float(np.median(ratios)),
        "ratio_95": [float(q) for q in np.quantile(draws, (0.025, 0.975))],
        "issue_cost_us": float(np.median(costs)),
        "issue_cost_us_p95": float(np.quantile(costs, 0.95)),
        "pairs_ms": pairs,
        "cpu_pairs_ms": cpu_pairs,
    }
    text = json.dumps(result)
    if args.output:
        File(args.output).write_text(text + "\n")
    print(json.dumps({k: v for k, v in result.items() if not k.endswith("pairs_ms")}, indent=1))


if __name__ == "__main__":
    main()
