"""The software GPU, and profile -> fit -> solve -> governor on it from end to end."""

import time
from pathlib import Path

import numpy as np
import pytest

from kareus.device.energy import EnergyMeter
from kareus.device.governor import Governor
from kareus.model.calibrate import calibrated
from kareus.model.cost import CostModel
from kareus.model.predict import predict
from kareus.model.profile import Beside, Conditions, Piece, Profile, Sample, StepSetting
from kareus.model.soft_gpu import SW_POWER_CAP, SoftGpu
from kareus.plan.knobs import Knobs
from kareus.plan.planner import Goal, make_plan
from kareus.trace.graph import graphs
from kareus.trace.ranks import TraceSet

ROOT = Path(__file__).parents[2]
GEMMS = (Piece(kernel_class="gemm", alone_us=1200.0, count=4, grid=1000),)
ADDS = (Piece(kernel_class="memory", alone_us=130.0, count=40, grid=4000),)
# What the software GPU really is; nobody but the fit may find out.
TRUTH = CostModel.assumed("NVIDIA H200", 132).with_values(
    {
        "gemm.power_w": 820.0,
        "gemm.link_loss": 0.45,
        "memory.memory_share": 1.5,
        "all_gather.gb_per_s_per_cta": 12.0,
        "all_gather.gb_per_s": 210.0,
    }
)


def settings():
    """Collectives alone, compute alone, and both, at several budgets."""
    messages = [
        Beside(kind="all_gather", num_bytes=456_000_000, group_size=2, num_ctas=ctas)
        for ctas in (1, 4, 8, 16, 24)
    ]
    rows = [Sample(label=f"{m.num_ctas} CTAs", collective=m, time_us=1.0) for m in messages]
    for name, pieces in (("gemm", GEMMS), ("adds", ADDS)):
        rows.append(Sample(label=name, compute=pieces, time_us=1.0))
        rows += [
            Sample(label=f"{name} {m.num_ctas}", compute=pieces, collective=m, time_us=1.0) for m in messages
        ]
    return rows


def bench(gpu, rows):
    """The profile a sitting at this GPU gives."""
    empty = Profile(
        gpu=TRUTH.gpu,
        num_sms=132,
        conditions=(Conditions(host_gpu=gpu.name, num_sms=132, link="nvlink", world_size=2),),
        samples=(),
        reference_clock_mhz=TRUTH["reference_clock_mhz"],
        provenance="a GPU in software; nothing here was measured on hardware",
    )
    measured = tuple(gpu.measure(empty, row) for row in rows)
    return Profile(
        **{f: getattr(empty, f) for f in empty.__struct_fields__ if f != "samples"}, samples=measured
    )


def test_it_reads_like_a_card():
    gpu = SoftGpu(TRUTH, noise=0.0)
    device = gpu.open()
    assert device.name == "software NVIDIA H200"
    before_mj = device.energy_mj()
    profile = bench(gpu, [Sample(label="gemm", compute=GEMMS, time_us=1.0)])
    row = profile.samples[0]
    counted_j = (device.energy_mj() - before_mj) / 1e3
    assert counted_j == pytest.approx(row.energy_j * row.count, rel=0.05)  # the counter moves every 100 ms
    assert device.power_mw() == pytest.approx(700e3, rel=0.01)
    assert device.event_reasons() == SW_POWER_CAP
    assert row.throttle == ("sw_power_cap",)
    assert row.sm_clock_mhz < 1980
    gpu.idle(1.0)
    assert device.power_mw() == pytest.approx(123e3, rel=0.01)


def test_a_lock_and_a_limit_change_what_it_does():
    gpu = SoftGpu(TRUTH, noise=0.0)
    device = gpu.open()
    row = Sample(label="gemm", compute=GEMMS, time_us=1.0)
    free = bench(gpu, [row]).samples[0]
    device.call("nvmlDeviceSetGpuLockedClocks", 1200, 1200)
    locked = bench(gpu, [row]).samples[0]
    device.call("nvmlDeviceResetGpuLockedClocks")
    device.call("nvmlDeviceSetPowerManagementLimit", 500_000)
    limited = bench(gpu, [row]).samples[0]
    assert locked.sm_clock_mhz == 1200
    assert locked.time_us > free.time_us
    assert locked.energy_j < free.energy_j
    assert limited.energy_j / limited.time_us * 1e6 == pytest.approx(500, rel=0.01)


def test_a_meter_works_on_it():
    meter = EnergyMeter(SoftGpu(TRUTH).open())
    meter.begin("window")
    reading = meter.end("window")
    meter.close()
    assert reading.source in ("counter", "power")


def test_profile_solve_and_governor_from_end_to_end(tmp_path, monkeypatch):
    """Measure, fit, predict what was not measured, plan a recorded step with clocks, and carry the clock out."""
    monkeypatch.setenv("KAREUS_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("kareus.device.permissions.has_sys_admin", lambda status=None: True)
    gpu = SoftGpu(TRUTH, noise=0.005, seed=3)
    profile = bench(gpu, settings())
    held_out = [s for i, s in enumerate(profile.samples) if i % 4 == 3]
    fitted = CostModel.from_profile(
        Profile(
            **{f: getattr(profile, f) for f in profile.__struct_fields__ if f != "samples"},
            samples=tuple(s for s in profile.samples if s not in held_out),
        )
    )
    error = predict(profile, held_out, fitted).time_us / np.array([s.time_us for s in held_out]) - 1
    assert np.median(np.abs(error)) < 0.02
    assert fitted["all_gather.gb_per_s"] == pytest.approx(210, rel=0.1)

    graph = graphs(TraceSet.open(ROOT / "traces/fsdp2-nvlink-default").load(0))[-1]
    cost = calibrated(fitted, graph)
    knobs = Knobs(ctas=(8, 16), clocks="apply")
    plan = make_plan(graph, cost, knobs, Goal(max_slowdown=0.05), time_limit_s=5.0)
    assert plan.simulation.energy_j < plan.stock_simulation.energy_j
    clocks = plan.schedule.clocks
    assert clocks
    assert clocks[0].sm_clock_mhz

    shipped = Profile.load(ROOT / "traces/profiles/h200-nvlink.json")
    stock = Sample(label="stock", step=StepSetting(workload="llama8-batch1"), time_us=1.0)
    free = gpu.measure(shipped, stock)
    governor = Governor(gpu.open(), clocks, "apply", min_dwell_s=0.01, poll_s=0.002, watchdog=False).start()
    governor.enter(0)
    end_s = time.monotonic() + 10
    while not gpu.sm_sets:
        assert time.monotonic() < end_s, governor.report()
        time.sleep(0.005)
    assert gpu.sm_lock_mhz == pytest.approx(clocks[0].sm_clock_mhz, abs=15)
    governed = gpu.measure(shipped, stock)
    assert governor.stop().restored
    assert gpu.sm_lock_mhz == 0
    assert governed.energy_j < free.energy_j
    assert gpu.measure(shipped, stock).time_us == pytest.approx(free.time_us, rel=0.03)
