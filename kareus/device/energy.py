"""Energy of named windows: the NVML counter, else integrated power, else no reading (never zero).

The counter moves about every 100 ms, so both ends of a window are uncertain by one period. A window
shorter than `SHORT_WINDOW_PERIODS` of them is flagged: at 20 periods the worst case is 5 %.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kareus.device.gpu import Gpu
from kareus.device.locks import GpuLock, foreign_processes
from kareus.device.nvml import rank_prefix, session
from kareus.device.period import CounterPeriod, measure_counter_period
from kareus.device.sampler import Sample, Sampler
from kareus.device.visible import open_gpu

logger = logging.getLogger("kareus.device")

SHORT_WINDOW_PERIODS = 20
STALL_PERIODS = 5  # a counter unchanged for so long while power is drawn does not work
GAP_PERIODS = 10  # sampling periods without a power reading before a window is flagged
DISAGREEMENT = 0.10  # share by which counter and integrated power may differ before it is flagged

Source = Literal["counter", "power", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyReading:
    """The energy of one window of one GPU.

    Attributes:
        energy_j: joules of the whole GPU, None where nothing could be read or another rank counts it.
        seconds: length of the window.
        source: where `energy_j` comes from.
        flags: "short" (see module), "not_owner" (another rank reports this GPU), "counter_went_back",
            "counter_stalled", "sources_disagree", "power_average" (one-second averages were integrated),
            "no_energy_source", "power_gap" (samples were missing), "unknown_window", "mig" (energy of
            the whole GPU, not of the instance).
        uncertainty_j: most the counter's period can add or hide, J; 0 where not from the counter.
        power_to_counter: integrated power divided by the counter's energy; None where one is missing or
            the window is short.
    """

    energy_j: float | None
    seconds: float
    source: Source
    flags: tuple[str, ...] = ()
    uncertainty_j: float = 0.0
    power_to_counter: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergySnapshot:
    """One reading: absolute time, counter (mJ), power (mW), SM clock (MHz); None where there is none."""

    time_ns: int
    energy_mj: int | None
    power_mw: int | None
    sm_clock_mhz: int | None


class EnergyMeter:
    """Energy windows on one GPU; windows may nest and overlap. Never raises.

    The caller synchronises the GPU before `begin` and `end` where a window shall cover exactly its work.

    Attributes:
        gpu: the GPU read.
        owner: this process reports the GPU's energy; others see "not_owner".
        period: of the counter; measured in the background, assumed until then.
        disagreements: windows in which counter and integrated power differed by more than 10 %.
    """

    def __init__(self, gpu: Gpu, *, owner: bool = True, period: CounterPeriod | None = None,
                 sample_period_s: float = 0.05) -> None:  # fmt: skip
        self.gpu = gpu
        self.owner = owner
        self.period = period or CounterPeriod()
        self.disagreements = 0
        self._windows: dict[str, tuple[Sample, int]] = {}
        self._lock: GpuLock | None = None
        self._closed = threading.Event()
        self._sampler = Sampler(gpu, sample_period_s)
        first = self._sampler.take()
        self.has_counter = first.energy_mj is not None
        self.has_power = first.power_mw is not None
        self._sampler.start()
        if self.has_counter and period is None:
            threading.Thread(target=self._measure_period, name="kareus-period", daemon=True).start()
        if not self.has_counter:
            instead = (
                f"integrating {gpu.power_field} power" if self.has_power else "there will be no readings"
            )
            logger.warning("%s%s has no energy counter; %s.", rank_prefix(), gpu.name or "the GPU", instead)

    @property
    def source(self) -> Source:
        """Where readings will come from."""
        return "counter" if self.has_counter else "power" if self.has_power else "none"

    def settle_owner(self, peers: Sequence[int], local_rank: int) -> bool:
        """Decide who reports this GPU from what all local ranks use, instead of by lock.

        Args:
            peers: `meter.gpu.index` of every local rank, in rank order.
            local_rank: this process's place in it.

        Returns:
            Whether this process reports it: the lowest local rank on a GPU does.
        """
        self.owner = self.gpu.index not in peers[:local_rank]
        return self.owner

    def begin(self, name: str) -> None:
        """Open a window; a window of the same name that is still open starts again."""
        self._windows[name] = (self._sampler.take(), self._sampler.counter_backsteps)

    def end(self, name: str) -> EnergyReading:
        """Close a window and return its energy."""
        opened = self._windows.pop(name, None)
        if opened is None:
            return EnergyReading(energy_j=None, seconds=0.0, source="none", flags=("unknown_window",))
        start, backsteps = opened
        end = self._sampler.take()
        seconds = (end.monotonic_ns - start.monotonic_ns) / 1e9
        flags = ["mig"] if self.gpu.mig else []
        if not self.owner:
            return EnergyReading(energy_j=None, seconds=seconds, source="none", flags=(*flags, "not_owner"))
        counter_j = self._counter_j(start, end, seconds, self._sampler.counter_backsteps - backsteps, flags)
        power_j, gap_s = self._sampler.energy_between_j(start, end)
        if self.has_power and (power_j is None or gap_s > GAP_PERIODS * self._sampler.period_s):
            flags.append("power_gap")
        return self._choose(counter_j, power_j, seconds, flags)

    def read(self) -> EnergySnapshot:
        """Read counter, power and clock now."""
        return self._snapshot(self._sampler.take())

    def latest(self) -> EnergySnapshot:
        """Return what the sampling thread read last; costs the caller nothing."""
        return self._snapshot(self._sampler.latest())

    def pause(self) -> None:
        """Stop sampling until `resume`; a window open meanwhile has only the counter at its ends."""
        self._sampler.stop()

    def resume(self) -> None:
        """Sample again."""
        self._sampler.start()

    @staticmethod
    def _snapshot(sample: Sample) -> EnergySnapshot:
        return EnergySnapshot(
            time_ns=sample.time_ns, energy_mj=sample.energy_mj, power_mw=sample.power_mw,
            sm_clock_mhz=sample.sm_clock_mhz,
        )  # fmt: skip

    def foreign_processes(self) -> tuple[int, ...] | None:
        """Processes on this GPU that are not of this job (their energy is in the readings); None unknown."""
        return foreign_processes(self.gpu.compute_pids())

    def close(self) -> None:
        """Stop sampling and give the GPU's ownership back."""
        self._closed.set()
        self._sampler.stop()
        if self._lock is not None:
            self._lock.release()

    def _counter_j(
        self, start: Sample, end: Sample, seconds: float, backsteps: int, flags: list[str]
    ) -> float | None:
        if start.energy_mj is None or end.energy_mj is None:
            return None
        moved_mj = end.energy_mj - start.energy_mj
        if moved_mj < 0 or backsteps > 0:
            flags.append("counter_went_back")
            return None
        if moved_mj == 0:
            if seconds >= STALL_PERIODS * self.period.period_s:
                flags.append("counter_stalled")
            return None  # a GPU always draws power: zero means that the counter has not moved yet
        return moved_mj / 1e3

    def _choose(
        self, counter_j: float | None, power_j: float | None, seconds: float, flags: list[str]
    ) -> EnergyReading:
        short = seconds < SHORT_WINDOW_PERIODS * self.period.period_s
        if short:
            flags.append("short")
        ratio = None
        if counter_j is not None and power_j is not None and not short:
            ratio = power_j / counter_j
            if abs(ratio - 1) > DISAGREEMENT:
                flags.append("sources_disagree")
                self.disagreements += 1
        if counter_j is not None:
            mean_w = counter_j / seconds if seconds > 0 else 0.0
            return EnergyReading(
                energy_j=counter_j, seconds=seconds, source="counter", flags=tuple(flags),
                uncertainty_j=mean_w * self.period.period_s, power_to_counter=ratio,
            )  # fmt: skip
        if power_j is not None and power_j > 0:
            if self.gpu.power_field == "average":
                flags.append("power_average")
            return EnergyReading(energy_j=power_j, seconds=seconds, source="power", flags=tuple(flags))
        return EnergyReading(
            energy_j=None, seconds=seconds, source="none", flags=(*flags, "no_energy_source")
        )

    def _measure_period(self) -> None:
        self.period = measure_counter_period(self.gpu.energy_mj, stop=self._closed.is_set)


def open_meter(
    local_rank: int, *, peers: Sequence[int] | None = None, uuid: str | None = None
) -> EnergyMeter | None:
    """Open the meter of the GPU that this rank computes on.

    Args:
        local_rank: rank on this host, which is the CUDA device index (a process that sees only one GPU
            uses that one).
        peers: NVML indices of the GPUs of all local ranks where known, see `EnergyMeter.settle_owner`;
            None lets a lock file decide which process reports the GPU.
        uuid: the CUDA device's UUID where known; overrides the index.

    Returns:
        The meter, or None (with one log message) where there is no NVML or no such GPU.
    """
    nvml = session()
    gpu = open_gpu(nvml, local_rank, uuid=uuid) if nvml.started else None
    if gpu is None:
        if nvml.started:
            logger.warning(
                "%sno GPU for local rank %d under CUDA_VISIBLE_DEVICES; energy is not measured.",
                rank_prefix(), local_rank,
            )  # fmt: skip
        return None
    meter = EnergyMeter(gpu)
    others = meter.foreign_processes()
    if others:
        logger.warning(
            "%s%s is also used by processes %s; its energy includes theirs.",
            rank_prefix(), gpu.name, ", ".join(map(str, others)),
        )  # fmt: skip
    if peers is not None:
        meter.settle_owner(peers, local_rank)
        return meter
    try:
        lock = GpuLock(gpu.uuid, "meter")
        meter.owner = lock.acquire()
        meter._lock = lock
    except OSError as error:
        nvml.note("meter lock", 17, f"{error}; this rank reports the GPU's energy")
    return meter
