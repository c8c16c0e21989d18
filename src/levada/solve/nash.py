"""The best geometric mean of levels (Nash welfare), and the same discounted so that no job gains by lying."""

from __future__ import annotations

from levada.solve.problem import Problem, Solution
from levada.solve.safe import safe


@safe
def nash(problem: Problem) -> Solution:
    """The largest geometric mean of the levels of `max_min`, as `level`."""
    raise NotImplementedError


@safe
def strategy_proof(problem: Problem) -> Solution:
    """The shares of `nash`, each job's times what its being there leaves the others. `level` is undiscounted."""
    raise NotImplementedError
