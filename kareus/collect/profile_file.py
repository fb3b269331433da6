"""The profile a sweep writes: one sample a block, kept on disk as they come, continued where it stopped."""

from __future__ import annotations

import hashlib
import logging
import os
import statistics
from pathlib import Path
from typing import Any

import msgspec

from kareus.collect import facts
from kareus.collect.collector import Collector
from kareus.collect.launch import Points, launch_points
from kareus.collect.settings import LAUNCH_SHARES, STOCK, Setting
from kareus.collect.workload import workload_from
from kareus.errors import InputError, KareusError
from kareus.model.profile import Conditions, Profile, Sample, Workload
from kareus.schedule import CollectiveKey, Fingerprint, LaunchPoint
from kareus.trace.graph import graphs
from kareus.trace.ranks import TraceSet
from kareus.trace.types import StepGraph

log = logging.getLogger("kareus")
UNKNOWN_CTAS = 24  # NCCL's default on NVLink; only places settings relative to each other


class Store:
    """Samples of this sitting behind those of the file.

    Attributes:
        path: the profile. name: of the workload, a hash of the job's units and world size.
        count: samples of this sitting. points: where gathers could start, empty unknown.
    """

    def __init__(self, path: Path, name: str, conditions: Conditions, previous: Profile | None) -> None:
        self.path, self.name, self.count = path, name, 0
        self._conditions, self._previous = conditions, previous
        self._workload: Workload | None = None
        self._samples: list[Sample] = []
        self.points: Points = {}

    @classmethod
    def open(cls, path: str, fingerprint: Fingerprint, job: Any, *, one_host: bool, date: str) -> Store:
        """Return the store for a job, with what its file already holds.

        Raises:
            InputError: the file exists and is no profile of this kind of GPU.
        """
        shape = msgspec.json.encode((fingerprint.wrapper, fingerprint.world_size, fingerprint.units))
        name = f"{fingerprint.wrapper}-{hashlib.sha256(shape).hexdigest()[:8]}"
        device = facts.device_facts(job.device)
        target = Path(path)
        previous = Profile.load(target) if target.exists() else None
        if previous is not None and previous.gpu != device["gpu"]:
            raise InputError(
                f"{path} is a profile of {previous.gpu}, this job runs on {device['gpu']}; "
                "choose another file"
            )
        conditions = Conditions(
            host_gpu=device["gpu"],
            num_sms=device.get("num_sms", 0),
            link=link_name(job.device.type, one_host),
            world_size=job.world_size,
            versions={k: device[k] for k in ("torch", "cuda", "nccl", "python") if device.get(k)},
            taken=date,
            method="blocks of steps inside the running job, stock blocks between; time of the slowest rank, "
            "energy the mean of all ranks' counters",
        )
        return cls(target, name, conditions, previous)

    @property
    def has_workload(self) -> bool:
        """The file already says what a step of this job runs."""
        return self._previous is not None and self.name in self._previous.workloads

    def keep_workload(self) -> None:
        """Use the workload of the file."""
        if self._previous is not None:
            self._workload = self._previous.workloads.get(self.name)

    def take_workload(self, collector: Collector) -> str:
        """Use what the window recorded; returns why that is impossible, "" where it is not. Never raises."""
        if collector.written is None or not collector.written.trace:
            return collector.problem or "the window wrote no trace"
        try:
            middle = _middle_step(collector.directory / collector.written.trace)
            self.points = launch_points(middle, LAUNCH_SHARES)
            self._workload = workload_from(
                middle, provenance=f"recorded in the same job on {self._conditions.taken}"
            )
        except Exception as error:  # other ranks wait for the answer, so there must be one
            return f"{type(error).__name__}: {error}"
        return ""

    def find_points(self, folder: Path) -> None:
        """Read launch points from the window of an earlier sitting, where it is still there."""
        try:
            self.points = launch_points(_middle_step(folder), LAUNCH_SHARES) if folder.exists() else {}
        except (KareusError, OSError) as error:
            log.warning("kareus: launch points are not varied: %s cannot be read: %s", folder, error)

    @property
    def default_ctas(self) -> int:
        """Thread blocks of a stock collective of this job: the recorded median, 24 where it is unknown."""
        spans = self._workload.spans if self._workload is not None else ()
        known = [c.num_ctas for span in spans for c in span.collectives if c.num_ctas > 0]
        return round(statistics.median(known)) if known else UNKNOWN_CTAS

    def ratios(self, label: str) -> list[float]:
        """Return step time over the stock before it, of earlier sittings."""
        found: list[float] = []
        stock = None
        for sample in self._previous.samples if self._previous is not None else ():
            if sample.step is None or sample.step.workload != self.name:
                continue
            if sample.label == STOCK.label:
                stock = sample.time_us
            elif sample.label == label and stock:
                found.append(sample.time_us / stock)
        return found

    def add(self, setting: Setting, steps_us: list[float], ranks: list[dict[str, Any]]) -> None:
        """Keep one block."""
        energies = [r["energy_j"] for r in ranks]
        known = [e for e in energies if e is not None]
        clocks = [r["clock"] for r in ranks if r["clock"]]
        self.count += 1
        self._samples.append(
            Sample(
                label=setting.label,
                step=setting.as_step(self.name),
                time_us=statistics.fmean(steps_us),
                time_spread_us=statistics.stdev(steps_us) if len(steps_us) > 1 else 0.0,
                energy_j=statistics.fmean(known) if len(known) == len(energies) else None,
                sm_clock_mhz=statistics.fmean(clocks) if clocks else 0.0,
                count=len(steps_us),
                window_s=min(r["window_s"] for r in ranks),
                throttle=tuple(sorted({reason for r in ranks for reason in r["reasons"]})),
                run=self._conditions.taken,
            )
        )

    def save(self) -> None:
        """Write what there is; without a workload nothing can be written yet.

        Raises:
            InputError: the place cannot be written.
        """
        if self._workload is None:
            raise InputError(
                f"{self.path}: what a step runs is not known, so samples mean nothing; see the warning of "
                "the profiler window"
            )
        mine = Profile(
            gpu=self._conditions.host_gpu,
            num_sms=self._conditions.num_sms,
            conditions=(self._conditions,),
            samples=tuple(self._samples),
            workloads={self.name: self._workload},
            provenance=f"measured in place by {facts.command_line()} on {self._conditions.taken}",
        )
        (mine if self._previous is None else self._previous.merge(mine)).save(self.path)


def _middle_step(path: Path) -> StepGraph:
    """Return the recorded step of the median duration, of the first rank."""
    traces = TraceSet.open(path)
    steps = graphs(traces.load(traces.ranks[0]))
    return sorted(steps, key=lambda step: step.duration_ns)[len(steps) // 2]


def pack_points(points: Points) -> list[list[Any]]:
    """Return launch points as JSON can hold them."""
    return [[share, key, point] for share, moved in points.items() for key, point in moved.items()]


def unpack_points(packed: list[list[Any]]) -> Points:
    """Undo `pack_points`, after JSON."""
    found: dict[float, dict[CollectiveKey, LaunchPoint]] = {}
    for share, key, point in packed:
        moved = found.setdefault(float(share), {})
        moved[msgspec.convert(key, CollectiveKey)] = msgspec.convert(point, LaunchPoint)
    return found


def link_name(device: str, one_host: bool) -> str:
    """Return how ranks reach each other, as conditions name it."""
    if device != "cuda":
        return "gloo"
    if not one_host:
        return "network"
    return "host-memory" if os.environ.get("NCCL_P2P_DISABLE") == "1" else "nvlink"
