"""NVML samples beside a trace: rank0.samples.json, columns of equal length."""

from __future__ import annotations

import os

import msgspec
import numpy as np

from kareus.errors import InputError
from kareus.schema import read_document, write_document
from kareus.trace.types import PowerSamples

SCHEMA = "kareus.samples/1"


class SamplesDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file; see PowerSamples for units."""

    schema: str = SCHEMA
    time_ns: list[int]
    energy_mj: list[int]
    power_mw: list[int]
    sm_clock_mhz: list[int]


def read_samples(path: str | os.PathLike[str]) -> PowerSamples:
    """Read a sample file.

    Raises:
        InputError: not such a file, or columns of different length.
    """
    document = read_document(path, SamplesDocument, SCHEMA)
    columns = (document.time_ns, document.energy_mj, document.power_mw, document.sm_clock_mhz)
    if len({len(column) for column in columns}) != 1:
        raise InputError(f"{path}: columns of {[len(c) for c in columns]} rows; expected equal lengths")
    return PowerSamples(
        time_ns=np.array(columns[0], np.int64),
        energy_mj=np.array(columns[1], np.int64),
        power_mw=np.array(columns[2], np.int64),
        sm_clock_mhz=np.array(columns[3], np.int64),
    )


def write_samples(path: str | os.PathLike[str], samples: PowerSamples) -> None:
    """Write a sample file atomically."""
    write_document(
        path,
        SamplesDocument(
            time_ns=samples.time_ns.tolist(),
            energy_mj=samples.energy_mj.tolist(),
            power_mw=samples.power_mw.tolist(),
            sm_clock_mhz=samples.sm_clock_mhz.tolist(),
        ),
    )
