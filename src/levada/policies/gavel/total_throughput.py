"""The most steps of all jobs together, or the most steps for the money; with deadlines if asked.

Source: Narayanan et al., OSDI 2020. Steps are added up as they are: jobs with many short steps win. A deadline asks for
the rate that reaches it; where not all of them can be reached, none counts, and an alarm says so.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from levada.core.types import Floats
from levada.perf.model import ThroughputModel
from levada.policies.gavel.forms import INTERIOR, LEXIMIN, able, pairs_of, problem_of, shares_of, sound, which_shares
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import Shares, Sharing
from levada.policies.protocol import Needs
from levada.solve.interior import total_interior
from levada.solve.interior_packed import total_packed_interior
from levada.solve.packed import total_packed
from levada.solve.total import total


class MaxSumThroughputPerf(Sharing):
    """Steps, whatever they cost."""

    name: ClassVar[str] = "max_sum_throughput_perf"
    needs: ClassVar[Needs] = Needs.RATE
    objective: ClassVar[str] = "sum_throughput"
    aware: ClassVar[bool] = True
    #: Steps are divided by what a GPU of the type costs.
    by_cost: ClassVar[bool] = False
    #: Deadlines count.
    deadlines: ClassVar[bool] = False

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares)

    def initial(self, seed: int) -> None:
        """It remembers nothing."""

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares with the largest sum."""
        published = self.which == INTERIOR
        problem = problem_of(instance, weighted=False, published=published)
        cost = instance.prices if self.by_cost else None
        given = (problem, cost, self._need(instance))
        best = partial(total, *given)
        if not published:
            return shares_of(best()), None
        return shares_of(sound(partial(total_interior, *given), best), able(instance)), None

    def _need(self, instance: Instance) -> Floats | None:
        """The rate that reaches each deadline; none for jobs without one, or whose deadline has passed."""
        if not self.deadlines:
            return None
        left = instance.deadline - instance.snap.now
        asks = np.isfinite(left) & (left > 0)
        return np.where(asks, instance.steps_left / np.where(asks, left, 1.0), 0.0)


class MaxSumThroughputByCostPerf(MaxSumThroughputPerf):
    """Steps for the money."""

    name: ClassVar[str] = "max_sum_throughput_normalized_by_cost_perf"
    objective: ClassVar[str] = "sum_throughput_per_cost"
    by_cost: ClassVar[bool] = True


class MaxSumThroughputByCostPerfSlos(MaxSumThroughputByCostPerf):
    """Steps for the money, and deadlines are met."""

    name: ClassVar[str] = "max_sum_throughput_normalized_by_cost_perf_SLOs"
    needs: ClassVar[Needs] = Needs.RATE | Needs.REMAINING | Needs.DEADLINE
    deadlines: ClassVar[bool] = True


class MaxSumThroughputByCostPackedSlos(MaxSumThroughputByCostPerfSlos):
    """Steps for the money, deadlines are met, and two jobs may share GPUs."""

    name: ClassVar[str] = "max_sum_throughput_normalized_by_cost_packed_SLOs"
    objective: ClassVar[str] = "sum_throughput_per_cost_packed"
    packs: ClassVar[bool] = True

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares with the largest sum."""
        published = self.which == INTERIOR
        problem = problem_of(instance, weighted=False, published=published)
        given = (problem, *pairs_of(instance, problem), instance.prices, self._need(instance))
        best = partial(total_packed, *given)
        if not published:
            return shares_of(best()), None
        return shares_of(sound(partial(total_packed_interior, *given), best), able(instance)), None
