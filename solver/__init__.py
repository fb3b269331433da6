"""Solver of Kareus: the whole time-energy frontier of a training step, with proof."""

from __future__ import annotations

from solver.check import Judged, judge, require_valid
from solver.dag import DagNode, DagOption, DagProblem, DagSolution
from solver.dag_solve import dag_frontier, solve_dag
from solver.engine import Progress
from solver.errors import ContradictionError, ProblemError, SolverError
from solver.frontier import frontier
from solver.heuristic import heuristic
from solver.point import solve
from solver.problem import Limits, Option, Problem, SpanKind
from solver.solution import Frontier, Objective, Solution, Status

__all__ = [
    "ContradictionError",
    "DagNode",
    "DagOption",
    "DagProblem",
    "DagSolution",
    "Frontier",
    "Judged",
    "Limits",
    "Objective",
    "Option",
    "Problem",
    "ProblemError",
    "Progress",
    "Solution",
    "SolverError",
    "SpanKind",
    "Status",
    "dag_frontier",
    "frontier",
    "heuristic",
    "judge",
    "require_valid",
    "solve",
    "solve_dag",
]
