"""NVML samples beside a recording: power, clock and energy counter of this rank's GPU."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from kareus.collect.facts import gpu_uuid
from kareus.collect.files import samples_name
from kareus.device.gpu import Gpu
from kareus.device.nvml import Failure, session
from kareus.device.sampler import Sampler
from kareus.device.visible import open_gpu
from kareus.errors import InputError
from kareus.trace.samples import write_samples
from kareus.trace.types import PowerSamples

log = logging.getLogger("kareus")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Handle:
    gpu: Gpu


class PowerRecorder:
    """Samples while a window is open; does nothing where there is no GPU or no NVML.

    Attributes:
        driver: NVIDIA driver version, "" unknown.
    """

    def __init__(self, device: torch.device) -> None:
        self.driver = ""
        self._device = device
        self._sampler: Sampler | None = None

    def start(self) -> None:
        """Begin sampling."""
        if self._device.type != "cuda":
            return
        nvml = session()
        if not nvml.started:
            return
        gpu = open_gpu(nvml, self._device.index or 0, uuid=gpu_uuid(self._device) or None)
        if gpu is None:
            return
        version = nvml.call("nvmlSystemGetDriverVersion")
        self.driver = "" if isinstance(version, Failure) else str(version)
        self._sampler = Sampler(_Handle(gpu=gpu)).start()

    def stop(self) -> PowerSamples:
        """End sampling and return the samples."""
        sampler, self._sampler = self._sampler, None
        return PowerSamples() if sampler is None else sampler.stop()

    def write(self, directory: Path, rank: int) -> str:
        """End sampling and write the samples; returns the file name, "" where nothing was written."""
        samples = self.stop()
        if len(samples.time_ns) == 0:
            return ""
        name = samples_name(rank)
        try:
            write_samples(directory / name, samples)
        except InputError as error:
            log.warning("kareus rank %d: no power samples: %s", rank, error)
            return ""
        return name
