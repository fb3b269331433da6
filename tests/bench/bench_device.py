"""Measure on a GPU, without changing any setting, what kareus.device promises.

    python tests/bench/bench_device.py -o tests/bench/results/device_h200.json [--seconds 10] [--no-cuda]

Energy of a window of GEMMs by the counter against integrated power, the counter's update period, the cost
of readings and of sampling, a step with and without the sampler (interleaved), and all settings before
and after. `--no-cuda` leaves the GEMMs out (for a machine without torch, or a fake NVML).
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from pathlib import Path

from kareus.device import EnergyMeter, Sampler, findings
from kareus.device.gpu import Gpu
from kareus.device.nvml import Failure, session
from kareus.device.period import measure_counter_period
from kareus.device.visible import open_gpu

SETTINGS = (
    "nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetComputeMode", "nvmlDeviceGetMigMode",
)  # fmt: skip
SHAPE = (8192, 4096, 14336)  # the bf16 GEMM that pins an H200 at its power limit


def read_settings(gpu: Gpu) -> dict[str, object]:
    """Read every setting that NVML can read back; a clock lock has no getter, so maximum clocks stand in."""
    values: dict[str, object] = {}
    for function in SETTINGS:
        outcome = gpu.call(function, optional=True)
        values[function] = outcome.name if isinstance(outcome, Failure) else outcome
    for name, kind in (("sm", 1), ("memory", 2)):
        outcome = gpu.call("nvmlDeviceGetMaxClockInfo", kind, optional=True)
        values[f"max_clock_{name}"] = outcome.name if isinstance(outcome, Failure) else outcome
    values["supported_sm_clocks_mhz"] = list(gpu.supported_sm_clocks_mhz())
    values["supported_memory_clocks_mhz"] = list(gpu.supported_memory_clocks_mhz())
    return values


def cost_us(call: object, repeat: int = 500) -> dict[str, float]:
    """Time one reading, us."""
    times = []
    for _ in range(repeat):
        begin = time.perf_counter_ns()
        call()  # type: ignore[operator]
        times.append((time.perf_counter_ns() - begin) / 1e3)
    times.sort()
    return {"median": statistics.median(times), "p99": times[int(len(times) * 0.99)], "max": times[-1]}


def sampling_share(gpu: Gpu, period_s: float = 0.05) -> dict[str, float]:
    """CPU time that one sample takes, as a share of the time between samples."""
    sampler = Sampler(gpu, period_s)
    count, begin = 500, time.thread_time_ns()
    for _ in range(count):
        sampler.take()
    sample_us = (time.thread_time_ns() - begin) / count / 1e3
    return {"sample_us": sample_us, "period_s": period_s, "share": sample_us / (period_s * 1e6)}


class Gemms:
    """GEMMs on random values (zeros would draw less power and run faster)."""

    def __init__(self) -> None:
        import torch

        m, k, n = SHAPE
        self.torch = torch
        self.a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        self.b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)

    def step(self, count: int = 64) -> float:
        """Run `count` GEMMs (about 0.1 s) and return their time, s."""
        begin = time.perf_counter()
        for _ in range(count):
            self.torch.mm(self.a, self.b)
        self.torch.cuda.synchronize()
        return time.perf_counter() - begin

    def run(self, seconds: float) -> None:
        """Run for at least that long."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.step()


def energy_window(gpu: Gpu, gemms: Gemms, seconds: float) -> dict[str, object]:
    """Counter against integrated power over one window of GEMMs."""
    meter = EnergyMeter(gpu)
    gemms.run(2.0)
    meter.begin("gemms")
    gemms.run(seconds)
    reading = meter.end("gemms")
    snapshot = meter.read()
    meter.close()
    return {
        "energy_j": reading.energy_j, "seconds": reading.seconds, "source": reading.source,
        "flags": list(reading.flags), "uncertainty_j": reading.uncertainty_j,
        "power_to_counter": reading.power_to_counter, "sm_clock_mhz_after": snapshot.sm_clock_mhz,
        "power_mw_after": snapshot.power_mw, "counter_period_s": meter.period.period_s,
        "zero_power_reads": gpu.zero_power_reads,
    }  # fmt: skip


def step_with_and_without(gpu: Gpu, gemms: Gemms, pairs: int = 40, steps: int = 12) -> dict[str, object]:
    """Steps of GEMMs, blocks with the sampler and without it in turn.

    One sampler lives through a whole training, so each block waits until its own has settled on a period.
    The interval is a bootstrap over pairs of neighbouring blocks.
    """
    plain: list[list[float]] = []
    sampled: list[list[float]] = []
    period_s = 0.0
    gemms.run(2.0)
    for block in range(2 * pairs):
        with_sampler = block % 4 in (1, 2)  # plain, sampled, sampled, plain: a drift cancels
        sampler = Sampler(gpu, 0.05)
        if with_sampler:
            sampler.start()
        gemms.run(0.5)
        (sampled if with_sampler else plain).append([gemms.step() for _ in range(steps)])
        sampler.stop()
        period_s = sampler.period_s if with_sampler else period_s
    ratios = [
        statistics.fmean(one) / statistics.fmean(other) for one, other in zip(sampled, plain, strict=True)
    ]
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(ratios, k=pairs)) for _ in range(2000))
    return {
        "plain_s": plain, "sampled_s": sampled, "period_s": period_s, "mean_ratio": statistics.fmean(ratios),
        "median_ratio": statistics.median(ratios), "mean_ratio_95": [means[49], means[1949]],
    }  # fmt: skip


def main() -> int:
    """Run and write one JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--no-cuda", action="store_true")
    args = parser.parse_args()
    nvml = session()
    gpu = open_gpu(nvml, 0) if nvml.started else None
    if gpu is None:
        print("no GPU that NVML can read", file=sys.stderr)
        return 6
    before = read_settings(gpu)
    document: dict[str, object] = {
        "schema": "kareus.bench.device/1", "command": " ".join(sys.argv), "python": platform.python_version(),
        "machine": platform.platform(), "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "findings": findings(measure=False), "settings_before": before,
    }  # fmt: skip
    periods = [measure_counter_period(gpu.energy_mj) for _ in range(3)]
    document["counter_period"] = [
        {"period_s": p.period_s, "low_s": p.low_s, "high_s": p.high_s, "num_changes": p.num_changes}
        for p in periods
    ]
    document["reading_us"] = {
        "energy": cost_us(gpu.energy_mj), "power": cost_us(gpu.power_mw),
        "sm_clock": cost_us(gpu.sm_clock_mhz),
        "event_reasons": cost_us(gpu.event_reasons),
    }  # fmt: skip
    document["sampling"] = sampling_share(gpu)
    if not args.no_cuda:
        gemms = Gemms()
        document["torch"] = str(gemms.torch.__version__)
        document["energy_window"] = energy_window(gpu, gemms, args.seconds)
        document["step"] = step_with_and_without(gpu, gemms)
    document["settings_after"] = read_settings(gpu)
    document["settings_unchanged"] = document["settings_after"] == before
    document["nvml_failures"] = nvml.failure_counts()
    Path(args.output).write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
