"""Requested against observed: a recording made while a schedule was in force, beside that schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

from kareus.report.tables import console, grid
from kareus.schedule import Schedule
from kareus.trace.carried_out import CarriedOut, carried_out, early_gathers
from kareus.trace.types import StepGraph

STATED_PROBLEMS = 5


def observed_document(graph: StepGraph, schedule: Schedule) -> dict[str, Any]:
    """Return what `kareus inspect --schedule` says of one rank's step, JSON-encodable; times in us."""
    found = carried_out(graph, schedule)
    return {
        "rank": graph.rank,
        "step": graph.index,
        "decisions": [_entry(item) for item in found],
        "early_gathers": {"requested": schedule.early_gathers, "observed": early_gathers(graph)},
    }


def _entry(item: CarriedOut) -> dict[str, Any]:
    decision = item.decision
    return {
        "collective": str(decision.collective),
        "kind": decision.collective.kind,
        "phase": decision.collective.phase,
        "requested": {"num_ctas": decision.num_ctas, "path": str(decision.path)},
        "observed": {"num_ctas": item.num_ctas, "path": item.path} if item.found else None,
        "launch": None if decision.launch is None else str(decision.launch),
        "after_point_us": item.after_point_us,
        "problem": item.problem,
    }


def print_observed(document: Mapping[str, Any], *, file: IO[str] | None = None) -> None:
    """Print one row for each kind, phase and request, and under it what differs."""
    rows: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for entry in document["decisions"]:
        wanted = entry["requested"]
        asked = (
            "copy engine"
            if wanted["path"] == "copy_engine"
            else f"<= {wanted['num_ctas']} CTAs"
            if wanted["num_ctas"]
            else "as stock"
        )
        rows.setdefault((entry["kind"], entry["phase"], asked), []).append(entry)
    out = console(file)
    grid(
        out,
        ("collective", "phase", "requested", "observed", "count", "launch points", "differ"),
        [[*key, _seen(held), str(len(held)), _points(held), str(_problems(held))] for key, held in rows.items()],
        left=(0, 1, 2, 3, 5),
        title=f"rank {document['rank']}, step {document['step']}: requested and observed",
    )  # fmt: skip
    early = document["early_gathers"]
    if early["requested"]:
        out.print(
            f"early gathers: {early['requested']} requested, {early['observed']} issued inside the optimizer"
        )
    different = [entry for entry in document["decisions"] if entry["problem"]]
    for entry in different[:STATED_PROBLEMS]:
        out.print(f"{entry['collective']}: {entry['problem']}")
    if len(different) > STATED_PROBLEMS:
        out.print(f"... and {len(different) - STATED_PROBLEMS} more, see --json")


def _seen(entries: Sequence[Mapping[str, Any]]) -> str:
    seen = [entry["observed"] for entry in entries if entry["observed"]]
    grids = sorted({item["num_ctas"] for item in seen if item["num_ctas"]})
    words = []
    if grids:
        words.append(f"{grids[0]} CTAs" if len(grids) == 1 else f"{grids[0]} to {grids[-1]} CTAs")
    if any(item["path"] == "copy_engine" for item in seen):
        words.append("copy engine")
    return ", ".join(words) or "not known"


def _points(entries: Sequence[Mapping[str, Any]]) -> str:
    margins = [entry["after_point_us"] for entry in entries if entry["after_point_us"] is not None]
    asked = sum(entry["launch"] is not None for entry in entries)
    if not asked:
        return "-"
    if not margins:
        return f"{asked}, none shown"
    return f"{len(margins)} of {asked} shown, {min(margins):+.0f} us at least"


def _problems(entries: Sequence[Mapping[str, Any]]) -> int:
    return sum(bool(entry["problem"]) for entry in entries)
