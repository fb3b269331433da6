"""A small process that puts the GPU back in order when training dies without a chance to do so (SIGKILL).

It waits for its parent: "bye" on its input means that the parent has
tidied up itself; the parent's death means that it has not. It inherits the GPU's control lock, so nobody
else sets clocks before they are restored. A scheduler that kills a whole container or cgroup kills it
too; then the crash journal is left for the next job and for `kareus reset-clocks`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from kareus.device.control import undo
from kareus.device.journal import JournalEntry, remove_entry
from kareus.device.nvml import Nvml
from kareus.device.permissions import controller_for
from kareus.device.visible import open_gpu

# Not `-m`: the package imports this module before it could run as __main__, and Python warns about that.
_ENTRY = "import sys; from kareus.device.watchdog import main; sys.exit(main(sys.argv[1:]))"
READY_S = 20.0  # starting Python can take seconds on a busy node; nobody waits for it but the governor
UNDO_FOR_S = 60.0  # how long the watchdog keeps trying


class Watchdog:
    """The parent's side of a running watchdog process."""

    def __init__(self, entry: JournalEntry, directory: Path, lock_fd: int) -> None:
        package_root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
        arguments = [msgspec.json.encode(entry).decode(), str(directory), str(os.getpid()), str(lock_fd)]
        # -P keeps the user's working directory off the path; a session of its own keeps Ctrl-C away
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _ENTRY, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            pass_fds=(lock_fd,), cwd="/", env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    def wait_ready(self, timeout_s: float = READY_S) -> bool:
        """Wait until it watches; False where it ended or took too long."""
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], timeout_s)
        return bool(ready) and out.readline() == b"ready\n"

    @property
    def alive(self) -> bool:
        """True while it runs."""
        return self._process.poll() is None

    def dismiss(self, timeout_s: float = 5.0) -> None:
        """Say that everything is in order; wait for it to end."""
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.write(b"bye\n")
            self._process.stdin.flush()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout_s)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def parent_said_bye(parent_pid: int) -> bool:
    """Wait for the parent. True: it said "bye". False: it died, or replaced itself, without a word.

    Three signs of death are watched, because each fails somewhere: the pipe stays open while forked
    children of the parent live, pidfds need Linux 5.3, and the parent's pid changes only for a child.
    """
    poller = select.poll()
    poller.register(0, select.POLLIN)
    pidfd = -1
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(parent_pid)
            poller.register(pidfd, select.POLLIN)
    while True:
        signs = {fd for fd, _ in poller.poll(250)}
        if 0 in signs:
            return os.read(0, 64).startswith(b"bye")
        if pidfd in signs or os.getppid() != parent_pid:
            return False


def tidy_up(entry: JournalEntry, directory: Path, *, limit_s: float = UNDO_FOR_S) -> list[str]:
    """Undo what a journal entry names and remove the journal.

    Returns:
        One sentence for each thing that could not be undone; the journal then stays.
    """
    nvml = Nvml()
    end = time.monotonic() + limit_s
    while True:
        problems = _try_once(nvml, entry)
        if not problems:
            remove_entry(entry.gpu_uuid, directory)
            return []
        if time.monotonic() >= end:
            return problems
        time.sleep(0.5)


def _try_once(nvml: Nvml, entry: JournalEntry) -> list[str]:
    failure = nvml.start()
    if failure is not None:
        return [str(failure)]
    gpu = open_gpu(nvml, 0, uuid=entry.gpu_uuid, env={"CUDA_VISIBLE_DEVICES": ""})
    if gpu is None:
        return [f"NVML has no GPU {entry.gpu_uuid}"]
    # No preflight: it could set, so it may undo, and NVML itself says so where that has changed.
    return [str(failure) for failure in undo(controller_for(gpu), gpu, entry.undo)]


def main(arguments: list[str]) -> int:
    """Run the watchdog: journal entry as JSON, state directory, parent's pid, lock's file number."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    entry = msgspec.json.decode(arguments[0], type=JournalEntry)
    directory, parent_pid = Path(arguments[1]), int(arguments[2])
    nvml = Nvml()
    if nvml.start() is not None:
        return 6
    os.write(1, b"ready\n")
    if parent_said_bye(parent_pid):
        return 0
    problems = tidy_up(entry, directory)
    where = entry.gpu_name or entry.gpu_uuid
    text = f"kareus watchdog: training ended abruptly; clocks of {where} are as before\n"
    if problems:
        reasons = "; ".join(problems)
        text = f"kareus watchdog: could not restore {where}: {reasons}. Run `kareus reset-clocks` as root\n"
    with contextlib.suppress(OSError):
        os.write(2, text.encode("ascii", "replace"))
    return 6 if problems else 0
