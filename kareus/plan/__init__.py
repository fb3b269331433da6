"""Planning: spans and costs to an optimisation problem, and its solution back to a Schedule.

    find_spans -> options (every setting, through the cost model) -> solver.Problem
    solver.Solution -> lower -> Schedule

The only package that imports `solver`.
"""
