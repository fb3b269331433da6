"""From a recorded step to a schedule in Python, without torch and without a GPU.

python examples/offline_solve.py traces/fsdp2-nvlink-default schedule.json [profile.json]

It does what `kareus solve` does, in the library's own words.
"""

from __future__ import annotations

import sys

from kareus.model.cost import CostModel
from kareus.model.profile import Profile
from kareus.plan.knobs import Knobs
from kareus.plan.planner import Goal, make_plan
from kareus.trace.graph import graphs
from kareus.trace.ranks import TraceSet


def main(directory: str, output: str, profile: str | None = None) -> None:
    traces = TraceSet.open(directory)
    steps = [graphs(traces.load(rank))[-1] for rank in traces.ranks]
    graph = max(steps, key=lambda step: step.duration_ns)  # the slowest rank decides the step
    measured = None if profile is None else Profile.load(profile)
    cost = CostModel.from_profile(measured) if measured else CostModel.assumed(graph.gpu, graph.num_sms)

    plan = make_plan(graph, cost, Knobs(), Goal(max_slowdown=0.0))

    print(f"measured  {plan.measured_us / 1000:8.2f} ms")
    print(f"stock     {plan.stock.time_us / 1000:8.2f} ms {plan.stock.energy_j:8.2f} J (model)")
    print(f"planned   {plan.solution.time_us / 1000:8.2f} ms {plan.solution.energy_mj / 1000:8.2f} J (model)")
    print(f"{plan.solution.status}, gap {plan.solution.gap:.2%}, {plan.solution.solve_s:.1f} s")
    if not cost.verified:
        print("unverified: costs are assumed; pass a measured profile as third argument")
    for decision in plan.schedule.decisions[:8]:
        print(f"  {decision.collective}: {decision.num_ctas or 'stock'} CTAs, {decision.launch or 'stock'}")
    plan.schedule.save(output)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
