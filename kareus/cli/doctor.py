"""`kareus doctor`: what this machine offers, what is missing, and what to do about it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from kareus.device.doctor import Report, diagnose, to_document
from kareus.device.examine import GpuFacts
from kareus.errors import HardwareError
from kareus.schema import encode


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "doctor",
        help="check GPUs, permissions, energy readings, torch and NCCL",
        description="Check what this machine offers and say what to do about the rest. Changes nothing.",
        epilog="example: kareus doctor --json > doctor.json. Exit code 6 where no GPU's energy can be read.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document (kareus.doctor/1)")
    parser.add_argument(
        "--quick", action="store_true", help="neither import torch nor measure the energy counters"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; return 0, or 6 where no GPU's energy can be read."""
    report = diagnose(measure=not args.quick, probe=not args.quick)
    if args.json:
        sys.stdout.write(encode(to_document(report)).decode())
    else:
        print("\n".join(lines(report)))
    return 0 if report.ok else HardwareError.exit_code


def lines(report: Report) -> Iterator[str]:
    """Yield the report as lines for people."""
    yield "versions    " + ", ".join(f"{name} {text}" for name, text in report.versions.items() if text)
    for gpu in report.gpus:
        yield from _gpu_lines(gpu)
    if not report.gpus:
        yield "GPU         none"
    features = [f"{'+' if present else '-'}{name}" for name, present in report.torch_features.items()]
    yield "torch       " + (" ".join(features) or report.torch_problem)
    for variable in report.environment:
        yield f"environment {variable['name']}={variable['value']}: {variable['effect']}"
    for name, knob in report.knobs.items():
        yield f"knob        {name:30s} {'yes' if knob.available else 'no ':3s} {knob.reason}"
    for number, text in enumerate(report.advice, 1):
        yield f"advice {number:2d}   {text}"
    for name, count in report.nvml_failures.items():
        yield f"nvml        {name} x{count}"


def _gpu_lines(gpu: GpuFacts) -> Iterator[str]:
    seen = "not visible" if gpu.cuda_index is None else f"cuda:{gpu.cuda_index}"
    yield f"GPU {gpu.index:<7d} {gpu.name} {gpu.uuid} {gpu.pci_bus_id} ({seen})"
    yield (
        f"            {gpu.num_sms or '?'} SMs, {gpu.memory_gib or '?'} GiB, {gpu.num_nvlinks} NVLinks, "
        f"MIG {'on' if gpu.mig else 'off'}"
    )
    yield (
        f"            SM clock {gpu.sm_clock_mhz} MHz ({', '.join(gpu.events) or 'free'}), "
        f"{_range(gpu.sm_clocks_mhz)}; "
        f"memory clocks {', '.join(map(str, gpu.memory_clocks_mhz)) or '?'} MHz"
    )
    yield (
        f"            power limit {_watts(gpu.power_limit_w)} (default {_watts(gpu.power_limit_default_w)}, "
        f"{_watts(gpu.power_limit_min_w)} .. {_watts(gpu.power_limit_max_w)})"
    )
    how = "measured" if gpu.counter_period_measured else "assumed"
    period = (
        f", moves every {gpu.counter_period_s * 1e3:.0f} ms ({how})" if gpu.energy_source == "counter" else ""
    )
    yield f"            energy from {gpu.energy_source}{period}; {gpu.power_field} power"
    yield f"            clocks {'can be set' if gpu.may_set_clocks else 'cannot be set'}: {gpu.reason}"


def _range(clocks_mhz: tuple[int, ...]) -> str:
    if not clocks_mhz:
        return "no clocks named"
    return f"{len(clocks_mhz)} clocks {clocks_mhz[-1]} .. {clocks_mhz[0]} MHz"


def _watts(watts: float | None) -> str:
    return "?" if watts is None else f"{watts:g} W"
