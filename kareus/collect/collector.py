"""Records a window of steps inside a running job and leaves files that `kareus inspect` reads.

Outside of the window the collector counts steps and does nothing else. Nothing here raises into training
or waits without a limit: what goes wrong is logged once and written into the manifest.
"""

from __future__ import annotations

import atexit
import dataclasses
import datetime
import json
import logging
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from kareus.collect import facts
from kareus.collect.annotate import Annotator
from kareus.collect.files import Written, samples_name, trace_name, write_trace
from kareus.collect.gather import AloneLink, GlooLink, bring_files, sees_folder
from kareus.collect.options import CollectOptions
from kareus.collect.power import PowerRecorder
from kareus.collect.profiler import Window, is_capturing, is_compiled
from kareus.collect.step_clock import StepClock
from kareus.runtime.hosts import host_identity
from kareus.trace.manifest import Host, Manifest

log = logging.getLogger("kareus")

TIMED_BEFORE = 3  # steps before the window whose time is stated beside that of the steps inside


class JobLike(Protocol):
    """What the collector needs to know of the job; see kareus.runtime.fingerprint.Job."""

    wrapper: str
    root: nn.Module
    device: torch.device
    world_size: int
    rank: int

    @property
    def named_root(self) -> nn.Module:
        """Module that paths are named from."""


class Collector:
    """One recording of one rank.

    All ranks reach the same number of steps, so all write and exchange at the same boundary, also a rank
    whose own recording failed on the way.

    Args:
        job: the wrapped model. directory: where files go, on every host. options: see CollectOptions.
        link: to the other ranks. notes: for the manifest.

    Attributes:
        written: what this rank wrote; None until the window is over.
        problem: why there is no recording, "" while all is well.
    """

    def __init__(
        self,
        job: JobLike,
        directory: str,
        options: CollectOptions,
        link: AloneLink | GlooLink,
        *,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.written: Written | None = None
        self.problem = ""
        self._job, self._options, self._link, self._notes = job, options, link, notes
        self._directory = Path(directory)
        self._window: Window | None = None
        self._annotator = Annotator(job.named_root)
        self._power = PowerRecorder(job.device)
        self._steps = 0
        self._clock = StepClock(job.device.type == "cuda")
        self._mark()
        self._hook: Any = None
        self._due = -1  # boundary whose action waits for the next forward
        self._over = False

    def on_step(self, step_index: int) -> None:
        """Called after step `step_index` ended; acts at the beginning of the next forward.

        Not at once, because the optimizer's own range is still open here and would be cut in two.
        """
        if self._over:
            return
        self._take_due()  # no forward passed through the root since the last step
        if self._over:
            return
        self._steps = done = self._steps + 1
        self._mark()
        if done < self._options.wait:
            return
        self._due = done
        if is_compiled(self._job.root):  # a hook would run inside its graph
            self._take_due()
        elif self._hook is None:
            self._hook = self._job.root.register_forward_pre_hook(lambda *_: self._take_due(), prepend=True)

    def finish(self) -> None:
        """End the recording, early if need be, and write what there is; all ranks call it in detach."""
        self._take_due()
        if self._over:
            return
        if self._window is None and not self.problem:
            self._note(
                f"the job ended after {self._steps} steps; recording needs {self._options.steps_needed}"
            )
        self._close(alone=False)

    @property
    def over(self) -> bool:
        """The window is over, whatever came of it."""
        return self._over

    @property
    def directory(self) -> Path:
        """Where files go."""
        return self._directory

    def _mark(self) -> None:
        if self._steps < self._options.wait - TIMED_BEFORE:
            return
        try:
            self._clock.mark(self._steps)
        except RuntimeError as error:  # as of a stream that captures a graph: the times are not stated
            log.info("kareus rank %d: a step was not timed: %s", self._job.rank, error)

    def _take_due(self) -> None:
        due, self._due = self._due, -1
        if due < 0:
            return
        try:
            if due == self._options.wait:
                self._open()
            elif self._window is not None:
                self._window.step()
        except Exception as error:  # nothing of ours is raised into training
            self._note(f"{type(error).__name__}: {error}")
            self._withdraw()
        if due >= self._options.steps_needed:
            self._close(alone=False)

    def _open(self) -> None:
        if is_capturing(self._job.device):
            raise RuntimeError("a CUDA graph is being captured; record before or after that")
        self._directory.mkdir(parents=True, exist_ok=True)
        window = Window(self._job.device, warmup=self._options.warmup, active=self._options.active)
        if self._options.modules:
            self._annotator.install()
        self._power.start()
        window.start()
        self._window = window
        atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        """Training raised inside the window: keep what this rank saw, without asking anybody."""
        if not self._over:
            self._close(alone=True)

    def _close(self, *, alone: bool) -> None:
        """Write, tell the others, and disappear."""
        self._over = True
        try:
            self.written = self._record()
        except Exception as error:  # nothing of ours is raised into training
            self._note(f"{type(error).__name__}: {error}")
        self._withdraw()
        if self.written is None:
            self.written = Written(problem=f"rank {self._job.rank}: {self.problem}")
        try:
            self._deliver(AloneLink() if alone else self._link)
        except Exception as error:
            self._note(f"{type(error).__name__}: {error}")

    def _record(self) -> Written | None:
        window = self._window
        if window is None:
            return None
        if self._job.device.type == "cuda":
            torch.cuda.synchronize(self._job.device)
        if not window.done:
            window.stop()
        if window.steps <= self._options.warmup:
            self._note(f"only {self._steps} steps were trained; recording needs {self._options.steps_needed}")
            return None
        return self._write(window)

    def _withdraw(self) -> None:
        """Take everything out of the model and end the profiler."""
        window, self._window = self._window, None
        actions: list[Callable[[], Any]] = [self._annotator.remove, self._power.stop, self._unhook]
        if window is not None and not window.ended:
            actions.append(window.stop)
        if self._over:
            atexit.unregister(self._at_exit)
        else:
            actions.remove(self._unhook)  # the hook still brings this rank to the common boundary
        for action in actions:
            try:
                action()
            except Exception as error:  # the rest must still be undone
                self._note(f"{type(error).__name__}: {error}")

    def _unhook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _note(self, text: str) -> None:
        """Keep the first problem and log every one."""
        self.problem = self.problem or text
        log.warning("kareus rank %d: recording: %s", self._job.rank, text)

    def _write(self, window: Window) -> Written:
        device = facts.device_facts(self._job.device)
        header = {
            "torch_version": json.dumps(device["torch"]),
            "kareus_wrapper": json.dumps(self._job.wrapper),
        }
        written = write_trace(
            self._directory,
            self._job.rank,
            lambda path: window.export(path, header),
            max_mb=self._options.max_mb,
            world_size=self._job.world_size,
            cpu_name=None if self._job.device.type == "cuda" else str(device["gpu"]),
        )
        return dataclasses.replace(written, samples=self._power.write(self._directory, self._job.rank))

    def _deliver(self, link: AloneLink | GlooLink) -> None:
        """Tell rank 0 what was written, bring it there where folders are not shared, write the manifest."""
        assert self.written is not None
        rank = self._job.rank
        mine = {
            "written": dataclasses.asdict(self.written),
            "host": facts.host_name(),
            "host_id": host_identity(),
            "gpu": facts.gpu_uuid(self._job.device),
        }
        heard = link.all(json.dumps(mine))
        answers = [json.loads(text) if text else None for text in heard]
        if len(answers) < self._job.world_size:
            answers = [
                json.loads(json.dumps(mine)) if r == rank else None for r in range(self._job.world_size)
            ]
        seen = sees_folder(self._directory, link)
        lost = bring_files(
            self._directory, link, seen, lambda r: [trace_name(r), samples_name(r)], self._directory
        )
        if rank == 0:
            manifest = self._manifest(answers, lost)
            if self._directory.is_dir():
                manifest.save(self._directory)
            self._say(answers, lost)
        elif self.written.problem:
            log.warning("kareus: %s", self.written.problem)

    def _manifest(self, answers: list[dict[str, Any] | None], lost: list[str]) -> Manifest:
        files: dict[str, str] = {}
        samples: dict[str, str] = {}
        missing: dict[str, str] = {}
        names: dict[str, str] = {}  # machines may share a name, as containers do
        hosts: dict[str, list[int]] = {}
        gpus: dict[str, list[str]] = {}
        notes = [*self._notes, *lost]
        for rank, answer in enumerate(answers):
            if answer is None:
                missing[str(rank)] = "did not answer when the window ended"
                continue
            identity = answer["host_id"]
            if identity not in names:
                namesakes = sum(name.partition("#")[0] == answer["host"] for name in names.values())
                names[identity] = answer["host"] + (f"#{namesakes + 1}" if namesakes else "")
            hosts.setdefault(names[identity], []).append(rank)
            if answer["gpu"]:
                gpus.setdefault(names[identity], []).append(answer["gpu"])
            written = answer["written"]
            if written["problem"]:
                notes.append(written["problem"])
            if not written["trace"] or not (self._directory / written["trace"]).exists():
                missing[str(rank)] = written["problem"] or f"its file stayed on {answer['host']}"
                continue
            files[str(rank)] = written["trace"]
            if written["samples"] and (self._directory / written["samples"]).exists():
                samples[str(rank)] = written["samples"]
        if self._job.device.type != "cuda":
            notes.append("work items are CPU operators and gloo transfers: figures say nothing about GPUs")
        if self._annotator.failures:
            notes.append(f"{self._annotator.failures} submodule annotations failed")
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Manifest(
            description=f"{self._options.active} {self._job.wrapper} steps on {self._job.world_size} ranks",
            date=now,
            command=facts.command_line(),
            world_size=self._job.world_size,
            hosts=tuple(
                Host(name=name, ranks=tuple(ranks), gpus=tuple(gpus.get(name, ())))
                for name, ranks in hosts.items()
            ),
            files=files,
            samples=samples,
            missing=missing,
            capabilities=facts.capabilities(self._job.device, hosts=list(hosts.values())),
            gradients=facts.gradients(self._job.root) if self._job.wrapper == "ddp" else (),
            measured=self.step_times_ms(),
            notes=tuple(notes),
            driver=self._power.driver,
            **facts.device_facts(self._job.device),
        )

    def step_times_ms(self) -> dict[str, float]:
        """Return median step times outside and inside of the window, milliseconds; after the recording."""
        if self._job.device.type == "cuda":
            torch.cuda.synchronize(self._job.device)
        wait, warmup = self._options.wait, self._options.warmup
        outside = self._clock.step_ms(max(0, wait - TIMED_BEFORE), min(wait, self._steps))
        inside = self._clock.step_ms(wait + warmup, self._steps)
        times = {"step_ms": outside, "step_ms_profiled": inside}
        return {name: statistics.median(values) for name, values in times.items() if values}

    def _say(self, answers: list[dict[str, Any] | None], lost: list[str]) -> None:
        good = sum(1 for a in answers if a and a["written"]["trace"])
        times = self.step_times_ms()
        cost = ""
        if len(times) == 2:
            share = times["step_ms_profiled"] / times["step_ms"] - 1
            cost = f"; a step took {times['step_ms']:.1f} ms outside of the window, {share:+.1%} inside"
        print(
            f"kareus: recorded {self._options.active} steps of {good} of {len(answers)} ranks into "
            f"{self._directory}{cost}",
            file=sys.stderr,
        )
        for text in [a["written"]["problem"] for a in answers if a and a["written"]["problem"]] + lost:
            print(f"kareus: {text}", file=sys.stderr)
