"""NVML: energy, power, clocks, permissions. Never imports torch; `pynvml` is imported on first use.

    meter = kareus.device.open_meter(local_rank)      # None where there is no NVML
    meter.begin("steps"); ...; reading = meter.end("steps")

Nothing here raises into its caller's training loop: readings are None where there are none, failures are
logged once and counted.
"""

from kareus.device.energy import EnergyMeter, EnergyReading, EnergySnapshot, open_meter
from kareus.device.governor import Event, Governor, GovernorReport
from kareus.device.gpu import Gpu
from kareus.device.manifest import findings
from kareus.device.sampler import Sampler

__all__ = [
    "EnergyMeter",
    "EnergyReading",
    "EnergySnapshot",
    "Event",
    "Governor",
    "GovernorReport",
    "Gpu",
    "Sampler",
    "findings",
    "open_meter",
]
