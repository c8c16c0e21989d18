"""The middle of an optimal face. Interior-point solvers end there, simplex ends in a corner; both are optimal.

Published results of policies that ask an interior-point solver depend on its choice: every job gets a little of every
type. To repeat them, take these shares; to run jobs well, take `leximin`.
"""

from __future__ import annotations

from levada.core.types import Floats
from levada.solve.problem import Problem, Solution
from levada.solve.safe import safe


@safe
def max_min_interior(problem: Problem) -> Solution:
    """See `max_min`."""
    raise NotImplementedError


@safe
def total_interior(problem: Problem, cost: Floats | None = None, need: Floats | None = None) -> Solution:
    """See `total`."""
    raise NotImplementedError


@safe
def makespan_interior(problem: Problem, steps: Floats, slack: float = 0.0) -> Solution:
    """See `makespan`; any shares that end within (1 + *slack*) of the least time will do."""
    raise NotImplementedError


@safe
def finish_time_interior(problem: Problem, steps: Floats, elapsed: Floats, ideal: Floats) -> Solution:
    """See `finish_time`."""
    raise NotImplementedError
