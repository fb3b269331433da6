"""Arms of a comparison: stock, schedules, and the bounds without communication.

An arm's name is a list of words joined by "+":

    ce, ce-rs, ce-ar   all-gathers, reduce-scatters, all-reduces by the copy engine
    ag8, rs8, ar8      thread blocks (CTAs) of all-gathers, reduce-scatters, all-reduces
    sep                reduce-scatters on a communicator of their own
    pf2, defer1        gather so many units ahead; issue reduce-scatters so many units late
    serial, serial-ag, serial-rs, serial-ar   wait for every (such) collective at once
    launch-SUB-SIDE    a unit's all-gather starts no earlier than before/after submodule SUB of the unit
                       that runs before it ("launch-mlp-before")

Besides: "stock", "bound" (no communication at all), "no-ag" and "no-rs" (one kind missing).
"""

from __future__ import annotations

import re
from typing import Any

from gpu_job import Job

BOUNDS = ("bound", "no-ag", "no-rs")


class Arm:
    """One way to run steps; `enter` and `leave` bracket a block."""

    sync = True

    def __init__(self, name: str, job: Job) -> None:
        self.name, self.job = name, job

    def enter(self) -> None:
        """Take hold of the model."""

    def leave(self) -> None:
        """Let go of it."""

    def after_step(self) -> None:
        """A step has ended."""

    def settle_steps(self) -> int:
        """Steps it needs in a block before its decisions are in force."""
        return 0

    def facts(self) -> dict[str, Any]:
        """What it turned out to be, for the raw data."""
        return {}

    def close(self) -> None:
        """Free what it holds."""


class ScheduleArm(Arm):
    """A schedule replayed by Kareus itself, without its guard (the benchmark compares)."""

    def __init__(self, name: str, job: Job, schedule: Any) -> None:
        super().__init__(name, job)
        import kareus
        from kareus.collect.parking import Parking

        self.schedule = schedule
        self.session = kareus.attach(job.model, None, schedule=schedule, mode="replay", guard=False)
        job.play(self.session)
        self.parking = Parking(self.session)
        self.tickets: list[Any] = []
        self.last_tickets: list[Any] = []
        opening = self.session.conductor.open

        def opened(*args: Any) -> Any:
            ticket = opening(*args)
            self.tickets.append(ticket)
            return ticket

        self.session.conductor.open = opened
        self.parking.park()

    def enter(self) -> None:
        self.parking.resume()

    def leave(self) -> None:
        self.parking.park()

    def after_step(self) -> None:
        self.session.step()
        self.last_tickets, self.tickets = self.tickets, []

    def settle_steps(self) -> int:
        return 0 if self.session.state == "replay" else 8

    def facts(self) -> dict[str, Any]:
        report = self.session.report()
        return {
            "digest": self.schedule.digest(),
            "state": report["state"],
            "reason": report["reason"],
            "counts": report["counts"],
            "ladder": report["ladder"],
            "issued": [
                f"{t.key} {t.path.name} {t.decision.num_ctas or 'default'}" for t in self.last_tickets
            ],
        }

    def close(self) -> None:
        self.parking.close()


class FsdpBoundArm(Arm):
    """FSDP2 without communication on real values: every unit keeps the weights it once gathered.

    Only this rank's part of them is written anew each step, by FSDP's own copy-in; gradients are this
    rank's chunk. Buffers that were never filled would make GEMMs faster than any schedule can.
    """

    def __init__(self, name: str, job: Job) -> None:
        super().__init__(name, job)
        from kareus.runtime.torch_api import fsdp_units

        self.units = fsdp_units(job.model)
        self.originals: list[tuple[Any, Any, Any]] = []

    def enter(self) -> None:
        for unit in self.units:
            gather, scatter = unit.group._all_gather_comm, unit.group._reduce_scatter_comm
            self.originals.append((unit, gather, scatter))
            played = self.job.played  # the fake group moves nothing, so the kind that stays is played too
            if self.name != "no-rs":
                unit.module.set_custom_all_gather(_kept_gather(gather, not self.job.moves_data))
            elif played is not None:
                unit.module.set_custom_all_gather(_played(gather, played))
            if self.name != "no-ag":
                unit.module.set_custom_reduce_scatter(_local_scatter(scatter))
            elif played is not None:
                unit.module.set_custom_reduce_scatter(_played(scatter, played))

    def leave(self) -> None:
        for unit, gather, scatter in self.originals:
            unit.module.set_custom_all_gather(gather)
            unit.module.set_custom_reduce_scatter(scatter)
        self.originals.clear()


def _kept_gather(inner: Any, played: bool) -> Any:
    from kareus.runtime.torch_api import AllGather

    class KeptGather(AllGather):
        """Gathers once into a buffer of the unit's own, then gives that buffer back."""

        def __init__(self) -> None:
            self.buffer: Any = None
            self.filled = False

        def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
            if self.buffer is None:
                self.buffer = inner.allocate(size, dtype=dtype, device=device)
            return self.buffer

        def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> Any:
            if self.filled:
                return None
            self.filled = True
            if played:  # the fake group would leave the buffer as it was, and empty buffers make GEMMs fast
                for slot in output_tensor.view(-1).chunk(2):
                    slot.copy_(input_tensor.view(-1))
                return None
            return inner(output_tensor, input_tensor, group, async_op)

    return KeptGather()


def _played(inner: Any, path: Any) -> Any:
    """Collectives of a stand-in behind FSDP2's protocols, buffers as `inner` makes them."""
    from kareus.runtime.torch_api import AllGather, ReduceScatter

    class PlayedGather(AllGather):
        def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
            return inner.allocate(size, dtype=dtype, device=device)

        def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> Any:
            path.all_gather(output_tensor, input_tensor, group, async_op)

    class PlayedScatter(ReduceScatter):
        def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
            return inner.allocate(size, dtype=dtype, device=device)

        def __call__(
            self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False
        ) -> Any:
            path.reduce_scatter(output_tensor, input_tensor, group, op, async_op)

    return PlayedGather() if isinstance(inner, AllGather) else PlayedScatter()


def _local_scatter(inner: Any) -> Any:
    from kareus.runtime.torch_api import ReduceScatter

    class LocalScatter(ReduceScatter):
        """Copies this rank's chunk of its own gradient."""

        def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
            return inner.allocate(size, dtype=dtype, device=device)

        def __call__(
            self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False
        ) -> Any:
            chunk = input_tensor.view(group.size(), -1)[group.rank()]
            output_tensor.view(-1).copy_(chunk)

    return LocalScatter()


class DdpBoundArm(Arm):
    """DDP without communication: no_sync."""

    sync = False


def make_arm(name: str, job: Job, files: dict[str, str]) -> Arm:
    """Build an arm by its name, or by the schedule file given for that name.

    Raises:
        ValueError: a word that means nothing.
    """
    from kareus.schedule import Schedule

    if name == "stock" and job.args.stand_in is None:
        return Arm(name, job)
    if name in files:
        return ScheduleArm(name, job, Schedule.load(files[name]))
    if name in BOUNDS:
        return FsdpBoundArm(name, job) if job.args.wrapper == "fsdp2" else DdpBoundArm(name, job)
    return ScheduleArm(name, job, named_schedule(name, job))


def named_schedule(name: str, job: Job) -> Any:
    """The schedule a name stands for; see the module."""
    from kareus.runtime.fingerprint import describe_job, fingerprint
    from kareus.schedule import CollectiveKey, Decision, LaunchPoint, Path, Schedule

    described = fingerprint(describe_job(job.model))
    units = [unit.name for unit in described.units if unit.name]
    ctas: dict[str, int] = {}
    engine: set[str] = set()
    waits: set[str] = set()
    whole: dict[str, Any] = {}
    launch: tuple[str, str] | None = None
    kinds = {"ag": "all_gather", "rs": "reduce_scatter", "ar": "all_reduce"}
    for word in name.split("+"):
        if word == "stock":
            continue
        if match := re.fullmatch(r"(ag|rs|ar)(\d+)", word):
            ctas[kinds[match[1]]] = int(match[2])
        elif match := re.fullmatch(r"ce(?:-(ag|rs|ar))?", word):
            engine.add(kinds[match[1] or "ag"])
        elif match := re.fullmatch(r"serial(?:-(ag|rs|ar))?", word):
            waits |= {kinds[match[1]]} if match[1] else set(kinds.values())
        elif match := re.fullmatch(r"pf(\d+)", word):
            whole |= {"forward_prefetch": int(match[1]), "backward_prefetch": int(match[1])}
        elif match := re.fullmatch(r"defer(\d+)", word):
            whole["reduce_scatter_deferral"] = int(match[1])
        elif word == "sep":
            whole["separate_reduce_scatter_group"] = True
        elif match := re.fullmatch(r"launch-([\w.]+)-(before|after)", word):
            launch = match[1], match[2]
        else:
            raise ValueError(f"{word!r} in arm {name!r}: not one of the words in gpu_arms.py")

    def decision(kind: str, unit: str, phase: str, before: str | None) -> Decision:
        point = None
        if launch is not None and before is not None:
            point = LaunchPoint(module=f"{before}.{launch[0]}", phase=phase, side=launch[1])
        return Decision(
            collective=CollectiveKey(kind=kind, unit=unit, phase=phase),
            num_ctas=None if kind in engine else ctas.get(kind),
            path=Path.COPY_ENGINE if kind in engine else Path.NCCL,
            launch=point,
            serialise=kind in waits,
        )

    def previous(key: CollectiveKey) -> str | None:
        """The unit that computes before a gather's own does; launch points lie in it."""
        if key.kind != "all_gather" or key.unit not in units:
            return None
        at = units.index(key.unit) + (-1 if key.phase == "forward" else 1)
        return units[at] if 0 <= at < len(units) else None

    decisions = [decision(key.kind, key.unit, key.phase, previous(key)) for key in job.observed]
    kept = tuple(d for d in decisions if not d.is_stock)
    return Schedule(fingerprint=described, decisions=kept, **whole)


def all_knobs(job: Job) -> Any:
    """A schedule that turns every knob somewhere, unit by unit in turn."""
    import msgspec

    words = ["ag12+rs8", "launch-mlp-before", "ce", "serial", "ag4+rs4"]
    if not job.moves_data:
        words.remove("ce")  # copies between peers need peers
    base = named_schedule("ag12+rs8+sep+pf2+defer1" if job.args.wrapper == "fsdp2" else "ar8+serial", job)
    if job.args.wrapper == "ddp":
        chosen = [named_schedule(word, job) for word in ("ar8", "serial", "ar16")]
    else:
        chosen = [named_schedule(word, job) for word in words]
    units = [unit.name for unit in base.fingerprint.units]
    decisions = []
    for decision in base.decisions:
        unit = decision.collective.unit
        turn = int(unit.rpartition(".")[2]) if unit.startswith("bucket.") else units.index(unit)
        decisions.append(chosen[turn % len(chosen)].decision_for(decision.collective))
    kept = tuple(d for d in decisions if not d.is_stock)
    return msgspec.structs.replace(base, decisions=kept)
