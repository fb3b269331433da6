"""Step times of a recording are the device's, not those of a CPU that runs ahead."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
import torch

from kareus.collect import collector, step_clock
from kareus.collect.collector import Collector
from kareus.collect.gather import AloneLink
from kareus.collect.options import CollectOptions

GPU_MS = 100.0


class SlowDevice:
    """A device that needs 100 ms for a step which the CPU has launched in no time."""

    def __init__(self) -> None:
        self.queued_ms = 0.0

    def event(self):
        device = self

        class Event:
            at_ms = -1.0

            def record(self) -> None:
                self.at_ms = device.queued_ms

            def elapsed_time(self, later) -> float:
                return later.at_ms - self.at_ms

        return Event()


def test_a_gpu_step_lasts_until_its_work_is_done() -> None:
    device = SlowDevice()
    clock = step_clock.StepClock(True, device.event)
    for boundary in range(4):
        clock.mark(boundary)
        device.queued_ms += GPU_MS
    assert clock.step_ms(0, 3) == [GPU_MS] * 3
    assert clock.step_ms(1, 9) == [GPU_MS] * 2


def test_a_cpu_step_lasts_until_the_call_returns() -> None:
    clock = step_clock.StepClock(False)
    clock.mark(0)
    time.sleep(0.02)
    clock.mark(1)
    assert 20 <= clock.step_ms(0, 1)[0] < 2000


def test_the_collector_states_device_times_and_marks_only_steps_before_its_window(
    monkeypatch, tmp_path
) -> None:
    device, waited = SlowDevice(), []
    monkeypatch.setattr(collector, "StepClock", lambda on_gpu: step_clock.StepClock(on_gpu, device.event))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: waited.append(True))
    model = torch.nn.Linear(2, 2)
    job = SimpleNamespace(
        wrapper="ddp", root=model, named_root=model, device=torch.device("cuda", 0), world_size=1, rank=0
    )
    recording = Collector(job, str(tmp_path), CollectOptions(wait=10), AloneLink())
    for step in range(10):
        device.queued_ms += GPU_MS
        recording.on_step(step)
    assert recording.step_times_ms() == {"step_ms": GPU_MS}
    assert waited
    assert sorted(recording._clock._marks) == [7, 8, 9, 10]
