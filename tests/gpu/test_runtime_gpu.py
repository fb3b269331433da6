"""Replay in a world of two ranks played by one process: on one GPU where there is one, and on CPU.

Checked on the device: a collective starts after its launch point, and never before its data, however
far the CPU runs ahead. Nothing of the GPU's settings is touched.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")

import torch
from fake_world import StandIn, fake_world, replicated, run, sharded

import kareus
from kareus.runtime.compute_sms import Carveout, GreenStream
from kareus.runtime.guard import GuardSettings
from kareus.schedule import CollectiveKey, Decision, LaunchPoint, Path, Schedule

OFF = GuardSettings(enabled=False)
CPU = torch.device("cpu")
SLEEP = 2_000_000  # cycles: about 1 ms of an H200
gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]
DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=gpu)]


def device_of(name: str) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else CPU


def key(kind: str, unit: str, phase: str) -> CollectiveKey:
    return CollectiveKey(kind=kind, unit=unit, phase=phase)  # type: ignore[arg-type]


def point(module: str, phase: str, side: str) -> LaunchPoint:
    return LaunchPoint(module=module, phase=phase, side=side)  # type: ignore[arg-type]


FORWARD = point("blocks.0.down", "forward", "before")
BACKWARD = point("blocks.1.up", "backward", "after")
LAUNCHED = {
    key("all_gather", "blocks.1", "forward"): FORWARD,
    key("all_gather", "blocks.0", "backward"): BACKWARD,
}


def plan(fingerprint: Any, keys: tuple[CollectiveKey, ...]) -> Schedule:
    decisions = tuple(
        Decision(collective=k, num_ctas=4, launch=LAUNCHED.get(k), serialise=k.unit == "blocks.2")
        for k in keys
    )
    return Schedule(
        fingerprint=fingerprint, decisions=decisions, reduce_scatter_deferral=1, forward_prefetch=1
    )


def session_with(model: Any, optimizer: Any, stand_in: StandIn, schedule: Schedule | None = None) -> Any:
    session = kareus.attach(model, optimizer, schedule=schedule, guard=OFF)
    assert session.conductor is not None
    session.conductor.paths[Path.NCCL] = stand_in
    return session


def stock_run(device: torch.device, dim: int, steps: int, make: Any) -> tuple[Any, Any, Any]:
    model = make(device, dim)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = session_with(model, optimizer, StandIn(device))
    losses = run(model, optimizer, device, dim, steps)
    keys, fingerprint = session.observed, session.fingerprint
    session.detach()
    return losses, keys, fingerprint


@pytest.mark.parametrize("name", DEVICES)
def test_early_gathers_give_the_losses_of_stock(name: str) -> None:
    """Each is issued inside the optimizer, on its own stream, behind the update of its unit."""
    device, dim, steps = device_of(name), 256, 10
    with fake_world():
        expected, keys, fingerprint = stock_run(device, dim, steps, sharded)
        model = sharded(device, dim)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = msgspec.structs.replace(plan(fingerprint, keys), early_gathers=2)
        session = session_with(model, optimizer, StandIn(device, SLEEP // 10), schedule)
        losses = run(model, optimizer, device, dim, steps)
        pending = len(session.driver.early._pending)
        report = session.report()
        session.detach()
    assert losses == expected
    assert pending == 2
    assert report["arms"]["scheduled"]["missed"] == 0
    assert not {"step_not_split", "early_gathers_dropped", "no_early_gathers"} & set(report["counts"])


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("make", [sharded, replicated])
def test_replay_gives_the_losses_of_stock(name: str, make: Any) -> None:
    device, dim, steps = device_of(name), 64, 8
    with fake_world():
        expected, keys, fingerprint = stock_run(device, dim, steps, make)
        model = make(device, dim)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        session = session_with(model, optimizer, StandIn(device, SLEEP // 10), plan(fingerprint, keys))
        losses = run(model, optimizer, device, dim, steps)
        report = session.report()
        session.detach()
    assert losses == expected
    assert report["arms"]["scheduled"]["steps"] >= 4, report
    assert report["arms"]["scheduled"]["missed"] == 0
    assert "launch_unreachable" not in report["counts"]


def launches(device: torch.device, *, wait: bool) -> list[float]:
    """Return milliseconds from launch point to start of one step's launched gathers."""
    dim = 512
    _, keys, fingerprint = stock_run(device, dim, 3, sharded)
    model = sharded(device, dim)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stand_in = StandIn(device)
    session = session_with(model, optimizer, stand_in, plan(fingerprint, keys))
    points: dict[LaunchPoint, Any] = {}

    def note(met: LaunchPoint, _: Any) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        points[met] = event

    session.driver.board.listeners.append(note)
    if not wait:
        session.conductor.timeline.wait = lambda mark: None
    # The compute stream is held up just before each point, while the CPU runs on.
    hold = [model.blocks[0].norm, model.blocks[1].norm]
    handles = [m.register_forward_hook(lambda *_: torch.cuda._sleep(20 * SLEEP)) for m in hold]
    run(model, optimizer, device, dim, 4)
    torch.cuda.synchronize(device)
    stand_in.marks.clear()
    run(model, optimizer, device, dim, 1)
    torch.cuda.synchronize(device)
    for handle in handles:
        handle.remove()
    issued = session.issued
    starts = list(stand_in.marks)
    session.detach()
    assert len(starts) == len(issued)
    found = []
    for k, (_, start, _) in zip(issued, starts, strict=True):
        if k in LAUNCHED:
            found.append(points[LAUNCHED[k]].elapsed_time(start))
    assert len(found) == len(LAUNCHED)
    return found


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_collective_starts_after_its_launch_point_on_the_device() -> None:
    device = device_of("cuda")
    with fake_world():
        for after_point in launches(device, wait=True):
            # The listener's event lies a few microseconds behind the mark that the collective waits for.
            assert after_point >= -0.02
    with fake_world():
        # Without the wait the forward gather would start while compute is still held up, for 20 ms.
        assert launches(device, wait=False)[0] < -1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_energy_exposure_and_device_time_are_recorded() -> None:
    device, dim = device_of("cuda"), 512
    with fake_world():
        _, keys, fingerprint = stock_run(device, dim, 3, sharded)
        model = sharded(device, dim)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        session = session_with(model, optimizer, StandIn(device, SLEEP), plan(fingerprint, keys))
        run(model, optimizer, device, dim, 30)
        session.report()
        records = [r for r in session.records if r.arm == "scheduled"]
        session.detach()
    assert all(r.time_us > 0 for r in records)
    assert len(records) >= 20
    assert all(r.exposed_comm_us is not None and 0 < r.exposed_comm_us < r.time_us for r in records)
    assert all(r.energy_window_s is not None and r.energy_source for r in records)
    assert all(r.energy_j is not None and r.energy_j > 0 for r in records if r.energy_source != "none")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_capture_is_noticed() -> None:
    from kareus.runtime import torch_api

    device = device_of("cuda")
    x = torch.ones(8, device=device)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = torch_api.is_capturing(device)
        x.add(1)
    assert inside
    assert not torch_api.is_capturing(device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_green_stream_computes_the_same_and_leaves() -> None:
    if not GreenStream.available():
        pytest.skip("this torch makes no green-context streams")
    device = device_of("cuda")
    a = torch.randn(256, 256, device=device)
    expected = a @ a
    limit = GreenStream(device)
    outer = torch.cuda.current_stream(device)
    limit.enter(32)
    assert torch.cuda.current_stream(device) != outer
    found = a @ a
    limit.leave()
    assert torch.cuda.current_stream(device) == outer
    torch.cuda.synchronize(device)
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3)
    assert Carveout.available()
