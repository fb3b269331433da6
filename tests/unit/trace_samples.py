"""Small Kineto documents for tests, as torch.profiler writes them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

BASE_NS = 1_790_857_026_000_000_000
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
ADD = "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>>(int)"
ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>"
)
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

Event = dict[str, Any]


def kernel(name: str, ts: float, dur: float, correlation: int, stream: int = 7, **args: Any) -> Event:
    """Return one GPU kernel event; times in microseconds."""
    own = {
        "device": 0,
        "stream": stream,
        "correlation": correlation,
        "grid": [24, 1, 1],
        "block": [512, 1, 1],
    }
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
            "args": {**own, **args}}  # fmt: skip


def launch(ts: float, correlation: int, name: str = "cudaLaunchKernel", thread: int = 100) -> Event:
    """Return one runtime call."""
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 9, "tid": thread, "ts": ts, "dur": 2.0,
            "args": {"correlation": correlation}}  # fmt: skip


def mark(name: str, ts: float, dur: float, thread: int = 100, cat: str = "user_annotation") -> Event:
    """Return one annotation (or operator, by `cat`)."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": thread, "ts": ts, "dur": dur, "args": {}}


def message(name: str, elements: int, **more: Any) -> dict[str, Any]:
    """Return the arguments a collective's kernel carries since torch 2.4."""
    return {"Collective name": name, "In msg nelems": elements, "Out msg nelems": elements, "Group size": 2,
            "dtype": "BFloat16", "Process Group Name": "0", "Process Group Ranks": "[0, 1]", **more}  # fmt: skip


def document(
    events: list[Event], *, rank: int | None = 0, world_size: int = 2, **header: Any
) -> dict[str, Any]:
    """Return a whole file of torch 2.4 or later."""
    info: dict[str, Any] = {"backend": "nccl", "world_size": world_size}
    if rank is not None:
        info["rank"] = rank
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
        "distributedInfo": info,
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": events,
        "traceName": "trace.json",
        **header,
    }


def ddp_step(start: float, first: int, *, wait: float = 0.0) -> list[Event]:
    """Return a DDP step of 1000 us from `start`: two GEMMs, an all-reduce beside an add, the optimizer.

    Args:
        start: microseconds. first: first correlation id. wait: how much earlier this rank arrives.
    """
    at = start
    return [
        mark("DistributedDataParallel.forward", at, 90),
        launch(at + 10, first), launch(at + 20, first + 1, thread=200),
        mark("autograd::engine::evaluate_function: MmBackward0", at + 15, 60, 200, cat="cpu_op"),
        launch(at + 40, first + 2, thread=200), launch(at + 50, first + 3, thread=200),
        mark("Optimizer.step#AdamW.step", at + 100, 30), launch(at + 110, first + 4),
        kernel(GEMM, at + 100, 300, first), kernel(GEMM, at + 400, 200, first + 1),
        kernel(REDUCE, at + 610 - wait, 200 + wait, first + 2, 17, **message("allreduce", 1 << 20)),
        kernel(ADD, at + 610, 90, first + 3),
        kernel(ADAM, at + 820, 180, first + 4),
    ]  # fmt: skip


def ddp_steps(count: int = 3, **options: Any) -> list[Event]:
    """Return several DDP steps, one every 1000 us."""
    return [event for n in range(count) for event in ddp_step(1000.0 * (n + 1), 10 * (n + 1), **options)]


def write(path: Path, content: Any) -> Path:
    """Write a document, or text as it stands; gzip by the suffix."""
    text = content if isinstance(content, bytes) else (
        content.encode() if isinstance(content, str) else json.dumps(content).encode())  # fmt: skip
    path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
    return path
