"""`attach`: the one call that puts Kareus into a training job.

Everything that can go wrong goes wrong here, on all ranks at once, or never reaches the training loop.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from kareus.errors import InputError, UsageError
from kareus.runtime import ddp, fsdp2, torch_api
from kareus.runtime.agreement import agree, mismatch_error
from kareus.runtime.clocks import open_clocks
from kareus.runtime.compute_sms import open_compute_sms
from kareus.runtime.conductor import Conductor
from kareus.runtime.ddp_hook import refuse_foreign_hook
from kareus.runtime.divergence import Watch
from kareus.runtime.early_gathers import EarlyGathers
from kareus.runtime.energy import MeterSampler, open_sampler
from kareus.runtime.environment import budget_problem, connection_warning
from kareus.runtime.exchange import Exchange, GroupExchange, make_exchange
from kareus.runtime.fingerprint import Job, describe_job, fingerprint, sequence_problem
from kareus.runtime.guard import Guard, GuardSettings
from kareus.runtime.hosts import host_identity, inside_one_host
from kareus.runtime.ladder import Ladder, build_ladder
from kareus.runtime.paths import CollectivePath, GroupPath, PeerCopyPath
from kareus.runtime.pilot import Pilot
from kareus.runtime.prometheus import PrometheusFile
from kareus.runtime.records import RecordWriter, Tally
from kareus.runtime.session import Mode, Session
from kareus.runtime.streams import timeline_for
from kareus.schedule import Path, Schedule

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]


def attach(
    model: nn.Module,
    optimizer: Optimizers | None = None,
    *,
    schedule: str | Schedule | None = None,
    mode: Mode | None = None,
    clocks: Literal["off", "apply"] = "off",
    on_mismatch: Literal["error", "stock"] = "error",
    guard: GuardSettings | bool = True,
    records: str | None = None,
    prometheus: str | None = None,
    watch_after_s: float | None = None,
) -> Session:
    """Attach Kareus to a wrapped model; every rank calls it, before the first step.

    Arguments left out come from the environment: KAREUS_SCHEDULE (a file), KAREUS_COLLECT and
    KAREUS_PROFILE (directories), KAREUS_RECORDS and KAREUS_PROMETHEUS (directories). KAREUS_DISABLE=1 makes this a no-op.
    The step boundary is the end of `optimizer.step()` (of the last one in a sequence); without an
    optimizer call `session.step()` after each step.

    Args:
        model: wrapped with `fully_shard` (the root module) or DistributedDataParallel.
        optimizer: the optimizer, or several.
        schedule: what to replay; ranks without one take rank 0's.
        mode: "replay" a schedule, "collect" a trace, "profile" in place; by default what the arguments imply.
            "replay" with KAREUS_COLLECT also records, once the schedule stays in force.
        clocks: "apply" lets the schedule set clocks and power limits; "off" never touches them.
        on_mismatch: when the schedule does not fit this job or ranks disagree: raise on all ranks, or
            train on as stock.
        guard: False replays without comparing against stock; GuardSettings tunes the comparison.
        records: directory for StepRecords, one file a rank.
        prometheus: directory for a text file of metrics, one a rank, rewritten every ten seconds.
        watch_after_s: name a collective that lasts longer; by default half the group's timeout, 60 s at most.

    Raises:
        UsageError: no process group, an unwrapped model, a DDP model with a hook, a mode without its input.
        MismatchError: with on_mismatch="error", on all ranks.
    """
    if torch_api.environment("KAREUS_DISABLE") == "1":
        return Session(why_inactive="KAREUS_DISABLE=1")
    job = describe_job(model)
    if job.wrapper == "ddp":
        refuse_foreign_hook(job.root)  # type: ignore[arg-type]
    source = schedule if schedule is not None else torch_api.environment("KAREUS_SCHEDULE")
    collect_dir = torch_api.environment("KAREUS_COLLECT")
    profile_dir = torch_api.environment("KAREUS_PROFILE")
    if mode is None:
        mode = "replay" if source else "collect" if collect_dir else "profile" if profile_dir else None
    if job.wrapper == "fsdp1" and mode in ("replay", "profile"):
        raise UsageError(
            "FullyShardedDataParallel (FSDP1) gives no control over its all-gathers; use "
            "kareus.runtime.fsdp1_kwargs when it is built, or move to fully_shard (FSDP2)"
        )
    plan, local_problem = _load(source if mode == "replay" else None)
    mine = fingerprint(job)
    tally = Tally(job.rank)
    exchange = make_exchange(job.device)
    answer = agree(
        exchange,
        schedule=plan,
        local_problem=local_problem,
        job=mine,
        settings={"mode": str(mode), "clocks": clocks, "on_mismatch": on_mismatch, "guard": repr(guard)},
        environment_problem=budget_problem(plan, os.environ, torch_api.backend_name()),
        tuples=_own_tuples(job),
    )
    for text in answer.warnings:
        tally.add("conditions_differ", f"{text}; the guard compares it with stock again")
    warning = connection_warning(os.environ, job.device.type)
    if warning:
        tally.add("one_connection", warning)
    chosen, reason = answer.schedule, ""
    if mode is None and chosen is not None:
        mode = "replay"  # one file on rank 0's host is enough
    if answer.problems:
        error = mismatch_error(answer.problems)
        if on_mismatch == "error":
            raise error
        tally.add("mismatch", str(error))
        chosen, reason = None, str(error)
    return _assemble(
        job, exchange, tally, chosen, list(answer.tuples),
        optimizer=optimizer, mode=mode, mine=mine, reason=reason, guard=guard, clocks=clocks,
        records=records or torch_api.environment("KAREUS_RECORDS"), watch_after_s=watch_after_s,
        prometheus=prometheus or torch_api.environment("KAREUS_PROMETHEUS"),
        collect_dir=profile_dir if mode == "profile" else collect_dir,
    )  # fmt: skip


def _load(source: str | Schedule | None) -> tuple[Schedule | None, str]:
    """Return the schedule, or why it could not be read; raising here would leave other ranks waiting."""
    if source is None or isinstance(source, Schedule):
        return source, ""
    try:
        return Schedule.load(source), ""
    except InputError as error:
        return None, str(error)


def _assemble(
    job: Job,
    exchange: Exchange,
    tally: Tally,
    schedule: Schedule | None,
    tuples: list[tuple[int, ...]],
    *,
    optimizer: Optimizers | None,
    mode: Mode | None,
    mine: Any,
    reason: str,
    guard: GuardSettings | bool,
    clocks: str,
    records: str | None,
    prometheus: str | None,
    watch_after_s: float | None,
    collect_dir: str | None,
) -> Session:
    timeline = timeline_for(job.device)
    timeout_s = torch_api.group_timeout_s()
    watch = Watch(
        rank=job.rank,
        world_size=job.world_size,
        timeline=timeline,
        tally=tally,
        after_s=watch_after_s if watch_after_s is not None else min(60.0, timeout_s / 2),
        store=torch_api.job_store(),
    )
    kinds = ddp.KINDS if job.wrapper == "ddp" else fsdp2.KINDS
    ladder, paths = Ladder(), _plain_paths()
    if schedule is not None:
        ladder = build_ladder(schedule, all_tuples=tuples, kinds=kinds, device=job.device)
        paths |= _copy_path(schedule, job, exchange, tuples, timeout_s, tally)
    conductor = Conductor(
        schedule=schedule, ladder=ladder, paths=paths, tally=tally, timeline=timeline, watch=watch
    )
    driver = _driver(job, conductor)
    sampler = open_sampler(job, tally)
    settings = guard if isinstance(guard, GuardSettings) else GuardSettings(enabled=guard)
    pilot = Pilot(
        guard=Guard(settings, promised_ratio=_promised(schedule)),
        exchange=exchange,
        tally=tally,
        has_schedule=schedule is not None,
        timeout_s=min(60.0, timeout_s),
        min_observe=4 if job.wrapper == "ddp" else 2,
    )
    pilot.reason = reason
    session = Session(
        job=job, mode=mode, schedule=schedule, fingerprint=mine, conductor=conductor, driver=driver,
        pilot=pilot, tally=tally, writer=RecordWriter(records, job.rank, tally),
        sampler=sampler, optimizer=optimizer, collect_dir=collect_dir,
    )  # fmt: skip
    pilot.on_start = partial(_start_replay, session)
    try:
        _add_early_gathers(session, driver, exchange, optimizer, pilot.timeout_s)
        if driver is not None:
            driver.install()  # its optimizer hooks run before the one that ends the step
        _add_switches(session, driver, clocks, sampler)
        for group in _own_groups(exchange, conductor):
            session.on_detach(partial(torch_api.release_group, group))
        if sampler is not None:
            session.on_detach(sampler.close)
        watch.start()
        session.on_detach(watch.stop)
        _hook_optimizer(session, optimizer)
        session.begin()
        if mode in ("collect", "profile") or (mode == "replay" and schedule is not None and collect_dir):
            from kareus.collect import start

            session.follow(start(session))
        if prometheus:
            session.follow(
                PrometheusFile(
                    prometheus, tally, records=lambda: session.records, state=lambda: session.state
                )
            )
    except BaseException:
        session.detach()
        raise
    return session


def _start_replay(session: Session, exchange: Exchange | None) -> str:
    """Fix what depends on the observed step; returns why the schedule does not fit it.

    Args:
        exchange: None where all ranks observed the same order.
    """
    if session.schedule is None or session.driver is None:
        return ""
    session.driver.prepare(exchange)
    return sequence_problem(session.schedule, session.observed)


def _own_groups(exchange: Exchange, conductor: Conductor) -> list[dist.ProcessGroup]:
    """Return every group that was created for this session."""
    found = list(conductor.ladder.groups.values())
    for path in conductor.paths.values():
        if isinstance(path, PeerCopyPath):
            found += path.groups.values()
    if isinstance(exchange, GroupExchange) and exchange.group is not dist.group.WORLD:
        found.append(exchange.group)
    return found


def _add_switches(session: Session, driver: Any, clocks: str, sampler: MeterSampler | None) -> None:
    """Put clocks and compute SMs in force together with the schedule, where it asks for them."""
    schedule, job = session.schedule, session.job
    assert job is not None
    if schedule is None:
        return
    control = open_clocks(schedule, job.rank, sampler, session.tally) if clocks == "apply" else None
    if control is not None:
        driver.board.install(control.points(), elsewhere=driver.points_elsewhere())
        driver.board.listeners.append(control.on_met)
        session.switch(control)
    limit = open_compute_sms(schedule.compute_sm_margin, job.device, session.tally)
    if limit is not None:
        session.switch(limit)


def _add_early_gathers(
    session: Session, driver: Any, exchange: Exchange, optimizer: Optimizers | None, timeout_s: float
) -> None:
    """Let the driver start the first all-gathers inside the optimizer where the schedule asks for it."""
    count = 0 if session.schedule is None else session.schedule.early_gathers
    if not count:
        return
    if optimizer is None or (isinstance(exchange, GroupExchange) and exchange.device.type != "cpu"):
        why = "attach was given no optimizer" if optimizer is None else "torch has no gloo to agree over"
        session.tally.add("no_early_gathers", f"{why}; the first all-gathers start as in stock")
        return
    driver.early = EarlyGathers(driver, count, exchange, _last(optimizer), timeout_s=timeout_s)


def _plain_paths() -> dict[Path, CollectivePath]:
    return {Path.NCCL: GroupPath()}


def _own_tuples(job: Job) -> list[tuple[int, ...]]:
    """Return the ranks of each group that this rank's units or buckets communicate in."""
    if job.wrapper == "ddp":
        return [torch_api.group_ranks(job.root.process_group)]  # type: ignore[arg-type]
    return sorted({torch_api.group_ranks(g) for u in job.units for g in torch_api.unit_groups(u.group)})


def _copy_path(
    schedule: Schedule,
    job: Job,
    exchange: Exchange,
    tuples: list[tuple[int, ...]],
    timeout_s: float,
    tally: Tally,
) -> dict[Path, CollectivePath]:
    """Prepare the copy path where the schedule uses it: peer copies on CPU, symmetric memory on CUDA.

    Only groups whose ranks share a host have it; collectives of the others travel as in stock.
    """
    if all(d.path is not Path.COPY_ENGINE for d in schedule.decisions):
        return {}
    tuples = inside_one_host(tuples, exchange.gather(host_identity()))
    if not tuples:
        tally.add(
            "copy_engine_unavailable",
            "the copy-engine path is not available (the ranks of every group are on several hosts); NCCL is used",
        )
        return {}
    if job.device.type == "cpu":
        lanes: dict[tuple[int, ...], dist.ProcessGroup] = {}
        for ranks in tuples:
            lane = torch_api.new_group(list(ranks), description="kareus_copy")
            if job.rank in ranks and list(ranks) == sorted(ranks):
                lanes[ranks] = lane
        return {Path.COPY_ENGINE: PeerCopyPath(lanes, timeout_s=timeout_s)}
    from kareus.runtime.symmetric import make_symmetric_path

    path = make_symmetric_path(schedule, job, tuples, timeout_s=timeout_s, tally=tally)
    return {} if path is None else {Path.COPY_ENGINE: path}


def _driver(job: Job, conductor: Conductor) -> fsdp2.Fsdp2Driver | ddp.DdpDriver | None:
    if job.wrapper == "fsdp2":
        return fsdp2.Fsdp2Driver(job, conductor)
    return ddp.DdpDriver(job, conductor) if job.wrapper == "ddp" else None


def _promised(schedule: Schedule | None) -> float:
    """Return predicted over stock step time, 1 where the schedule does not say."""
    if (
        schedule is None
        or schedule.predicted is None
        or schedule.stock is None
        or schedule.stock.time_us <= 0
    ):
        return 1.0
    return schedule.predicted.time_us / schedule.stock.time_us


def _hook_optimizer(session: Session, optimizer: Optimizers | None) -> None:
    if optimizer is None:
        return
    handle = _last(optimizer).register_step_post_hook(lambda *_: session.step())
    session.on_detach(handle.remove)


def _last(optimizer: Optimizers) -> torch.optim.Optimizer:
    return optimizer if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)[-1]
