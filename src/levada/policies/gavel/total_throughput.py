"""Maximum total throughput, optionally per cost and with deadlines.

Source: Narayanan et al., OSDI 2020. Steps are summed unweighted, so jobs with many short steps win. A deadline requires
the rate that meets it; if not all deadlines can be met, none is enforced and an alarm says so.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from levada.compat.gavel.solver.interior import total_interior
from levada.compat.gavel.solver.interior_packed import total_packed_interior
from levada.core.types import Floats
from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.lp_common import (
    INTERIOR,
    LEXIMIN,
    best_shares,
    pairs_of,
    problem_of,
    which_shares,
)
from levada.policies.gavel.share import ShareDefaults, Shares
from levada.policies.protocol import Needs
from levada.solve.max_throughput import total
from levada.solve.packed import total_packed


class MaxSumThroughputPerf(ShareDefaults):
    """Total steps per second."""

    name: ClassVar[str] = "max_sum_throughput_perf"
    needs: ClassVar[Needs] = Needs.RATE
    objective: ClassVar[str] = "sum_throughput"
    aware: ClassVar[bool] = True

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares)

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares with the largest sum of rates."""
        return _most_steps(instance, self.which, None, None), None


class MaxSumThroughputByCostPerf(ShareDefaults):
    """Total steps per dollar."""

    name: ClassVar[str] = "max_sum_throughput_normalized_by_cost_perf"
    needs: ClassVar[Needs] = Needs.RATE
    objective: ClassVar[str] = "sum_throughput_per_cost"
    aware: ClassVar[bool] = True

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares)

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares with the largest sum of rates over prices."""
        return _most_steps(instance, self.which, instance.prices, None), None


class MaxSumThroughputByCostPerfSlos(ShareDefaults):
    """Total steps per dollar, with deadlines."""

    name: ClassVar[str] = "max_sum_throughput_normalized_by_cost_perf_SLOs"
    needs: ClassVar[Needs] = Needs.RATE | Needs.REMAINING | Needs.DEADLINE
    objective: ClassVar[str] = "sum_throughput_per_cost"
    aware: ClassVar[bool] = True

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares)

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares with the largest sum of rates over prices that meet all deadlines."""
        return _most_steps(instance, self.which, instance.prices, _required_rate(instance)), None


class MaxSumThroughputByCostPackedSlos(ShareDefaults):
    """Total steps per dollar, with deadlines and space sharing."""

    name: ClassVar[str] = "max_sum_throughput_normalized_by_cost_packed_SLOs"
    needs: ClassVar[Needs] = Needs.RATE | Needs.REMAINING | Needs.DEADLINE
    objective: ClassVar[str] = "sum_throughput_per_cost_packed"
    aware: ClassVar[bool] = True
    packs: ClassVar[bool] = True

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares)

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares with the largest sum of rates over prices that meet all deadlines."""
        published = self.which == INTERIOR
        problem = problem_of(instance, weighted=False, published=published)
        arguments = (problem, *pairs_of(instance, problem), instance.prices, _required_rate(instance))
        best, interior = partial(total_packed, *arguments), partial(total_packed_interior, *arguments)
        return best_shares(instance, best, interior, published), None


def _most_steps(instance: Instance, which: str, cost: Floats | None, required: Floats | None) -> Shares:
    """Shares with the largest sum of rates over *cost*, and at least *required* rates."""
    published = which == INTERIOR
    arguments = (problem_of(instance, weighted=False, published=published), cost, required)
    return best_shares(instance, partial(total, *arguments), partial(total_interior, *arguments), published)


def _required_rate(instance: Instance) -> Floats:
    """The rate that meets each deadline; 0 for jobs without a deadline or past it."""
    left = instance.deadline - instance.snap.now
    counts = np.isfinite(left) & (left > 0)
    return np.where(counts, instance.steps_left / np.where(counts, left, 1.0), 0.0)
