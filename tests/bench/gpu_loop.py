"""The loop: collect, replay a schedule, and check that what ran is what was decided."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from gpu_arms import all_knobs
from gpu_job import Job


def run_loop(job: Job) -> int:
    """Run the loop and write loop.json; returns 1 where a check failed."""
    import kareus
    from kareus.schedule import Schedule

    args = job.args
    scratch = Path(job.gather(tempfile.mkdtemp(prefix="two-gpus-"))[0])  # rank 0's, for what is not kept
    out = Path(args.out) if args.out else scratch
    out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"schema": "kareus.bench_two_gpus/1", "bench": "loop", "checks": {}}
    checks: dict[str, Any] = result["checks"]
    job.be_deterministic(True)
    job.observe()
    schedule = Schedule.load(args.schedule) if args.schedule else all_knobs(job)

    job.say("stock")
    job.build()
    stock = train(job, args.steps) if job.moves_data else []

    job.say("collect")
    folder = out / f"collect-{args.wrapper}-{args.link}"
    os.environ["KAREUS_COLLECT"] = str(folder)
    os.environ.setdefault("KAREUS_COLLECT_WAIT", "4")
    job.build()
    session = kareus.attach(job.model, job.optimizer, mode="collect")
    job.play(session)
    collected = train(job, args.steps)
    session.detach()
    checks["losses while collecting equal stock"] = verdict(job, collected == stock)
    checks["every rank's trace was written"] = verdict(job, *traces_written(job, folder))

    job.say("replay")
    job.build()
    driver, tickets = replay(job, schedule, scratch)
    losses, records, report, ladder = driver
    checks["losses under the schedule equal stock"] = verdict(job, losses == stock)
    checks["issued as decided"] = check_issued(schedule, tickets)
    checks["grids are the budgets"] = check_grids(job, schedule, scratch / "replay", ladder)
    checks["records hold time, energy and exposed communication"] = check_records(job, records)

    everyone = job.gather(checks)
    result |= {
        "facts": job.facts(""),
        "schedule": json.loads(schedule.to_bytes()),
        "losses": {"stock": stock, "collect": collected, "replay": losses},
        "report": report,
        "records": records,
        "checks": everyone,
    }
    failed = sorted({name for ranks in everyone for name, row in ranks.items() if row["ok"] is False})
    if job.rank == 0:
        (out / f"loop-{args.wrapper}-{args.link}.json").write_text(json.dumps(result))
        for name in checks:
            rows = [ranks[name] for ranks in everyone]
            worst = next((r for r in rows if r["ok"] is False), rows[0])
            mark = {True: "ok", False: "FAILED", None: "not checked"}[worst["ok"]]
            print(f"{mark:12} {name}{': ' + worst['note'] if worst['note'] else ''}", flush=True)
        print(f"raw data: {out}", flush=True)
    return 1 if failed else 0


def train(job: Job, steps: int, after: Any = None) -> list[float]:
    losses = []
    for _ in range(steps):
        losses.append(job.step())
        if after is not None:
            after()
    return [float(loss) for loss in losses]


def verdict(job: Job, ok: bool, note: str = "") -> dict[str, Any]:
    if not job.moves_data:
        return {"ok": None, "note": "the fake group moves no data"}
    return {"ok": ok, "note": note}


def traces_written(job: Job, folder: Path) -> tuple[bool, str]:
    from kareus.trace.graph import graphs
    from kareus.trace.ranks import TraceSet

    job.barrier()
    traces = TraceSet.open(folder)
    counts = {rank: len(graphs(traces.load(rank))) for rank in traces.ranks}
    ok = traces.complete and all(counts.values())
    return ok, f"steps by rank: {counts}"


def replay(job: Job, schedule: Any, out: Path) -> tuple[Any, list[Any]]:
    """Train under the schedule with a profiler window over its last steps."""
    import kareus
    from kareus.collect import CollectOptions, Collector
    from kareus.collect.gather import make_link

    args = job.args
    session = kareus.attach(
        job.model, job.optimizer, schedule=schedule, mode="replay", guard=False, records=str(out)
    )
    job.play(session)
    window = CollectOptions(wait=args.steps - 4, warmup=1, active=2)
    session.follow(Collector(session.job, str(out / "replay"), window, make_link(60.0)))
    step_tickets: list[Any] = []
    last: list[Any] = []
    opening = session.conductor.open

    def opened(*call: Any) -> Any:
        ticket = opening(*call)
        step_tickets.append(ticket)
        return ticket

    def after() -> None:
        last[:] = step_tickets
        step_tickets.clear()

    session.conductor.open = opened
    losses = train(job, args.steps, after)
    report = session.report()
    ladder = session.conductor.ladder
    session.detach()
    import msgspec

    records = [msgspec.to_builtins(record) for record in session.records]
    return (losses, records, report, ladder), last


def check_issued(schedule: Any, tickets: list[Any]) -> dict[str, Any]:
    """Every collective of the last step was issued with the decision the schedule has for it."""
    wrong = []
    planned = 0
    for ticket in tickets:
        wanted = schedule.decision_for(ticket.key)
        planned += not wanted.is_stock
        if (ticket.decision.num_ctas, ticket.decision.serialise) != (wanted.num_ctas, wanted.serialise):
            wrong.append(f"{ticket.key}: {ticket.decision.num_ctas} for {wanted.num_ctas}")
        if wanted.path != ticket.path.name:
            wrong.append(f"{ticket.key}: {ticket.path.name} for {wanted.path}")
    note = f"{len(tickets)} collectives, {planned} not stock"
    return {"ok": bool(tickets) and not wrong, "note": "; ".join([note, *wrong[:5]])}


def check_grids(job: Job, schedule: Any, folder: Path, ladder: Any) -> dict[str, Any]:
    """Every NCCL kernel of a scheduled step has as many thread blocks as its communicator allows."""
    if job.device.type != "cuda" or not job.moves_data:
        return {"ok": None, "note": "needs NCCL"}
    from kareus.trace.graph import graphs
    from kareus.trace.identity import collective_key
    from kareus.trace.ranks import TraceSet

    job.barrier()
    trace = TraceSet.open(folder).load(job.rank)
    wrong, seen = [], 0
    for graph in graphs(trace):
        for collective in graph.collectives:
            key = collective_key(collective)
            decision = None if key is None else schedule.decision_for(key)
            if decision is None or decision.num_ctas is None or collective.path != "nccl":
                continue
            seen += 1
            made = ladder.nearest.get((key.kind, decision.num_ctas), decision.num_ctas)
            if collective.num_ctas != made:
                wrong.append(f"{key}: grid {collective.num_ctas}, scheduled {decision.num_ctas}, made {made}")
    return {"ok": seen > 0 and not wrong, "note": "; ".join([f"{seen} kernels", *wrong[:5]])}


def check_records(job: Job, records: list[dict[str, Any]]) -> dict[str, Any]:
    scheduled = [r for r in records if r["arm"] == "scheduled"]
    timed = [r for r in scheduled if r["time_us"] > 0]
    exposed = [r for r in scheduled if r["exposed_comm_us"] is not None]
    energy = [r for r in scheduled if r["energy_j"] is not None]
    cuda = job.device.type == "cuda"
    ok = bool(scheduled) and len(timed) == len(scheduled) and bool(exposed) and (bool(energy) or not cuda)
    note = f"{len(scheduled)} scheduled steps, exposed known of {len(exposed)}, energy of {len(energy)}"
    return {"ok": ok, "note": note}
