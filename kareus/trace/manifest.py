"""manifest.json: what was recorded, where, with what, and what that machine can do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from kareus.schema import read_document, write_document

SCHEMA = "kareus.manifest/1"
FILE_NAME = "manifest.json"


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine of the job: its name, the ranks on it and their GPUs' UUIDs where known."""

    name: str
    ranks: tuple[int, ...]
    gpus: tuple[str, ...] = ()


class Gradient(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One gradient that DDP reduces: path of the module that owns its parameter, elements, bytes."""

    module: str
    numel: int
    num_bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts about a recording; "" and 0 mean unknown.

    Attributes:
        description: a sentence on what was recorded.
        date: ISO 8601, UTC. command: how it was recorded.
        gpu, num_sms, driver, cuda, torch, nccl, python: hardware and versions.
        world_size: ranks of the job. hosts: who ran where.
        files: trace file of each rank, by rank as text. samples: NVML sample file of each rank.
        missing: ranks that wrote nothing, with the reason.
        capabilities: what `kareus doctor` found; see kareus.plan.knobs.
        gradients: of a DDP model, in the order in which its parameters are registered.
        measured: figures measured without the profiler (step_ms, energy_j, ...); their spread is in `notes`.
        notes: anything a reader must know.
    """

    schema: str = SCHEMA
    description: str = ""
    date: str = ""
    command: str = ""
    gpu: str = ""
    num_sms: int = 0
    driver: str = ""
    cuda: str = ""
    torch: str = ""
    nccl: str = ""
    python: str = ""
    world_size: int = 0
    hosts: tuple[Host, ...] = ()
    files: dict[str, str] = {}
    samples: dict[str, str] = {}
    missing: dict[str, str] = {}
    capabilities: dict[str, Any] = {}
    gradients: tuple[Gradient, ...] = ()
    measured: dict[str, float] = {}
    notes: tuple[str, ...] = ()

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Manifest | None:
        """Return a directory's manifest, None where it has none.

        Raises:
            InputError: there is one and it cannot be used.
        """
        path = Path(directory) / FILE_NAME
        return read_document(path, cls, SCHEMA) if path.exists() else None

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write manifest.json atomically into a directory."""
        write_document(Path(directory) / FILE_NAME, self)
