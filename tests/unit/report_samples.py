"""Made-up report data with figures that are easy to recognise on a page."""

from __future__ import annotations

from kareus.report.data import (
    Counter,
    DecisionRow,
    Effect,
    FrontierPoint,
    FrontierView,
    PolicyRow,
    RankView,
    ReportData,
    ScalingRow,
    Slice,
    SliceClass,
    SolverFacts,
    Source,
    Timeline,
    Track,
)
from kareus.report.lanes import breakdown


def piece(start_us: float, end_us: float, kind: SliceClass, label: str = "k", op: int = -1) -> Slice:
    return Slice(
        start_ns=round(start_us * 1e3),
        end_ns=round(end_us * 1e3),
        kind=kind,
        label=label,
        op=op,
        detail="24 CTAs" if kind.is_communication else "",
    )


def timeline(source: Source, scale: float = 1.0) -> Timeline:
    """Ten milliseconds (times scale): 7.5 ms compute, 2.5 ms of all-gather of which 1.5 ms is exposed."""
    gemm, gather = SliceClass.GEMM, SliceClass.ALL_GATHER
    compute = (
        piece(1000 * scale, 5000 * scale, gemm, "gemm<1>", op=0),
        piece(6000 * scale, 9500 * scale, SliceClass.MEMORY, "add", op=1),
    )
    gathers = (
        piece(0, 1500 * scale, gather, "all_gather(root, forward)", op=2),
        piece(5000 * scale, 6000 * scale, gather, "all_gather(blocks.1, forward)", op=3),
    )
    return Timeline(
        duration_ns=round(10_000_000 * scale),
        tracks=(
            Track(name="compute, stream 7", slices=compute),
            Track(name="all-gather, stream 22", slices=gathers),
        ),
        source=source,
        counters=(Counter(name="power W", samples=((0, 650.5), (5_000_000, 690.25))),),
        arrows=((2, 0), (3, 1)),
    )


def report(**changes: object) -> ReportData:
    before, after = timeline(Source.MEASURED), timeline(Source.PREDICTED, 0.9)
    view = RankView(rank=1, before=before, after=after)
    points = (
        FrontierPoint(time_us=9000, energy_j=6.3, status="optimal", bound_j=6.29, gap=0.0016),
        FrontierPoint(time_us=9300, energy_j=6.1, status="optimal", bound_j=6.1, gap=0.0),
        FrontierPoint(time_us=9900, energy_j=6.0, status="optimal", bound_j=6.0, gap=0.0),
    )
    values: dict[str, object] = {
        "title": "FSDP2 on 2 x <GPU>",
        "subject": "made-up trace & step",
        "verified": False,
        "recorded": Effect(time_us=10_000, energy_j=None, source=Source.MEASURED),
        "stock": Effect(time_us=9_950, energy_j=6.9, source=Source.PREDICTED),
        "scheduled": Effect(time_us=9_000, energy_j=6.3, source=Source.PREDICTED),
        "bound": Effect(time_us=9_000, energy_j=6.29, source=Source.BOUND),
        "solver": SolverFacts(status="optimal", gap=0.0016, certificate="dynamic programme", solve_s=0.42),
        "before": breakdown(before),
        "after": breakdown(after),
        "ranks": (view, RankView(rank=0, before=before, after=after)),
        "frontier": FrontierView(
            points=points,
            stock=FrontierPoint(time_us=9950, energy_j=6.9),
            serialised=FrontierPoint(time_us=11_400, energy_j=7.4),
            chosen=points[0],
            knee=points[1],
            least_energy=points[2],
        ),
        "decisions": (
            DecisionRow(
                what="all-gather, forward, blocks.1", count=1, change="at most 8 CTAs", effect="<same>"
            ),
        ),
        "settings": ("Gathers 2 units ahead in the forward pass.",),
        "composition_error": -0.005,
        "parts_error": 0.0123,
        "assumptions": ("Static power is 123 W (assumed).",),
        "notes": ("One note.",),
        "policies": (
            PolicyRow(name="stock", effect=Effect(time_us=9_950, energy_j=6.9, source=Source.PREDICTED)),
            PolicyRow(
                name="Zeus",
                effect=Effect(time_us=10_100, energy_j=6.5, source=Source.PREDICTED),
                needs=("root",),
                runnable=False,
            ),
        ),
        "scaling": (
            ScalingRow(
                label="InfiniBand, 400 Gbit/s",
                num_ranks=64,
                stock=Effect(time_us=12_000, energy_j=None, source=Source.PREDICTED),
                scheduled=Effect(time_us=11_100, energy_j=None, source=Source.PREDICTED),
            ),
        ),
        "provenance": (("trace", "some/dir"), ("schedule", "schedule.json")),
        "commands": ("kareus simulate some/dir --schedule schedule.json",),
    }
    values.update(changes)
    return ReportData(**values)  # type: ignore[arg-type]
