"""The crash journal: written before the first set, removed after the last reset.

One file a GPU. What it says is enough to put the GPU back in order, for the watchdog's successor, for the
next job on the GPU, and for `kareus reset-clocks` after the machine was lost.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from kareus.device.control import Undo
from kareus.device.gpu import Gpu
from kareus.device.locks import state_dir
from kareus.errors import InputError
from kareus.schema import read_document, write_document

SCHEMA = "kareus.journal/1"


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who changed which GPU, and what it was before.

    Attributes:
        gpu_uuid, pci_bus_id, gpu_name: the GPU.
        pid, pid_start_ticks: the process (pids are reused, start times in clock ticks are not).
        boot_id, host: the boot it ran in; a reboot removes locks and limits by itself.
        sm_lock, memory_lock, power_limit_before_mw: as in `control.Undo`.
        written_at_s: seconds since the epoch.
    """

    gpu_uuid: str
    pci_bus_id: str
    gpu_name: str
    pid: int
    pid_start_ticks: int
    boot_id: str
    host: str
    sm_lock: bool
    memory_lock: bool
    power_limit_before_mw: int | None
    written_at_s: float
    schema: str = SCHEMA

    @property
    def undo(self) -> Undo:
        """What must be put back."""
        return Undo(
            sm_lock=self.sm_lock, memory_lock=self.memory_lock,
            power_limit_before_mw=self.power_limit_before_mw,
        )  # fmt: skip

    def is_from_this_boot(self) -> bool:
        """False when the machine was rebooted since: then there is nothing to undo."""
        return not self.boot_id or self.boot_id == boot_id()

    def is_writer_alive(self) -> bool:
        """True while the process that wrote it runs."""
        return self.is_from_this_boot() and start_ticks(self.pid) == self.pid_start_ticks


def boot_id() -> str:
    """Return the kernel's identifier of this boot, "" unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; -1 where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return -1
    fields = text.rpartition(")")[2].split()
    return -1 if fields[0] in ("Z", "X") else int(fields[19])


def entry_for(gpu: Gpu, what: Undo) -> JournalEntry:
    """Return this process's entry for a GPU."""
    return JournalEntry(
        gpu_uuid=gpu.uuid, pci_bus_id=gpu.pci_bus_id, gpu_name=gpu.name,
        pid=os.getpid(), pid_start_ticks=start_ticks(os.getpid()), boot_id=boot_id(),
        host=os.uname().nodename,
        sm_lock=what.sm_lock, memory_lock=what.memory_lock, power_limit_before_mw=what.power_limit_before_mw,
        written_at_s=time.time(),
    )  # fmt: skip


def journal_path(gpu_uuid: str, directory: Path | None = None) -> Path:
    """Return where the journal of a GPU lies."""
    return (directory or state_dir()) / f"{gpu_uuid or 'unknown'}.journal.json"


def write_entry(entry: JournalEntry, directory: Path | None = None) -> Path:
    """Write an entry so that it survives this process and a loss of power.

    Raises:
        InputError, OSError: it cannot be written; then clocks must not be set.
    """
    path = journal_path(entry.gpu_uuid, directory)
    document = msgspec.to_builtins(entry)
    write_document(path, {"schema": document.pop("schema"), **document})
    for target in (path, path.parent):
        fd = os.open(target, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    return path


def read_entry(gpu_uuid: str, directory: Path | None = None) -> JournalEntry | None:
    """Return the journal of a GPU; None where there is none.

    Raises:
        InputError: a file is there and is not a journal.
    """
    path = journal_path(gpu_uuid, directory)
    return read_document(path, JournalEntry, SCHEMA) if path.exists() else None


def read_all(directory: Path | None = None) -> tuple[list[JournalEntry], list[str]]:
    """Return all journals of this machine, and a sentence for each that cannot be read."""
    entries, problems = [], []
    for path in sorted((directory or state_dir()).glob("*.journal.json")):
        try:
            entries.append(read_document(path, JournalEntry, SCHEMA))
        except InputError as error:
            problems.append(str(error))
    return entries, problems


def remove_entry(gpu_uuid: str, directory: Path | None = None) -> None:
    """Remove a GPU's journal; nothing happens where there is none.

    Raises:
        OSError: it exists and cannot be removed.
    """
    journal_path(gpu_uuid, directory).unlink(missing_ok=True)
