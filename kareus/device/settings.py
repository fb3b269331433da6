"""Clock settings as values: what a region asks for, fitted to what the card supports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from kareus.device.gpu import Gpu
from kareus.schedule import ClockRegion


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings in force or wanted; None leaves a value alone.

    Attributes:
        power_limit_mw: board power limit, mW.
        memory_clock_mhz, sm_clock_mhz: locked clocks, MHz.
    """

    power_limit_mw: int | None = None
    memory_clock_mhz: int | None = None
    sm_clock_mhz: int | None = None

    def merged(self, other: Settings) -> Settings:
        """Return these settings with the other's values where it has any."""
        given = {name: getattr(other, name) for name in NAMES if getattr(other, name) is not None}
        return replace(self, **given)

    def with_value(self, name: str, value: int) -> Settings:
        """Return these settings with one value changed."""
        return replace(self, **{name: value})

    def changes_from(self, before: Settings) -> tuple[str, ...]:
        """Return the names of the values that must be set, limit first."""
        return tuple(name for name in NAMES if getattr(self, name) not in (None, getattr(before, name)))

    def describe(self, names: Sequence[str]) -> str:
        """Return "SM clock 1410 MHz, power limit 600 W" for the values named."""
        words = {
            "power_limit_mw": f"power limit {(self.power_limit_mw or 0) / 1000:g} W",
            "memory_clock_mhz": f"memory clock {self.memory_clock_mhz} MHz",
            "sm_clock_mhz": f"SM clock {self.sm_clock_mhz} MHz",
        }
        return ", ".join(words[name] for name in names)


NAMES = tuple(field.name for field in fields(Settings))


def nearest(value: int, supported: Sequence[int]) -> int:
    """Return the supported value closest to `value`, the lower of two; `value` where none are known.

    Drivers accept values that are not supported and then apply something else.
    """
    return min(supported, key=lambda candidate: (abs(candidate - value), candidate)) if supported else value


def settings_of(region: ClockRegion, gpu: Gpu) -> Settings:
    """Return a region's settings, fitted to the card's supported clocks and power limit range."""
    memory = region.memory_clock_mhz
    if memory is not None:
        memory = nearest(memory, gpu.supported_memory_clocks_mhz())
    sm = region.sm_clock_mhz
    if sm is not None:
        sm = nearest(sm, gpu.supported_sm_clocks_mhz(memory))
    limit = None
    if region.power_limit_w is not None:
        limit = round(region.power_limit_w * 1000)
        allowed = gpu.power_limit_range_mw()
        if allowed is not None:
            limit = min(max(limit, allowed[0]), allowed[1])
    return Settings(power_limit_mw=limit, memory_clock_mhz=memory, sm_clock_mhz=sm)
