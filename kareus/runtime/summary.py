"""The session's report: a plain dictionary for people and tools."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kareus.runtime.session import Session

SCHEMA = "kareus.session/1"


def summarise(session: Session, why_inactive: str) -> dict[str, Any]:
    """Return what a session did: arms with median step time, the guard's verdict, counts and memory.

    Times are microseconds, energies joules a step, memory bytes.
    """
    arms: dict[str, dict[str, Any]] = {}
    for arm in ("observe", "stock", "scheduled"):
        records = [r for r in session.records if r.arm == arm]
        if not records:
            continue
        exposed = [r.exposed_comm_us for r in records if r.exposed_comm_us is not None]
        energy = [r.energy_j for r in records if r.energy_j is not None]
        arms[arm] = {
            "steps": len(records),
            "time_us": median(r.time_us for r in records),
            "exposed_comm_us": median(exposed) if exposed else None,
            "energy_j": sum(energy) / len(records) if energy else None,
            "missed": sum(r.missed for r in records),
            "unplanned": sum(r.unplanned for r in records),
        }
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "state": session.state,
        "mode": session.mode,
        "steps": session.step_count,
        "arms": arms,
        "counts": dict(session.tally.counts),
        "notes": list(session.notes),
        "reason": why_inactive,
    }
    if session.pilot is not None:
        comparison = session.pilot.guard.comparison
        found["reason"] = session.pilot.reason
        found["guard"] = (
            None
            if comparison is None
            else {
                "verdict": session.pilot.guard.decided or "undecided",
                "time_ratio": comparison.time_ratio,
                "interval": [comparison.low, comparison.high],
                "energy_ratio": comparison.energy_ratio,
                "scheduled_steps": comparison.num_scheduled,
                "stock_steps": comparison.num_stock,
            }
        )
    if session.conductor is not None:
        ladder = session.conductor.ladder
        copies = [path for path in session.conductor.paths.values() if path.name != "nccl"]
        found["ladder"] = {
            "groups": ladder.rungs(),
            "memory_bytes": ladder.memory_bytes,
            "copy_buffers_bytes": sum(int(getattr(path, "memory_bytes", 0)) for path in copies),
        }
        found["waits"] = list(session.conductor.watch.messages)
    return found
