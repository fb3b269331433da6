"""Interleaved blocks of arms in one process: every comparison is between neighbours in time."""

from __future__ import annotations

import itertools
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from gpu_arms import Arm
from gpu_energy import EnergyCounter
from gpu_job import Job

HEAD, TAIL = 3, 2  # steps of the same arm around the measured ones (the counter's 100 ms lie in them)


class Bench:
    """Runs blocks and keeps everything that was measured."""

    def __init__(self, job: Job, name: str) -> None:
        self.job = job
        cuda = job.device.type == "cuda"
        uuid = str(getattr(job.torch.cuda.get_device_properties(job.device), "uuid", "")) if cuda else ""
        self.energy = EnergyCounter(job.device.index if cuda else None, uuid)
        self.started = time.monotonic()
        self.snapshot_mb = 0.0
        self.document: dict[str, Any] = {
            "schema": "kareus.bench_two_gpus/1",
            "bench": name,
            "facts": job.facts(self.energy.driver),
            "blocks": [],
            "arms": {},
        }
        self.path = None if job.args.out is None else Path(job.args.out) / self.file_name(name)

    def file_name(self, name: str) -> str:
        a = self.job.args
        world = "two_gpus" if a.stand_in is None else "one_gpu"
        return f"{world}-{name}-{a.wrapper}-{self.job.size_name}-b{a.batch}-{a.stand_in or a.link}.json"

    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    def block(self, arm: Arm, steps: int, saved: list[Any]) -> dict[str, Any]:
        """Measure `steps` steps of an arm from the saved state, on all ranks."""
        job, torch = arm.job, self.job.torch
        cuda = job.device.type == "cuda"
        job.restore(saved)
        arm.enter()
        if cuda:
            torch.cuda.reset_peak_memory_stats(job.device)
        job.barrier()
        for _ in range(HEAD + arm.settle_steps()):
            job.step(sync=arm.sync)
            arm.after_step()
        marks = [self._mark()]  # no wait here: the CPU stays ahead of the GPU
        losses = []
        for _ in range(steps):
            losses.append(job.step(sync=arm.sync))
            arm.after_step()
            marks.append(self._mark())
        for _ in range(TAIL):
            job.step(sync=arm.sync)
            arm.after_step()
        last = self._mark()
        job.sync()
        now = time.monotonic()
        end = now - self._length_ms(marks[-1], last) / 1e3
        start = now - self._length_ms(marks[0], last) / 1e3
        self.energy.wait_for_update(end)
        power, clock = self.energy.means(start, end)
        joules = self.energy.between_j(start, end)
        mine = {
            "step_ms": self._lengths(marks),
            "energy_j": None if joules is None else joules / steps,
            "power_w": power,
            "sm_clock_mhz": clock,
            "peak_mb": torch.cuda.max_memory_allocated(job.device) / 1e6 - self.snapshot_mb if cuda else None,
            "window_s": end - start,
            "loss_first": float(losses[0]),
            "loss_last": float(losses[-1]),
        }
        arm.leave()
        ranks = job.gather(mine)
        row = {
            "arm": arm.name,
            "at_s": start - self.started,
            "steps": steps,
            # A step ends when the slowest rank ends it.
            "step_ms": [max(times) for times in zip(*(r["step_ms"] for r in ranks), strict=True)],
            "ranks": [{k: v for k, v in r.items() if k != "step_ms"} for r in ranks],
        }
        row["mean_ms"] = statistics.fmean(row["step_ms"])
        energies = [r["energy_j"] for r in ranks]
        row["mean_j"] = None if None in energies else statistics.fmean(energies)
        self.document["blocks"].append(row)
        return row

    def _mark(self) -> Any:
        if self.job.device.type != "cuda":
            return time.monotonic()
        event = self.job.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _length_ms(self, start: Any, end: Any) -> float:
        if self.job.device.type == "cuda":
            return float(start.elapsed_time(end))
        return float(end - start) * 1e3

    def _lengths(self, marks: list[Any]) -> list[float]:
        return [round(self._length_ms(a, b), 4) for a, b in itertools.pairwise(marks)]

    def rounds(self, arms: list[Arm], *, steps: int, rounds: int, limit_s: float, saved: list[Any]) -> int:
        """Run all arms once a round, forwards and backwards in turn, until done or out of time."""
        done = 0
        for number in range(rounds):
            order = arms if number % 2 == 0 else list(reversed(arms))
            longest = 0.0
            for arm in order:
                before = time.monotonic()
                row = self.block(arm, steps, saved)
                longest = max(longest, time.monotonic() - before)
                energy = "" if row["mean_j"] is None else f" {row['mean_j']:7.2f} J"
                self.job.say(f"round {number + 1}/{rounds} {arm.name:24} {row['mean_ms']:8.2f} ms{energy}")
            done = number + 1
            self.save(arms)
            out_of_time = self.elapsed_s() + 1.05 * longest * len(arms) > limit_s
            if any(self.job.gather(out_of_time)):
                self.job.say(f"stopping after {done} rounds: the next would pass {limit_s:.0f} s")
                break
        return done

    def save(self, arms: list[Arm]) -> None:
        for arm in arms:
            self.document["arms"][arm.name] = arm.facts()
        self.document["summary"] = self.summary()
        self.document["elapsed_s"] = self.elapsed_s()
        if self.path is not None and self.job.rank == 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_suffix(".tmp")
            temporary.write_text(json.dumps(self.document))
            temporary.replace(self.path)

    def summary(self) -> dict[str, dict[str, Any]]:
        """`summarise`, with the memory that an arm holds outside of torch's allocator added to its peak."""
        found = summarise(self.document["blocks"])
        for name, row in found.items():
            held = self.document["arms"].get(name, {}).get("ladder", {})
            if row["peak_mb"] is not None:
                row["peak_mb"] += held.get("memory_bytes", 0) / 1e6 + held.get("copy_buffers_bytes", 0) / 1e6
        return found

    def close(self) -> None:
        self.energy.close()


def summarise(blocks: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Per arm: medians, and ratios to stock of the same round with 95 % bootstrap intervals."""
    found: dict[str, dict[str, Any]] = {}
    stock = [b for b in blocks if b["arm"] == "stock"]
    for name in dict.fromkeys(b["arm"] for b in blocks):
        mine = [b for b in blocks if b["arm"] == name]
        times = [t for b in mine for t in b["step_ms"]]
        energies = [b["mean_j"] for b in mine if b["mean_j"] is not None]
        row: dict[str, Any] = {
            "blocks": len(mine),
            "steps": len(times),
            "median_ms": statistics.median(times),
            "mean_ms": statistics.fmean(times),
            "mean_j": statistics.fmean(energies) if energies else None,
        }
        peaks = [r["peak_mb"] for b in mine for r in b["ranks"] if r["peak_mb"] is not None]
        row["peak_mb"] = max(peaks) if peaks else None
        pairs = [(m, nearest(m, stock)) for m in mine] if stock else []
        for figure in ("mean_ms", "mean_j"):
            ratios = [m[figure] / s[figure] for m, s in pairs if m[figure] and s[figure]]
            row[f"{figure}_ratio"] = interval(ratios)
        found[name] = row
    return found


def nearest(block: dict[str, Any], stock: list[dict[str, Any]]) -> dict[str, Any]:
    """The stock block closest in time."""
    return min(stock, key=lambda s: abs(s["at_s"] - block["at_s"]))


def interval(values: list[float]) -> list[float] | None:
    """[mean, low, high]: mean with a 95 % bootstrap interval over blocks; None without any."""
    if not values:
        return None
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(2000))
    return [statistics.fmean(values), means[49], means[1949]]


def table(summary: dict[str, dict[str, Any]]) -> str:
    """The comparison as text, gap recovered included where both ends were measured."""
    lines = [
        f"{'arm':24} {'ms':>8} {'J':>8} {'time / stock':>22} {'energy / stock':>22} "
        f"{'gap t':>6} {'gap E':>6} {'peak GB':>8}"
    ]
    stock, bound = summary.get("stock"), summary.get("bound")
    for name, row in summary.items():
        gaps = []
        for figure in ("mean_ms", "mean_j"):
            known = stock and bound and stock[figure] and bound[figure] and row[figure]
            if known and stock[figure] > bound[figure]:
                gaps.append(f"{(stock[figure] - row[figure]) / (stock[figure] - bound[figure]):6.0%}")
            else:
                gaps.append(f"{'':6}")
        time, energy = _shown(row["mean_ms_ratio"]), _shown(row["mean_j_ratio"])
        lines.append(
            f"{name:24} {row['mean_ms']:8.2f} {row['mean_j'] or float('nan'):8.2f} {time:>22} {energy:>22} "
            f"{gaps[0]} {gaps[1]} {(row['peak_mb'] or 0) / 1e3:8.2f}"
        )
    return "\n".join(lines)


def _shown(ratio: list[float] | None) -> str:
    return "" if ratio is None else f"{ratio[0]:.4f} {ratio[1]:.4f}-{ratio[2]:.4f}"
