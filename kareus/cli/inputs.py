"""What several subcommands read the same way: a trace directory, a profile, a step, the knobs."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import msgspec

from kareus.errors import InputError, UsageError
from kareus.model.calibrate import calibrated
from kareus.model.cost import CostModel
from kareus.model.profile import Profile
from kareus.plan.buckets import regrouped
from kareus.plan.calibrate import fit_link
from kareus.plan.recorded import step_spread
from kareus.schedule import Schedule
from kareus.trace.graph import graphs
from kareus.trace.ranks import TraceSet
from kareus.trace.types import StepGraph

ALIGN_UP_TO = 16  # ranks read in full to measure the job's own link; more would take minutes


@dataclass(frozen=True, kw_only=True, slots=True)
class StepInput:
    """One recorded step chosen for planning.

    Attributes:
        traces: the job's traces. graph: the chosen step of the chosen rank.
        cost: fitted from the profile, or assumed; then calibrated to the chosen step.
        step_spread: relative standard deviation of that rank's recorded steps, None for fewer than three.
        profile_note: a sentence on where the costs come from.
        conditions: versions and hardware of the recording.
    """

    traces: TraceSet
    graph: StepGraph
    cost: CostModel
    step_spread: float | None
    profile_note: str
    conditions: dict[str, str]


def add_step_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a recorded step and its cost model."""
    parser.add_argument("directory", metavar="DIR", help="directory with one trace file per rank")
    parser.add_argument(
        "--profile", metavar="FILE", help="measured profile of this kind of GPU (kareus.profile/1)"
    )
    add_execution_argument(parser)
    parser.add_argument(
        "--rank", type=int, help="rank to plan on (default: the slowest); also names a single file's"
    )
    parser.add_argument("--step", type=int, help="step of the trace, from 0 (default: the last)")


def add_execution_argument(parser: argparse.ArgumentParser) -> None:
    """Add --execution-trace."""
    parser.add_argument(
        "--execution-trace",
        metavar="FILE",
        action="append",
        default=[],
        help="PyTorch execution trace of the same run, names process groups and sizes; once for each rank, in order "
        "(default: what lies beside a trace as et_0.json, rank0.et.json, ...)",
    )


def read_step(args: argparse.Namespace) -> StepInput:
    """Read what `add_step_arguments` describes; warnings go to stderr.

    Raises:
        InputError: files that cannot be used. UsageError: a rank or step that is not there.
    """
    traces = TraceSet.open(args.directory, execution=args.execution_trace, rank=args.rank)
    ranks = traces.ranks
    if args.rank is not None and args.rank not in ranks:
        raise UsageError(f"--rank {args.rank}: {args.directory} holds ranks {', '.join(map(str, ranks))}")
    chosen, spread = _pick(traces, ranks if args.rank is None else (args.rank,), args.step)
    for warning in traces.warnings:
        print(f"warning: {warning.text}", file=sys.stderr)
    cost, note = read_cost(args.profile, chosen)
    if 1 < len(ranks) <= ALIGN_UP_TO:
        cost = fit_link(cost, traces.alignment, traces.world_size)
    cost = calibrated(cost, chosen)  # after the link: what it then moves is this job's contention and clock
    return StepInput(
        traces=traces,
        graph=chosen,
        cost=cost,
        step_spread=spread,
        profile_note=note,
        conditions=conditions(traces, chosen),
    )


def _pick(traces: TraceSet, ranks: tuple[int, ...], step: int | None) -> tuple[StepGraph, float | None]:
    """The wanted step of the rank whose step takes longest, which decides everybody's; the spread of its steps.

    With many ranks only a few are read in full: the first, the last and those between at equal distance.
    """
    stride = max(1, len(ranks) // 4)
    best: StepGraph | None = None
    spread: float | None = None
    for rank in ranks[::stride]:
        found = graphs(traces.load(rank))
        if not found:
            raise InputError(
                f"rank {rank}: no complete training step in its trace; record at least two steps"
            )
        if step is not None and not 0 <= step < len(found):
            raise UsageError(f"--step {step}: the trace of rank {rank} holds steps 0..{len(found) - 1}")
        graph = found[-1 if step is None else step]
        if best is None or graph.duration_ns > best.duration_ns:
            best, spread = graph, step_spread(found)
    assert best is not None  # TraceSet.open refuses a directory without ranks
    return best, spread


def read_cost(profile: str | None, graph: StepGraph) -> tuple[CostModel, str]:
    """Return the cost model to use and a sentence on where it comes from."""
    if profile is None:
        return (
            CostModel.assumed(graph.gpu, graph.num_sms),
            f"unverified: costs of {graph.gpu or 'an unknown GPU'} are assumed; pass --profile to use measurements",
        )
    loaded = Profile.load(profile)
    cost = CostModel.from_profile(loaded)
    if graph.gpu and loaded.gpu != graph.gpu:
        return cost, f"unverified: the profile is of {loaded.gpu}, the trace of {graph.gpu}"
    return cost, f"costs fitted from {profile} ({loaded.gpu})"


def conditions(traces: TraceSet, graph: StepGraph) -> dict[str, str]:
    """Return versions and hardware of the recording, as a schedule carries them."""
    manifest = traces.manifest
    found = {"gpu": graph.gpu}
    if manifest is not None:
        found |= {"torch": manifest.torch, "nccl": manifest.nccl, "driver": manifest.driver}
    return {name: text for name, text in found.items() if text}


def with_recorded_buckets(schedule: Schedule) -> Schedule:
    """Return the schedule without what is said of DDP buckets that the recorded step does not have."""
    if schedule.ddp_bucket_cap_mb is None:
        return schedule
    return msgspec.structs.replace(schedule, decisions=())


def with_scheduled_buckets(graph: StepGraph, schedule: Schedule, traces: TraceSet) -> StepGraph:
    """Return a recorded step with the DDP buckets of a schedule, where it sets their size.

    Raises:
        InputError: how buckets of that size would fill cannot be worked out.
    """
    if schedule.ddp_bucket_cap_mb is None:
        return graph
    manifest = traces.manifest
    found = regrouped(graph, manifest.gradients if manifest else (), schedule.ddp_bucket_cap_mb)
    if found is None:
        raise InputError(
            f"the schedule sets DDP buckets of {schedule.ddp_bucket_cap_mb:g} MB, but the trace does not show how "
            "buckets fill: expected a recording of stock's buckets with the gradients in its manifest; record again"
        )
    return found
