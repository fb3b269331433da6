"""Why unmodified replay misses exposed communication: `python tests/bench/replay_races.py DIR...`.

For every ordered pair of recorded steps of a job, three questions. How many ops that started late in one step (held
by a kernel of another stream) started at once in the other: same job, same rank, same op? How close was it, from
the moment such an op could start to the start of the kernel that kept it waiting? And how far off is the replay
with all ranks if lags, or who is held, or both, are taken from the judged step itself instead of the other one?
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_trace import save

from kareus.trace import TraceSet, graphs
from kareus.trace.holds import PROMPT_NS, Crowd
from kareus.trace.lags import _recorded_ready, places
from kareus.trace.replay import judge, learn_ranks, replay_ranks
from kareus.trace.types import StepGraph

NARROW_NS = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", nargs="+")
    jobs = [job(Path(source)) for source in parser.parse_args().source]
    for one in jobs:
        print(json.dumps(one))
    save("trace_replay_races", {"jobs": jobs})


def job(folder: Path) -> dict[str, Any]:
    """Answer the three questions for one job."""
    traces = TraceSet.open(folder)
    steps = [graphs(traces.load(rank)) for rank in traces.ranks]
    offsets = [traces.alignment.offset_ns[rank] for rank in traces.ranks]
    count = min(len(s) for s in steps)
    met = [[meetings(graph) for graph in of_rank] for of_rank in steps]
    late = other_winner = 0
    margins: list[int] = []
    errors: dict[str, list[float]] = {}
    for source in range(count):
        for judged in range(count):
            if source == judged:
                continue
            for of_rank in met:
                here, there = of_rank[judged], of_rank[source]
                late += sum(here[place][0] for place in here if place in there)
                for place in here.keys() & there.keys():
                    if here[place][0] and not there[place][0]:
                        other_winner += 1
                        margins.append(here[place][1])
            learnt = learn_ranks([s[source] for s in steps])
            own = learn_ranks([s[judged] for s in steps])
            variants = {
                "all from the other step": learnt,
                "who is held as judged": [
                    replace(a, release=b.release) for a, b in zip(learnt, own, strict=True)
                ],
                "lags as judged": [
                    replace(a, by_place=b.by_place, by_kind=b.by_kind)
                    for a, b in zip(learnt, own, strict=True)
                ],
                "both as judged": [
                    replace(b, by_itself=a.by_itself) for a, b in zip(learnt, own, strict=True)
                ],
            }
            for name, lags in variants.items():
                step = [s[judged] for s in steps]
                replayed = replay_ranks(step, lags, offsets)
                pairs = zip(step, replayed, strict=True)
                errors.setdefault(name, []).extend(judge(graph, times).exposed_comm for graph, times in pairs)
    return {
        "job": folder.name,
        "late": late,
        "at_once_in_the_other_step": other_winner,
        "margin_us_median": statistics.median(margins) / 1000 if margins else None,
        "margin_below_10_us": sum(m < NARROW_NS for m in margins) / len(margins) if margins else None,
        "exposed_error_worst": {name: max(values) for name, values in errors.items()},
    }


def meetings(graph: StepGraph) -> dict[tuple[int, ...], tuple[bool, int]]:
    """Per place: whether the op started late beside a kernel of another stream, and by how little it lost to that."""
    ready, _ = _recorded_ready(graph)
    crowd, found = Crowd(graph), {}
    for op, place in enumerate(places(graph)):
        late = crowd.late(op, int(ready[op]))
        lost_by = [abs(int(graph.ops.start_ns[one]) - int(ready[op])) for one in late.others]
        found[place] = (late.gap_ns > PROMPT_NS and bool(lost_by), min(lost_by, default=0))
    return found


if __name__ == "__main__":
    main()
