"""Makespan: finish all present jobs as early as possible.

Source: Narayanan et al., OSDI 2020. The published policy searches for the time within 5 %, and so do `interior` shares;
otherwise the result is the optimum.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from levada.compat.gavel.solver.interior import makespan_interior
from levada.compat.gavel.solver.interior_packed import makespan_packed_interior
from levada.core.types import Floats
from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.lp_common import (
    INTERIOR,
    LEXIMIN,
    best_shares,
    can_run,
    even_shares_of,
    first_solved,
    pairs_of,
    problem_of,
    reference_rates,
    shares_of,
    which_shares,
)
from levada.policies.gavel.share import ShareDefaults, Shares
from levada.policies.protocol import Needs
from levada.solve.finish_time import makespan
from levada.solve.packed import makespan_packed
from levada.solve.problem import Solution


class MinTotalDuration(ShareDefaults):
    """Makespan with the speed of the reference type on every type."""

    name: ClassVar[str] = "min_total_duration"
    needs: ClassVar[Needs] = Needs.REMAINING | Needs.RATE
    objective: ClassVar[str] = "makespan_agnostic"

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares)

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares that finish the last job earliest."""
        published = self.which == INTERIOR
        solution = _makespan(instance, reference_rates(instance), published)
        return (shares_of(solution, can_run(instance)) if published else even_shares_of(solution, instance)), None


class MinTotalDurationPerf(ShareDefaults):
    """Makespan with the measured speed on each GPU type."""

    name: ClassVar[str] = "min_total_duration_perf"
    needs: ClassVar[Needs] = Needs.REMAINING | Needs.RATE
    objective: ClassVar[str] = "makespan"
    aware: ClassVar[bool] = True

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares)

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares that finish the last job earliest."""
        published = self.which == INTERIOR
        solution = _makespan(instance, instance.rate, published)
        return shares_of(solution, can_run(instance) if published else None), None


class MinTotalDurationPacked(ShareDefaults):
    """Makespan with the speed on each GPU type and space sharing."""

    name: ClassVar[str] = "min_total_duration_packed"
    needs: ClassVar[Needs] = Needs.REMAINING | Needs.RATE
    objective: ClassVar[str] = "makespan"
    aware: ClassVar[bool] = True
    packs: ClassVar[bool] = True

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares)

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares that finish the last job earliest."""
        published = self.which == INTERIOR
        problem = problem_of(instance, weighted=False, published=published)
        arguments = (problem, *pairs_of(instance, problem), instance.steps_left)
        best, interior = partial(makespan_packed, *arguments), partial(makespan_packed_interior, *arguments)
        return best_shares(instance, best, interior, published), None


def _makespan(instance: Instance, rate: Floats, published: bool) -> Solution:
    problem = problem_of(instance, rate, weighted=False, published=published)
    best = partial(makespan, problem, instance.steps_left)
    return first_solved(partial(makespan_interior, problem, instance.steps_left), best) if published else best()
