import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kareus.cli import doctor as doctor_cli
from kareus.cli import reset_clocks as reset_cli
from kareus.device import findings
from kareus.device.capabilities import FEATURES, TorchFacts, probe_torch
from kareus.device.control import Undo
from kareus.device.doctor import diagnose, knobs_of
from kareus.device.environment import KNOWN, overrides
from kareus.device.journal import JournalEntry, entry_for, read_entry, write_entry
from kareus.device.locks import GpuLock, state_dir
from kareus.device.visible import open_gpu
from kareus.plan.knobs import knobs_from

TORCH = TorchFacts(torch="2.13.0", features=dict.fromkeys(FEATURES, True))


def run(module, *arguments):
    parser = argparse.ArgumentParser()
    module.add_parser(parser.add_subparsers(dest="command"))
    name = "doctor" if module is doctor_cli else "reset-clocks"
    args = parser.parse_args([name, *arguments])
    return args.run(args)


def settings(fake, gpu=0):
    names = ("sm_lock_mhz", "memory_lock_mhz", "power_limit_mw", "sm_sets", "sm_resets", "limit_sets")
    return [fake.get(name, gpu) for name in names]


def test_document(fake, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    before = [settings(fake, gpu) for gpu in (0, 1)]
    assert run(doctor_cli, "--json", "--quick") == 0
    document = json.loads(capsys.readouterr().out)
    assert next(iter(document)) == "schema"
    assert document["schema"] == "kareus.doctor/1"
    first, second = document["gpus"]
    assert (first["cuda_index"], second["cuda_index"]) == (None, 0)
    assert (first["num_sms"], first["num_nvlinks"], first["memory_gib"]) == (132, 18, 140.4)
    assert (len(first["sm_clocks_mhz"]), first["memory_clocks_mhz"]) == (110, [3201, 2201])
    assert first["energy_source"] == "counter"
    assert document["versions"]["cuda_driver"] == "13.0"
    assert [settings(fake, gpu) for gpu in (0, 1)] == before  # a doctor changes nothing
    assert not state_dir(create=False).exists()


def test_text_for_people(fake, capsys):
    assert run(doctor_cli, "--quick") == 0
    text = capsys.readouterr().out
    assert "Fake A GPU-00000000-fa4e" in text
    assert "110 clocks 345 .. 1980 MHz" in text
    assert "energy from counter, moves every 100 ms (assumed)" in text


def test_exit_6_without_gpu(fake, capsys):
    fake.fail("nvmlInitWithFlags", 9)
    assert run(doctor_cli, "--quick") == 6
    assert "DRIVER_NOT_LOADED" in capsys.readouterr().out


def test_the_counters_period_is_measured(fake):
    fake.set(0, counter_period_us=20_000)
    fake.set(1, counter_period_us=40_000)
    periods = [gpu.counter_period_s for gpu in diagnose(probe=False).gpus]
    assert periods == pytest.approx([0.02, 0.04], abs=0.006)


def test_advice_names_crashed_jobs_strangers_and_overrides(fake):
    stranger = os.getppid() if os.getppid() == 1 else 1
    fake.set(0, pid0=os.getpid(), pid1=stranger)
    gpu = open_gpu(__import__("kareus.device.nvml", fromlist=["session"]).session(), 0)
    leave_journal(gpu)
    report = diagnose(measure=False, probe=False, env={"NCCL_MAX_CTAS": "4"})
    text = "\n".join(report.advice)
    assert "run `kareus reset-clocks`" in text
    assert "unset NCCL_MAX_CTAS" in text
    assert not report.knobs["cta_budgets"].available
    if stranger == 1 and os.getppid() != 1:
        assert "also used by processes [1]" in text


def leave_journal(gpu, **changes):
    state_dir()
    left = entry_for(gpu, Undo(sm_lock=True, power_limit_before_mw=690_000))
    values = {name: getattr(left, name) for name in left.__struct_fields__}
    write_entry(JournalEntry(**{**values, "pid": 2**22 + 5, **changes}))


def test_knobs(fake):
    gpus = diagnose(measure=False, probe=False).gpus
    knobs = knobs_of(gpus, TORCH, ())
    assert all(knobs[name].available for name in ("cta_budgets", "launch_points", "copy_engine"))
    assert not knobs_of(gpus[:1], TORCH, ())["copy_engine"].available
    old = TorchFacts(torch="2.8.0", features=dict.fromkeys(FEATURES, False))
    assert knobs_of(gpus, old, ())["launch_points"].remedy == "use torch >= 2.9"
    unknown = knobs_of([], TorchFacts(problem="No module named 'torch'"), ())
    assert not any(knob.available for knob in unknown.values())
    assert all(knob.reason for knob in unknown.values())


def test_overrides():
    found = overrides({"NCCL_MAX_CTAS": "8", "NCCL_P2P_DISABLE": "0", "NCCL_ALGO": "", "HOME": "/x"})
    assert [(o.name, o.value, o.knob) for o in found] == [("NCCL_MAX_CTAS", "8", "cta_budgets")]
    assert all(effect for _, effect in KNOWN.values())


def test_findings_speak_to_the_planner(fake, monkeypatch):
    monkeypatch.setenv("NCCL_MAX_CTAS", "8")
    monkeypatch.setattr("kareus.device.permissions.has_sys_admin", lambda status=None: False)
    found = findings(measure=False)
    json.dumps(found)
    assert (found["gpu"], found["num_sms"], found["num_gpus"]) == ("Fake A", 132, 2)
    assert (found["set_clocks"], found["cta_budgets"]) == (False, False)
    assert found["overrides"] == ["NCCL_MAX_CTAS=8"]
    knobs = knobs_from(found)
    assert not knobs.cta_budgets
    assert "NCCL_MAX_CTAS" in dict(knobs.reasons)["cta_budgets"]


def test_findings_without_nvml(fake):
    fake.fail("nvmlInitWithFlags", 9)
    assert findings() == {
        "overrides": [], "set_clocks": False, "set_clocks_reason": "NVML did not answer",
    }  # fmt: skip


def test_probe_of_a_missing_torch_says_so(tmp_path, monkeypatch):
    package = tmp_path / "torch.py"
    package.write_text("raise ImportError('torch is broken here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "torch is broken here" in probe_torch(timeout_s=60).problem
    package.write_text("import time; time.sleep(60)")
    assert "longer than" in probe_torch(timeout_s=0.5).problem


@pytest.mark.slow
def test_probe_of_the_installed_torch():
    facts = probe_torch()
    if "No module named" in facts.problem:
        pytest.skip(f"torch is not installed: {facts.problem}")
    assert facts.problem == ""
    assert set(facts.features) == set(FEATURES)
    assert facts.features["fsdp2_custom_comms"]


def test_this_package_never_imports_torch():
    code = "import sys, kareus.cli.doctor; print('torch' in sys.modules, 'pynvml' in sys.modules)"
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root, timeout=60
    )
    assert done.stdout == "False False\n"


@pytest.fixture
def crashed(fake, nvml, monkeypatch):
    gpu = open_gpu(nvml, 0)
    fake.set(0, sm_lock_mhz=1200, power_limit_mw=500_000)
    leave_journal(gpu)
    return gpu


def test_reset_clocks(fake, crashed, capsys):
    assert run(reset_cli, "--dry-run") == 0
    assert fake.get("sm_lock_mhz") == 1200
    assert "would remove the SM clock lock, set the power limit to 690 W" in capsys.readouterr().out
    assert run(reset_cli) == 0
    assert (fake.get("sm_lock_mhz"), fake.get("power_limit_mw")) == (0, 690_000)
    assert read_entry(crashed.uuid) is None
    assert run(reset_cli) == 0
    assert "nothing to undo" in capsys.readouterr().out


def test_reset_clocks_leaves_a_running_job_alone(fake, crashed, capsys):
    leave_journal(crashed, pid=os.getpid())
    assert run(reset_cli, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["gpus"]
    assert (row["ok"], row["done"]) == (True, False)
    leave_journal(crashed)
    lock = GpuLock(crashed.uuid, "control")
    assert lock.acquire()
    run(reset_cli)
    assert "held by pid" in capsys.readouterr().out
    lock.release()
    assert fake.get("sm_lock_mhz") == 1200


def test_reset_clocks_without_permission_keeps_the_journal(fake, crashed, capsys):
    fake.set(0, permission=0)
    assert run(reset_cli) == 6
    assert "NO_PERMISSION" in capsys.readouterr().out
    assert read_entry(crashed.uuid) is not None


def test_reset_clocks_after_a_reboot_sets_nothing(fake, crashed, capsys):
    leave_journal(crashed, boot_id="another")
    assert run(reset_cli) == 0
    assert "restarted" in capsys.readouterr().out
    assert (fake.get("sm_resets"), read_entry(crashed.uuid)) == (0, None)


def test_reset_clocks_reports_a_broken_journal(fake, crashed, capsys):
    (state_dir() / "x.journal.json").write_text("{}")
    assert run(reset_cli) == 6
    assert "x.journal.json" in capsys.readouterr().out


def test_reset_clocks_all(fake, crashed, capsys):
    fake.set(1, sm_lock_mhz=900, power_limit_mw=400_000)
    assert run(reset_cli, "--all") == 0
    assert (fake.get("sm_lock_mhz", 1), fake.get("power_limit_mw", 1)) == (0, 400_000)
