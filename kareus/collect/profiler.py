"""torch.profiler as a window that opens and closes inside a running job.

Every private or version-dependent name of torch that the collector needs is looked up here, and missing
ones only cost what they bring: sync events, or annotations.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule


def experimental_config() -> Any:
    """Return the config that records stream waits (`cuda_sync` events), None where this torch has none.

    Default settings record `cudaStreamWaitEvent` calls without what they wait for.
    """
    try:
        from torch._C._profiler import _ExperimentalConfig

        return _ExperimentalConfig(enable_cuda_sync_events=True)
    except (ImportError, TypeError, RuntimeError):
        return None


class Label:
    """A named range on the calling thread's timeline, seen only while a profiler records.

    Ranges need not nest: a backward range may end after a later one has begun.
    """

    __slots__ = ("_context",)

    def __init__(self, name: str) -> None:
        # A FUNCTION-scoped range would be filed under cpu_op; USER scope is what readers look for.
        self._context = torch.profiler.record_function(name)
        self._context.__enter__()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """End the range."""
        self._context.__exit__(None, None, None)


def is_capturing(device: torch.device) -> bool:
    """Return True while a CUDA graph is being captured on the current stream."""
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def in_backward() -> bool:
    """Return True on a thread that runs a backward pass."""
    query = getattr(torch._C, "_current_graph_task_id", None)
    return query is not None and query() != -1


def after_backward(callback: Callable[[], None]) -> bool:
    """Call back when the backward pass that now runs has ended; False where this torch cannot."""
    engine = getattr(torch.autograd.Variable, "_execution_engine", None)
    if engine is None or not hasattr(engine, "queue_callback"):
        return False
    engine.queue_callback(callback)
    return True


def is_compiled(module: torch.nn.Module) -> bool:
    """Return True for a module compiled in place or a compile wrapper: hooks inside would break its graph."""
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")


class Window:
    """One profiler run of `warmup` + `active` steps.

    Args:
        device: CPU and, on CUDA, GPU work is recorded. warmup, active: steps.

    Attributes:
        steps: finished so far. done: all of them are. ended: the profiler has stopped.
    """

    def __init__(self, device: torch.device, *, warmup: int, active: int) -> None:
        self.steps = 0
        self.ended = False
        self.total = warmup + active
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=warmup, active=active, repeat=1),
            # On CPU message sizes are known from shapes only; on CUDA NCCL's records carry them.
            record_shapes=device.type != "cuda",
            with_stack=False,
            experimental_config=experimental_config(),
        )

    @property
    def done(self) -> bool:
        """All steps of the window have been recorded."""
        return self.steps >= self.total

    def start(self) -> None:
        """Begin with the first warm-up step."""
        self._profile.start()

    def step(self) -> None:
        """Mark a step boundary."""
        self.steps += 1
        self._profile.step()
        if self.done:
            self.stop()

    def stop(self) -> None:
        """End recording, early or not; a second call does nothing."""
        if not self.ended:
            self.ended = True
            self._profile.stop()

    def export(self, path: str, facts: dict[str, str]) -> None:
        """Write the Kineto file (.json or .json.gz) with extra header fields of JSON text.

        Raises:
            OSError, RuntimeError: torch could not write it.
        """
        for name, value in facts.items():
            self._profile.add_metadata_json(name, value)
        self._profile.export_chrome_trace(path)
        if not os.path.exists(path):
            raise RuntimeError(f"the profiler wrote nothing to {path}")
