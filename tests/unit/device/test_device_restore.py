"""However training ends, the GPU is as it was before. KAREUS_KILL_RUNS sets the number of random kills."""

import json
import os
import platform
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kareus.device.journal as journal
from kareus.device.visible import open_gpu

SCRIPT = Path(__file__).parents[2] / "fake_nvml" / "training.py"
NUM_GPUS = 4
BEFORE_MW = 650_000


@pytest.fixture
def gpus(fake):
    assert fake._c.fake_create(os.fsencode(fake.state), NUM_GPUS) == 0
    for index in range(NUM_GPUS):
        fake.set(index, load_permille=800, power_limit_mw=BEFORE_MW)
    return fake


def start(fake, index, ending):
    command = [sys.executable, str(SCRIPT), str(index), ending]
    return subprocess.Popen(
        command, env=fake.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def is_restored(fake, index):
    values = [fake.get(name, index) for name in ("sm_lock_mhz", "memory_lock_mhz", "power_limit_mw")]
    return values == [0, 0, BEFORE_MW]


def wait_restored(fake, index, limit_s=5.0):
    begin = time.monotonic()
    while not is_restored(fake, index):
        assert time.monotonic() - begin < limit_s, "clocks were not restored in time"
        time.sleep(0.005)
    return time.monotonic() - begin


def finish(process):
    process.kill()
    out, err = process.communicate(timeout=20)
    return out, err


@pytest.mark.parametrize(
    ("ending", "code"), [("exit", 0), ("exception", 1), ("hard exit", 3), ("exec", 0), ("child", 0)]
)
def test_ends_by_itself(gpus, ending, code):
    process = start(gpus, 0, ending)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    wait_restored(gpus, 0)
    assert gpus.get("sm_sets", 0) >= 1
    assert ("ended abruptly" in err) == (ending in ("hard exit", "exec"))


@pytest.mark.parametrize(
    ("ending", "number", "code"),
    [
        ("signal", signal.SIGTERM, -signal.SIGTERM),
        ("handled", signal.SIGTERM, 7),  # the user's own handler still runs
        ("signal", signal.SIGINT, -signal.SIGINT),  # KeyboardInterrupt, as without us
    ],
)
def test_ends_by_signal(gpus, ending, number, code):
    process = start(gpus, 0, ending)
    assert process.stdout.readline() == "set\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert is_restored(gpus, 0)
    assert "abruptly" not in err


def test_killed_while_a_forked_child_holds_its_pipes(gpus):
    process = start(gpus, 0, "fork")
    assert process.stdout.readline() == "set\n"
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert wait_restored(gpus, 0) < 5
    process.stdout.close()
    process.stderr.close()


def test_lock_and_journal_outlive_a_kill_of_both(gpus, nvml):
    """A scheduler that kills the whole container leaves a journal that names what to undo."""
    process = start(gpus, 0, "fork")
    assert process.stdout.readline() == "set\n"
    watchdog = int(process.stdout.readline())
    os.kill(watchdog, signal.SIGKILL)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    time.sleep(0.3)
    assert not is_restored(gpus, 0)
    left = journal.read_entry(open_gpu(nvml, 0).uuid)
    assert (left.sm_lock, left.memory_lock, left.power_limit_before_mw) == (True, True, BEFORE_MW)
    assert not left.is_writer_alive()
    process.stdout.close()
    process.stderr.close()


def test_two_processes_one_gpu_never_fight(gpus):
    first = start(gpus, 0, "loop")
    assert first.stdout.readline() == "set\n"
    second = start(gpus, 0, "seconds")
    _, err = second.communicate(timeout=60)
    assert f"another process sets those of Fake A {gpus.uuid(0)} (pid {first.pid} on " in err
    assert second.returncode == 0
    assert not is_restored(gpus, 0)
    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=30)
    assert is_restored(gpus, 0)


def save(moment, runs, changed, times):
    """Keep the raw times where KAREUS_KILL_RESULTS names a directory."""
    directory = os.environ.get("KAREUS_KILL_RESULTS")
    if directory:
        document = {
            "schema": "kareus.bench.kill/1", "moment": moment, "num_kills": runs,
            "num_with_clocks_changed": changed,
            "restored_after_s": times, "device": "fake NVML, 6 ms switching time",
            "machine": platform.platform(),
            "num_cpus": os.cpu_count(), "python": platform.python_version(),
            "command": f"KAREUS_KILL_RUNS={os.environ.get('KAREUS_KILL_RUNS', '20')} pytest -k killed_at",
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }  # fmt: skip
        name = f"device_kill_{moment.replace(' ', '_')}.json"
        Path(directory, name).write_text(json.dumps(document, indent=1) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["locked", "since the start"])
def test_killed_at_random_moments(gpus, moment):
    runs = int(os.environ.get("KAREUS_KILL_RUNS", "20")) // (1 if moment == "locked" else 4)
    dice = random.Random(20)
    times, changed = [], 0
    for batch in range(0, runs, NUM_GPUS):
        processes = {index: start(gpus, index, "loop") for index in range(min(NUM_GPUS, runs - batch))}
        for index, process in processes.items():
            if moment == "locked":
                assert process.stdout.readline() == "set\n"
                time.sleep(dice.uniform(0, 0.3))
            else:
                time.sleep(dice.uniform(0, 1.2))
            changed += not is_restored(gpus, index)
            process.send_signal(signal.SIGKILL)
            begin = time.monotonic()
            wait_restored(gpus, index)
            times.append(time.monotonic() - begin)
        for process in processes.values():
            finish(process)
        time.sleep(0.05)
        assert all(is_restored(gpus, index) for index in processes)  # and nobody set anything afterwards
    print(f"{moment}: {runs} kills, {changed} with clocks changed, restored within {max(times) * 1e3:.0f} ms")
    save(moment, runs, changed, times)
    assert changed == runs or moment != "locked"
    assert max(times) < 5
