"""Split a solution sparsely: the way from `Solution.share` to `solve.split.shadow`."""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.solve.classes import classify
from levada.solve.problem import Problem, Solution
from levada.solve.split import shadow


def sparse(problem: Problem, solution: Solution, last: Ints | None = None) -> Floats:
    """Shares (jobs, types) that reach the same levels with few types per job, preferably the *last* one (-1 = none)."""
    rows = classify(problem)
    assert rows.of is not None
    mass: Floats = np.column_stack([np.bincount(rows.of, share, len(rows.rate)) for share in solution.share.T])
    reached = (rows.rate[rows.of] * solution.share).sum(axis=1)
    return shadow(rows.rate, mass, rows.of, reached, last)
