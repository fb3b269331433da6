"""Who may do what with a GPU: file locks that the kernel drops when their holder dies.

Lock files and crash journals live in one machine-local directory: KAREUS_STATE_DIR, or /var/tmp/kareus,
which every user of the machine shares (it has the sticky bit) and which outlives a reboot.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Literal

DEFAULT_STATE_DIR = "/var/tmp/kareus"


def state_dir(*, create: bool = True) -> Path:
    """Return the directory for locks and journals, made where it does not exist and `create` is set.

    Raises:
        OSError: it cannot be made.
    """
    chosen = os.environ.get("KAREUS_STATE_DIR")
    path = Path(chosen or DEFAULT_STATE_DIR)
    if create and not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        if not chosen:
            path.chmod(0o1777)
    return path


class GpuLock:
    """An exclusive claim on one GPU for one purpose.

    The claim belongs to an open file: a child that inherits `fileno` holds it too, so a watchdog keeps it
    until it has put the GPU back in order.

    Attributes:
        kind: "meter" (counts the GPU's energy for the job) or "control" (sets its clocks).
        holder: what the present holder wrote about itself, "" unknown; valid after a failed `acquire`.
    """

    def __init__(
        self, gpu_uuid: str, kind: Literal["meter", "control"], directory: Path | None = None
    ) -> None:
        self.kind = kind
        self.holder = ""
        self._path = (directory or state_dir()) / f"{gpu_uuid or 'unknown'}.{kind}.lock"
        self._fd = -1

    @property
    def held(self) -> bool:
        """True while this object holds the claim."""
        return self._fd >= 0

    def fileno(self) -> int:
        """The open file that carries the claim, -1 when not held."""
        return self._fd

    def acquire(self) -> bool:
        """Claim the GPU; False (with `holder` set) when somebody else has it.

        Raises:
            OSError: the lock file cannot be opened.
        """
        if self.held:
            return True
        fd = self._open()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.holder = os.pread(fd, 200, 0).decode("ascii", "replace").strip()
            os.close(fd)
            return False
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"pid {os.getpid()} on {os.uname().nodename}\n".encode("ascii", "replace"), 0)
        self._fd = fd
        return True

    def release(self) -> None:
        """Give the claim back, for every process that inherited it."""
        if self.held:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        # An existing file is opened without O_CREAT: Linux refuses O_CREAT on another user's file in a
        # sticky directory (fs.protected_regular), and a shared GPU is exactly that case.
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(self._path, flags)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
        fd = os.open(self._path, flags | os.O_CREAT, 0o666)
        if os.fstat(fd).st_uid == os.geteuid():
            os.fchmod(fd, 0o666)
        return fd


def family(pid: int) -> bool:
    """True when a process belongs to this job: itself, its children, or siblings under one launcher."""
    if pid == os.getpid():
        return True
    parent = _parent(pid)
    if parent is None:
        return False
    return parent in (os.getpid(), os.getppid()) or pid == os.getppid()


def foreign_processes(pids: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return those processes on a GPU that are not of this job; None where that cannot be told.

    NVML numbers processes as the host does. In a container with PID numbers of its own this process is
    not in the list, and then nothing can be said.
    """
    if pids is None:
        return None
    if pids and os.getpid() not in pids and not any(family(pid) for pid in pids):
        visible = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        if len(visible) != len(pids):
            return None
    return tuple(pid for pid in pids if not family(pid))


def _parent(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[1])
