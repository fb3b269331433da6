"""How late a clock plan is carried out, on the fake NVML (no GPU is touched).

    python tests/bench/bench_governor.py -o tests/bench/results/device_governor_fake.json

A plan of random regions, each longer than the dwell, is played through events; a second thread notes when
each region's clock is in force. What is measured is the governor; the GPU is a model with 6 ms switching.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "fake_nvml"))

from fake_gpu import FakeGpus, build

from kareus.device import Governor, permissions
from kareus.device.nvml import session
from kareus.device.visible import open_gpu
from kareus.schedule import ClockRegion, LaunchPoint

CLOCKS_MHZ = (900, 1200, 1500, 1800)
DWELL_S = 0.2


class Event:
    """An event that the GPU passes when told."""

    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed


def play(fake: FakeGpus, num_regions: int) -> dict[str, object]:
    """Play a plan and return how late each region's clock came, s."""
    permissions.has_sys_admin = lambda status=None: True  # what the fake allows is what counts
    point = LaunchPoint(module="", phase="forward", side="before")
    governor = Governor(
        open_gpu(session(), 0),
        [ClockRegion(start=point, sm_clock_mhz=clock) for clock in CLOCKS_MHZ],
        "apply",
        min_dwell_s=DWELL_S,
    ).start()
    begin = time.monotonic()
    while (
        governor.report().restored
    ):  # until it holds lock, journal and watchdog, before which nothing is set
        time.sleep(0.005)
    startup_s = time.monotonic() - begin
    dice = random.Random(4)
    late: list[float] = []
    region = -1
    events = [Event() for _ in range(num_regions)]
    plan = []
    for event in events:  # the CPU issues everything at once: it runs far ahead of the GPU
        region = dice.choice([index for index in range(len(CLOCKS_MHZ)) if index != region])
        plan.append(region)
        governor.enter(region, event)
    for region, event in zip(plan, events, strict=True):
        begin = time.monotonic()
        event.passed = True
        done = threading.Event()
        while fake.get("sm_lock_mhz") != CLOCKS_MHZ[region] and not done.wait(0.001):
            if time.monotonic() - begin > 30:
                raise SystemExit("the governor did not follow")
        late.append(time.monotonic() - begin)
        time.sleep(DWELL_S * dice.uniform(1.1, 2.0))
    report = governor.stop()
    return {
        "startup_s": startup_s, "late_s": late, "max_late_s": max(late),
        "within_one_dwell": sum(seconds <= DWELL_S for seconds in late),
        "num_regions": num_regions, "dwell_s": DWELL_S, "sets": report.sets, "verdicts": report.verdicts,
        "switch_times_s": report.switch_times_s, "predicted": report.predicted, "restored": report.restored,
    }  # fmt: skip


def main() -> int:
    """Run and write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--regions", type=int, default=40)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["KAREUS_STATE_DIR"] = str(Path(directory, "state"))
        os.environ["LD_LIBRARY_PATH"] = directory
        fake = FakeGpus(build(Path(directory)), Path(directory, "gpus"), 1)
        fake.set(0, load_permille=1000)
        result = play(fake, args.regions)
    document = {
        "schema": "kareus.bench.governor/1", "device": "fake NVML, 6 ms switching time",
        "command": " ".join(sys.argv), "machine": platform.platform(), "num_cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0], "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **result,
    }  # fmt: skip
    Path(args.output).write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
