"""A stand-in for a training process that sets clocks; run by tests and killed by them.

    python training.py NUM_GPUS-INDEX ENDING

It enters regions in turn, as fast as a dwell of 20 ms allows, and then ends as ENDING says.
"""

import os
import signal
import subprocess
import sys
import time

from kareus.device import Governor, permissions
from kareus.device.nvml import session
from kareus.device.visible import open_gpu
from kareus.schedule import ClockRegion, LaunchPoint

permissions.has_sys_admin = lambda status=None: True  # what the fake allows is what counts


def governor(index):
    point = LaunchPoint(module="", phase="forward", side="before")
    regions = [
        ClockRegion(start=point, sm_clock_mhz=1200, memory_clock_mhz=2201, power_limit_w=500.0),
        ClockRegion(start=point, sm_clock_mhz=1500, memory_clock_mhz=3201, power_limit_w=600.0),
    ]
    gpu = open_gpu(session(), index)
    return Governor(gpu, regions, "apply", min_dwell_s=0.02, poll_s=0.002).start()


def train(running, seconds):
    end = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < end:
        running.enter(turn % 2)
        turn += 1
        time.sleep(0.005)
        if running.report().sets >= 3:
            print("set", flush=True)
            return


def main():
    index, ending = int(sys.argv[1]), sys.argv[2]
    if ending == "handled":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    running = governor(index)
    train(running, 1 if ending == "seconds" else 30)
    if ending == "exception":
        raise ValueError("training failed")
    if ending == "hard exit":
        os._exit(3)
    if ending == "exec":
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(1)"])
    if ending == "fork":  # a data loader worker that outlives its parent and holds its pipes
        if os.fork() == 0:
            time.sleep(8)
            os._exit(0)
        print(running._claim._watchdog._process.pid, flush=True)
    if ending == "child":
        subprocess.run([sys.executable, "-c", "print('child', flush=True)"], check=True)
    if ending in ("loop", "fork", "handled", "signal"):
        turn = 0
        while True:
            running.enter(turn % 2)
            turn += 1
            time.sleep(0.003)


main()
