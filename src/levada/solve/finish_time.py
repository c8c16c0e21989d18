"""Finish-time fairness and makespan: no job ends late compared with what it could expect."""

from __future__ import annotations

from levada.core.types import Floats
from levada.solve.problem import Problem, Solution, Warm
from levada.solve.safe import safe


@safe
def finish_time(problem: Problem, steps: Floats, elapsed: Floats, ideal: Floats, warm: Warm | None = None) -> Solution:
    """The smallest largest ratio (elapsed + steps / rate) / ideal over jobs; columns are per job, times in seconds.

    *steps* are those left, *elapsed* is the time since the job came, *ideal* the time from coming to end that the job
    could expect alone on its part of the cluster. `level` is the ratio: less is better.
    """
    raise NotImplementedError


@safe
def makespan(problem: Problem, steps: Floats, warm: Warm | None = None) -> Solution:
    """The least time in seconds, as `level`, after which all jobs can have done their *steps*."""
    raise NotImplementedError
