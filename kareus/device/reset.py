"""Undoing what dead jobs left behind, from their crash journals."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from kareus.device.control import Undo, undo
from kareus.device.gpu import Gpu
from kareus.device.journal import JournalEntry, read_all, remove_entry
from kareus.device.locks import GpuLock, state_dir
from kareus.device.nvml import Failure, session
from kareus.device.permissions import controller_for
from kareus.device.visible import read_inventory
from kareus.device.watchdog import tidy_up
from kareus.errors import HardwareError


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What happened to one GPU.

    Attributes:
        gpu_uuid, gpu_name: the GPU.
        ok: nothing is left to do. done: something was set.
        text: what happened, in a sentence.
    """

    gpu_uuid: str
    gpu_name: str
    ok: bool
    done: bool
    text: str


def describe(what: Undo) -> str:
    """Return "remove the SM clock lock, set the power limit to 650 W"."""
    parts = []
    if what.sm_lock:
        parts.append("remove the SM clock lock")
    if what.memory_lock:
        parts.append("remove the memory clock lock")
    if what.power_limit_before_mw is not None:
        parts.append(f"set the power limit to {what.power_limit_before_mw / 1000:g} W")
    return ", ".join(parts) or "nothing to undo"


def reset_from_journals(*, dry_run: bool = False) -> list[Outcome]:
    """Undo what the journals of this machine name and whose writers are dead.

    Raises:
        HardwareError: the state directory cannot be read.
    """
    try:
        directory = state_dir(create=False)
        entries, problems = read_all(directory)
    except OSError as error:
        raise HardwareError(
            f"cannot read the crash journals: {error}; set KAREUS_STATE_DIR to their directory"
        ) from error
    broken = [Outcome(gpu_uuid="", gpu_name="", ok=False, done=False, text=problem) for problem in problems]
    return [_reset_one(entry, directory, dry_run) for entry in entries] + broken


def _reset_one(entry: JournalEntry, directory: Path, dry_run: bool) -> Outcome:
    def outcome(text: str, *, ok: bool, done: bool = False) -> Outcome:
        return Outcome(gpu_uuid=entry.gpu_uuid, gpu_name=entry.gpu_name, ok=ok, done=done, text=text)

    if entry.is_writer_alive():
        return outcome(f"left alone: process {entry.pid} runs and restores by itself", ok=True)
    lock = GpuLock(entry.gpu_uuid, "control", directory)
    try:
        if not lock.acquire():
            return outcome(f"left alone: its clocks are held by {lock.holder or 'another process'}", ok=True)
    except OSError as error:
        return outcome(f"not reset: {error}; run as root", ok=False)
    try:
        what = describe(entry.undo)
        if dry_run:
            return outcome(f"would {what} (process {entry.pid} is gone)", ok=True)
        if not entry.is_from_this_boot():
            remove_entry(entry.gpu_uuid, directory)
            return outcome("the machine was restarted since: nothing to undo, journal removed", ok=True)
        problems = tidy_up(entry, directory, limit_s=0.0)
        if problems:
            return outcome(f"not reset: {'; '.join(problems)}", ok=False)
        return outcome(f"done: {what}", ok=True, done=True)
    except OSError as error:
        return outcome(f"reset, but the journal cannot be removed: {error}", ok=False, done=True)
    finally:
        lock.release()


def reset_locks(*, skip: Collection[str], dry_run: bool = False) -> list[Outcome]:
    """Remove clock locks of all GPUs, whoever set them, apart from those in `skip` (UUIDs).

    Raises:
        HardwareError: NVML cannot be used.
    """
    nvml = session()
    if not nvml.started:
        raise HardwareError(f"NVML cannot be used: {nvml.start()}")
    outcomes = []
    for physical in read_inventory(nvml):
        if physical.uuid in skip:
            continue
        handle = nvml.call("nvmlDeviceGetHandleByIndex", physical.index)
        text = str(handle)
        failed = isinstance(handle, Failure)
        if not failed and dry_run:
            text = "would remove clock locks"
        elif not failed:
            gpu = Gpu(nvml, handle, physical.index)
            failures = undo(controller_for(gpu), gpu, Undo(sm_lock=True, memory_lock=True), attempts=1)
            failed = bool(failures)
            text = f"not reset: {failures[0]}" if failures else "done: clock locks removed"
        done = not failed and not dry_run
        outcomes.append(
            Outcome(gpu_uuid=physical.uuid, gpu_name=physical.name, ok=not failed, done=done, text=text)
        )
    return outcomes
