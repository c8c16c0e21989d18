"""Sparse split of a solution, by `solve.class_split.split_classes`."""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.solve.class_split import split_classes
from levada.solve.classes import classify
from levada.solve.problem import ShareProblem, Solution


def sparse(problem: ShareProblem, solution: Solution, last: Ints | None = None) -> Floats:
    """Shares (jobs, types) that reach the same levels with few types per job, preferably the *last* one (-1 = none)."""
    rows = classify(problem)
    assert rows.of is not None
    mass: Floats = np.column_stack([np.bincount(rows.of, share, len(rows.rate)) for share in solution.share.T])
    reached = (rows.rate[rows.of] * solution.share).sum(axis=1)
    return split_classes(rows.rate, mass, rows.of, reached, last)
