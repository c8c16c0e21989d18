"""The most steps per second over all jobs, or the most steps per cost."""

from __future__ import annotations

from levada.core.types import Floats
from levada.solve.problem import Problem, Solution, Warm
from levada.solve.safe import safe


@safe
def total(
    problem: Problem, cost: Floats | None = None, need: Floats | None = None, warm: Warm | None = None
) -> Solution:
    """The largest sum of rate / cost over jobs and types, where each job reaches the rate it *needs* (0 = none).

    *cost* is per type, *need* per job. Needs that cannot be met together are all left out, and the alarm says so.
    """
    raise NotImplementedError
