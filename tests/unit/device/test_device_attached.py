"""Clocks and energy end to end: a job attached to a schedule, the real pynvml, and a GPU in software.

The job trains on CPU in a world played by one process; the GPU it is told to have is the fake one.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "gpu"))

import torch
from fake_world import StandIn, fake_world, sharded

import kareus
from kareus.device import open_meter
from kareus.runtime.energy import MeterSampler
from kareus.runtime.guard import GuardSettings
from kareus.schedule import ClockRegion, LaunchPoint, Schedule
from kareus.schedule import Path as Route

CPU = torch.device("cpu")
DIM = 32


@pytest.fixture
def gpu(fake: Any, nvml: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    fake.set(0, load_permille=1000)
    monkeypatch.setattr("kareus.device.permissions.has_sys_admin", lambda status=None: True)
    return fake


def sampler(job: Any, tally: Any) -> MeterSampler:
    meter = open_meter(0)
    assert meter is not None
    return MeterSampler(meter)


def attached(monkeypatch: pytest.MonkeyPatch, clocks: str, regions: tuple[ClockRegion, ...]) -> Any:
    """Return a session whose schedule is in force, its model and optimizer."""
    monkeypatch.setattr("kareus.runtime.entry.open_sampler", sampler)
    model = sharded(CPU, DIM)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    probe = kareus.attach(model, optimizer)
    probe.conductor.paths[Route.NCCL] = StandIn(CPU)
    steps(model, optimizer, 2)
    fingerprint = probe.fingerprint
    probe.detach()
    session: Any = kareus.attach(
        model,
        optimizer,
        schedule=Schedule(fingerprint=fingerprint, clocks=regions),
        clocks=clocks,  # type: ignore[arg-type]
        guard=GuardSettings(enabled=False),
    )
    session.conductor.paths[Route.NCCL] = StandIn(CPU)
    steps(model, optimizer, 3)
    assert session.state == "replay"
    return session, model, optimizer


def steps(model: Any, optimizer: Any, count: int) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(4, DIM)).pow(2).mean().backward()
        optimizer.step()


def until(condition: Any, limit_s: float = 10.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)


POINT = LaunchPoint(module="blocks.0", phase="forward", side="before")
REGION = ClockRegion(start=POINT, sm_clock_mhz=1410, power_limit_w=500.0)
WHOLE = ClockRegion(sm_clock_mhz=1200)


@pytest.mark.parametrize(("region", "clock_mhz"), [(REGION, 1410), (WHOLE, 1200)], ids=["point", "whole run"])
def test_clocks_of_a_region_are_set_and_undone(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, region: ClockRegion, clock_mhz: int
) -> None:
    limit_mw = gpu.get("power_limit_mw")
    with fake_world():
        session, model, optimizer = attached(monkeypatch, "apply", (region,))
        steps(model, optimizer, 1)
        until(lambda: gpu.get("sm_lock_mhz") == clock_mhz)
        if region.power_limit_w is not None:
            until(lambda: gpu.get("power_limit_mw") == 500_000)
        session.detach()
    assert gpu.get("sm_lock_mhz") == 0
    assert gpu.get("power_limit_mw") == limit_mw
    assert "clocks_unavailable" not in session.tally.counts


def test_clocks_are_left_alone_unless_asked_for(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_world():
        session, model, optimizer = attached(monkeypatch, "off", (REGION,))
        steps(model, optimizer, 2)
        session.detach()
    assert gpu.get("sm_sets") == 0
    assert gpu.get("limit_sets") == 0


def test_every_session_of_a_process_measures_energy_in_turn(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A detached session gives the GPU's energy back to the next one."""
    gpu.set(0, counter_period_us=20_000)
    with fake_world():
        for _ in range(2):
            session, model, optimizer = attached(monkeypatch, "off", ())
            end = time.monotonic() + 0.4
            while time.monotonic() < end or session.step_count < 12:
                steps(model, optimizer, 1)
            session.detach()
            scheduled = [r for r in session.records if r.arm == "scheduled"]
            power_w = [r.energy_j / r.time_us * 1e6 for r in scheduled if r.energy_j is not None]
            assert len(power_w) == len(scheduled) > 3
            assert all(500 < watts < 800 for watts in power_w)  # the software GPU draws 680 W
            assert {r.energy_source for r in scheduled} == {"counter"}
            assert all(r.exposed_comm_us is not None for r in scheduled)
