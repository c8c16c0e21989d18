"""All that is there now is done as early as possible (makespan).

Source: Narayanan et al., OSDI 2020. The published policy tries times until it is within 5 %, and so do `interior`
shares; otherwise this is the optimum.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from levada.perf.model import ThroughputModel
from levada.policies.gavel.forms import (
    INTERIOR,
    LEXIMIN,
    able,
    by_reference,
    even_shares_of,
    pairs_of,
    problem_of,
    shares_of,
    sound,
    which_shares,
)
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import Shares, Sharing
from levada.policies.protocol import Needs
from levada.solve.finish_time import makespan
from levada.solve.interior import makespan_interior
from levada.solve.interior_packed import makespan_packed_interior
from levada.solve.packed import makespan_packed


class MinTotalDuration(Sharing):
    """All types taken for the reference type."""

    name: ClassVar[str] = "min_total_duration"
    needs: ClassVar[Needs] = Needs.REMAINING | Needs.RATE
    objective: ClassVar[str] = "makespan_agnostic"

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares)

    def initial(self, seed: int) -> None:
        """It remembers nothing."""

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares with which the last job is done earliest."""
        rate = instance.rate if self.aware else by_reference(instance)
        published = self.which == INTERIOR
        problem = problem_of(instance, rate, weighted=False, published=published)
        best = partial(makespan, problem, instance.steps_left)
        if not published:
            return (shares_of(best()) if self.aware else even_shares_of(best(), instance)), None
        return shares_of(sound(partial(makespan_interior, problem, instance.steps_left), best), able(instance)), None


class MinTotalDurationPerf(MinTotalDuration):
    """Types as they are."""

    name: ClassVar[str] = "min_total_duration_perf"
    objective: ClassVar[str] = "makespan"
    aware: ClassVar[bool] = True


class MinTotalDurationPacked(MinTotalDurationPerf):
    """Types as they are, and two jobs may share GPUs."""

    name: ClassVar[str] = "min_total_duration_packed"
    objective: ClassVar[str] = "makespan"
    packs: ClassVar[bool] = True

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares with which the last job is done earliest."""
        published = self.which == INTERIOR
        problem = problem_of(instance, weighted=False, published=published)
        given = (problem, *pairs_of(instance, problem), instance.steps_left)
        best = partial(makespan_packed, *given)
        if not published:
            return shares_of(best()), None
        return shares_of(sound(partial(makespan_packed_interior, *given), best), able(instance)), None
