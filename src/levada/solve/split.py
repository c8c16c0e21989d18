"""From what a class gets to what each of its jobs gets."""

from __future__ import annotations

from levada.core.types import Floats, Ints
from levada.solve.problem import Problem, Solution


def sparse(problem: Problem, solution: Solution, last: Ints | None = None) -> Floats:
    """Shares (jobs, types) that reach the same levels with few types per job, preferably the *last* one (-1 = none)."""
    raise NotImplementedError
