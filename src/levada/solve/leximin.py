"""Water-filling: the lowest level is as high as possible, then the next lowest, and so on.

Levels are those of `max_min`. They are unique, whatever method finds them.
"""

from __future__ import annotations

from levada.core.types import Bools, Floats
from levada.solve.problem import Problem, Solution, Warm
from levada.solve.safe import safe


@safe
def leximin(problem: Problem, warm: Warm | None = None) -> Solution:
    """Lexicographically largest levels, the lowest first. `level` is the lowest one, `levels` has all."""
    raise NotImplementedError


@safe
def hierarchical(
    problem: Problem, entity_weight: Floats, fifo: Bools | None = None, warm: Warm | None = None
) -> Solution:
    """Water-filling among entities by *entity_weight*, each of which passes its part on to its own jobs.

    Both arrays are indexed by the problem's `entity`. Inside an entity the jobs share by weight, or, where *fifo* says
    so, the first job that can still rise takes all. Jobs of nobody (0) take part on their own, with their own weight.
    """
    raise NotImplementedError
