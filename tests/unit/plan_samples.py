"""A recorded step and a plain cost model, shared by the planner's tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kareus.model.cost import CostModel
from kareus.plan.knobs import Knobs
from kareus.plan.problem import StepProblem, build_problem
from kareus.trace.graph import graphs
from kareus.trace.ranks import TraceSet
from kareus.trace.types import StepGraph

TRACES = Path(__file__).parents[2] / "traces"
COST = CostModel.assumed("NVIDIA H200", 132)
PLAIN = Knobs(ctas=(2, 8, 16))


@cache
def recorded(name: str = "fsdp2-nvlink-default") -> StepGraph:
    """The last recorded step of rank 0."""
    return graphs(TraceSet.open(str(TRACES / name)).load(0))[-1]


@cache
def problem_of(name: str = "fsdp2-nvlink-default", knobs: Knobs = PLAIN) -> StepProblem:
    return build_problem(recorded(name), COST, knobs)
