"""`attach(mode="profile")`: settings measured inside the running job, beside stock steps.

First a profiler window says what a step runs (the profile's workload) and where gathers could start
instead. Then blocks of steps follow, each under one setting, a stock block never far away. Every rank runs
the same blocks: rank 0 chooses the next by what is known worst (see `choose`) and tells the others. A
setting's communicators are made when it is first chosen. The losses stay those of stock.
"""

from __future__ import annotations

import datetime
import logging
import math
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kareus.collect import facts
from kareus.collect.choose import is_settled, next_setting
from kareus.collect.collector import Collector
from kareus.collect.gather import make_link
from kareus.collect.launch import Points
from kareus.collect.options import options_from
from kareus.collect.parking import Parking
from kareus.collect.profile_file import Store, pack_points, unpack_points
from kareus.collect.settings import STOCK, Setting, default_settings, kinds_of, schedule_for
from kareus.device.energy import EnergyMeter, open_meter
from kareus.device.gpu import event_names
from kareus.errors import InputError, KareusError, UsageError
from kareus.runtime.hosts import host_identity, ranks_by_host

log = logging.getLogger("kareus")

HEAD = 3  # steps after a switch that are not counted
MIN_STEPS = 10
MAX_DROPPED = 1  # unsettled blocks for each setting before they are taken as they are
ENERGY_WINDOW_S = 3.0  # the counter of an H200 moves every 100 ms
BUDGET_S = 300.0
LINK_TIMEOUT_S = 60.0
SETTLED_STEPS = 4  # DDP makes its final buckets in the first steps
OBSERVE = 8  # steps a schedule may need before it is in force the first time
MOST_HELD = 8  # settings whose communicators are kept; each may take hundreds of MB


@dataclass(kw_only=True)
class Block:
    """One block under way.

    Attributes:
        setting: what it runs. head: steps not counted. steps: counted ones. done: finished so far.
        marks: device marks at the boundaries of counted steps.
    """

    setting: Setting
    head: int
    steps: int
    done: int = 0
    marks: list[Any] = field(default_factory=list)
    began: float = 0.0


class Sweep:
    """Follows a session in mode "profile".

    Args:
        session: the session. collector: the window that comes first, None where the file has a workload.
        store: the profile under construction. capable: what the job can do. budget_s: seconds to measure for.
    """

    def __init__(
        self,
        session: Any,
        collector: Collector | None,
        store: Store,
        capable: dict[str, Any],
        budget_s: float,
    ) -> None:
        self._session, self._collector, self._store = session, collector, store
        self._capable, self._budget_s = capable, budget_s
        self._settings: dict[str, Setting] = {}
        self._points: Points = {}
        self._runs: dict[str, Parking] = {}  # attached, the one used last at the end
        self._own = Parking(session)
        self._active: Parking | None = None
        self._block: Block | None = None
        self._started = 0.0
        self._step_us = 0.0
        self._ratios: dict[str, list[float]] = {}
        self._stock_us = math.nan
        self._since_stock = 99
        self._seen: set[str] = set()
        self._last = time.perf_counter()
        self._over = False
        self._widest = math.inf
        self._meter = self._open_meter()
        self.dropped = 0

    def _open_meter(self) -> EnergyMeter | None:
        device = self._session.job.device
        if device.type != "cuda":
            return None
        return open_meter(device.index or 0, uuid=facts.gpu_uuid(device) or None)

    def on_step(self, step_index: int) -> None:
        """Called after every step."""
        if self._over:
            return
        now = time.perf_counter()
        self._step_us, self._last = (now - self._last) * 1e6, now
        try:
            if self._collector is not None:
                self._collector.on_step(step_index)
                if not self._collector.over:
                    return
                self._end_window(self._collector)
                if self._over:
                    return
            self._advance()
        except Exception as error:  # nothing of ours is raised into training
            log.warning("kareus rank %d: profiling stopped: %r", self._session.job.rank, error)
            self._stop()

    def finish(self) -> None:
        """End measuring; what was measured is in the file already."""
        if self._collector is not None:
            self._collector.finish()
            self._collector = None
        if not self._over:
            self._stop()

    def _end_window(self, collector: Collector) -> None:
        """Rank 0 reads what a step runs; where it cannot, all ranks stop."""
        self._collector = None
        problem = self._store.take_workload(collector) if self._session.job.rank == 0 else ""
        problem = self._session.pilot.exchange.gather(problem)[0]
        if problem:
            self._stop(f"what a step runs is not known: {problem}")

    def _advance(self) -> None:
        if self._active is not None:
            self._active.session.step()
        block = self._block
        if block is None:
            if self._session.step_count >= SETTLED_STEPS:
                self._prepare()
                self._started = time.monotonic()
                self._begin(STOCK, None)
            return
        block.done += 1
        if block.done == block.head:
            block.began = time.monotonic()
            if self._meter is not None:
                self._session.conductor.timeline.finish(self._mark())
                self._meter.begin("block")
        if block.done >= block.head:
            block.marks.append(self._mark())
        if block.done == block.head + block.steps:
            self._end(block)

    def _prepare(self) -> None:
        """Learn from rank 0 what there is to try and what an earlier sitting measured; its file counts."""
        exchange = self._session.pilot.exchange
        points = exchange.gather(pack_points(self._store.points))[0]
        self._points = unpack_points(points)
        grid = default_settings(self._session.job.wrapper, self._capable, launch_points=bool(self._points))
        grid = tuple(s for s in grid if s.launch is None or s.launch in self._points)
        labels = exchange.gather([s.label for s in grid])  # ranks may see different capabilities
        self._settings = {s.label: s for s in grid if all(s.label in able for able in labels)}
        earlier = {label: self._store.ratios(label) for label in self._settings}
        self._ratios = exchange.gather(earlier)[0]

    def _attach(self, setting: Setting) -> Parking | None:
        """Return a parked session for a setting, all ranks at the same boundary; None where it cannot be."""
        from kareus.runtime import attach

        session = self._session
        held = self._runs.pop(setting.label, None)
        if held is None:
            (self._active or self._own).park()
            self._active = None
            plan = schedule_for(setting, session.fingerprint, session.observed, self._points)
            try:
                held = Parking(attach(session.job.root, None, schedule=plan, mode="replay", guard=False))
            except KareusError as error:  # raised on all ranks alike
                log.warning("kareus: setting %r is left out: %s", setting.label, error)
                del self._settings[setting.label], self._ratios[setting.label]
                return None
            held.park()
            if len(self._runs) >= MOST_HELD:
                self._runs.pop(next(iter(self._runs))).close()
        self._runs[setting.label] = held
        return held

    def _next(self) -> None:
        """Begin the block rank 0 chooses, or stop."""
        while True:
            label: str | None = None
            if self._session.job.rank == 0:
                kinds, default = kinds_of(self._session.job.wrapper), self._store.default_ctas
                grid = {label: s.numbers(kinds, default) for label, s in self._settings.items()}
                choice = next_setting(grid, self._ratios, self._since_stock)
                label, self._widest = choice.label, choice.widest
            label = self._session.pilot.exchange.gather(label)[0]
            if label is None:
                self._stop("every interval is within 1 % of the step")
                return
            if label == STOCK.label:
                self._begin(STOCK, None)
                return
            run = self._attach(self._settings[label])
            if run is not None:
                self._begin(self._settings[label], run)
                return

    def _mark(self) -> Any:
        return self._session.conductor.timeline.mark(timing=True)

    def _begin(self, setting: Setting, run: Parking | None) -> None:
        if run is not self._active or not self._own.parked:
            self._switch(run)
        head = HEAD + (0 if run is None or setting.label in self._seen else OBSERVE)
        self._seen.add(setting.label)
        self._block = Block(setting=setting, head=head, steps=self._block_steps())

    def _block_steps(self) -> int:
        """Enough steps for an energy window on GPUs, `MIN_STEPS` elsewhere; rank 0's figure everywhere."""
        wanted = MIN_STEPS
        if self._meter is not None and self._step_us > 0:
            wanted = max(MIN_STEPS, math.ceil(ENERGY_WINDOW_S * 1e6 / self._step_us))
        return int(self._session.pilot.exchange.gather(min(wanted, 500))[0])

    def _switch(self, run: Parking | None) -> None:
        """Put another session in force; None is stock, with nothing of ours in the model."""
        (self._active or self._own).park()
        self._active = run
        if run is not None:
            run.resume()

    def _end(self, block: Block) -> None:
        timeline = self._session.conductor.timeline
        timeline.finish(block.marks[-1])
        reading = self._meter.end("block") if self._meter is not None else None
        steps = [timeline.elapsed_us(a, b) for a, b in zip(block.marks[:-1], block.marks[1:], strict=True)]
        reasons = self._meter.gpu.event_reasons() if self._meter is not None else None
        clock = self._meter.gpu.sm_clock_mhz() if self._meter is not None else None
        mine = {
            "steps": steps,
            "energy_j": None
            if reading is None or reading.energy_j is None
            else reading.energy_j / block.steps,
            "window_s": time.monotonic() - block.began,
            "clock": clock,
            "reasons": event_names(reasons or 0),
            "elapsed_s": time.monotonic() - self._started,
            "in_force": self._active is None or self._active.session.state == "replay",
        }
        ranks = self._session.pilot.exchange.gather(mine)
        self._take(block, ranks)
        if ranks[0]["elapsed_s"] > self._budget_s:
            known = f"; step times are known to {self._widest:.1%}" if math.isfinite(self._widest) else ""
            self._stop(f"budget of {self._budget_s:.0f} s used up{known}")
            return
        self._next()

    def _take(self, block: Block, ranks: list[dict[str, Any]]) -> None:
        """Judge and keep a block; a step lasts as long as on the slowest rank."""
        steps = [max(times) for times in zip(*(r["steps"] for r in ranks), strict=True)]
        label = block.setting.label
        if not all(r["in_force"] for r in ranks):
            log.warning("kareus: setting %r could not be put in force; it is left out", label)
            self._ratios.pop(label, None)
            self._settings.pop(label, None)
            return
        if not is_settled(steps):
            self.dropped += 1
            if self.dropped <= MAX_DROPPED * len(self._settings):
                return  # measured again: it still has the fewest or widest figures
        self._since_stock = 0 if label == STOCK.label else self._since_stock + 1
        mean = statistics.fmean(steps)
        if label == STOCK.label:
            self._stock_us = mean
        else:
            self._ratios[label].append(mean / self._stock_us)
        self._store.add(block.setting, steps, ranks)
        if self._session.job.rank == 0:
            try:
                self._store.save()
            except InputError as error:  # the next block tries again; other ranks must not notice
                log.warning("kareus: %s", error)

    def _stop(self, why: str = "the job ended") -> None:
        """Give the model back to the session's own driver."""
        self._over = True
        try:
            if self._active is not None:
                self._active.park()
            for run in self._runs.values():
                run.close()
            self._own.resume()
            if self._meter is not None:
                self._meter.close()
        except Exception as error:  # nothing of ours is raised into training
            log.warning("kareus rank %d: %r", self._session.job.rank, error)
        if self._session.job.rank == 0:
            found = f"{self._store.count} blocks in {self._store.path}"
            if not self._store.count:
                found = "no block was measured, so no profile was written; let the job run more steps"
            print(f"kareus: profile: {why}; {found}", file=sys.stderr)


def start_sweep(session: Any, target: str) -> Sweep:
    """Open the profile and prepare the window; all ranks call it in `attach`.

    Raises:
        UsageError: the target is a directory, or the wrapper cannot be swept.
    """
    if Path(target).is_dir():
        raise UsageError(
            f"KAREUS_PROFILE={target} is a directory; give a file, as in KAREUS_PROFILE=profile.json"
        )
    job = session.job
    if job.wrapper not in ("fsdp2", "ddp"):
        raise UsageError(f"profiling needs FSDP2 or DDP, found {job.wrapper}")
    exchange = session.pilot.exchange
    hosts = ranks_by_host(exchange.gather(host_identity()))
    one_host = len(hosts) == 1
    capable = facts.capabilities(job.device, hosts=hosts)
    if not one_host and capable["copy_engine"]:  # a setting of the sweep is for all collectives of a kind
        capable |= {"copy_engine": False, "copy_engine_reason": "ranks run on several hosts"}
    store = _open_store(target, session, one_host)
    collector = None
    if exchange.gather(store.has_workload)[0]:
        store.keep_workload()
        store.find_points(Path(target).with_suffix(".trace"))
    else:
        folder = str(Path(target).with_suffix(".trace"))
        collector = Collector(job, folder, options_from(os.environ), make_link(LINK_TIMEOUT_S))
    budget = float(os.environ.get("KAREUS_PROFILE_BUDGET_S") or BUDGET_S)
    return Sweep(session, collector, store, capable, budget)


def _open_store(target: str, session: Any, one_host: bool) -> Store:
    """Open the profile on every rank, or raise on every rank.

    Raises:
        UsageError: a rank cannot use the file.
    """
    store, problem = None, ""
    try:
        store = Store.open(target, session.fingerprint, session.job, one_host=one_host, date=_today())
    except KareusError as error:
        problem = str(error)
    problems = [p for p in session.pilot.exchange.gather(problem) if p]
    if problems or store is None:
        raise UsageError(problems[0])
    return store


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
