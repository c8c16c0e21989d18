"""The fair policies where two jobs may share GPUs.

*pairs* (p, 2) are rows of the problem that may run together, `pairs[:, 0] <= pairs[:, 1]`; a row with itself stands for
two jobs of that class. *pair_rate* (p, types, 2) is what each of the two reaches then. Rows of different scale never
share. Classify first, then ask for the rates of pairs of classes. In a solution `share` is time alone, `pairs` and
`pair_share` the time together, by job.
"""

from __future__ import annotations

from levada.core.types import Floats, Ints
from levada.solve.problem import Problem, Solution
from levada.solve.safe import safe


@safe
def max_min_packed(problem: Problem, pairs: Ints, pair_rate: Floats) -> Solution:
    """See `max_min`."""
    raise NotImplementedError


@safe
def leximin_packed(problem: Problem, pairs: Ints, pair_rate: Floats) -> Solution:
    """See `leximin`."""
    raise NotImplementedError


@safe
def finish_time_packed(
    problem: Problem, pairs: Ints, pair_rate: Floats, steps: Floats, elapsed: Floats, ideal: Floats
) -> Solution:
    """See `finish_time`."""
    raise NotImplementedError


@safe
def makespan_packed(problem: Problem, pairs: Ints, pair_rate: Floats, steps: Floats) -> Solution:
    """See `makespan`."""
    raise NotImplementedError


@safe
def total_packed(
    problem: Problem, pairs: Ints, pair_rate: Floats, cost: Floats | None = None, need: Floats | None = None
) -> Solution:
    """See `total`."""
    raise NotImplementedError
