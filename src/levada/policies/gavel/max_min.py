"""Max-min fairness: maximise the normalised throughput of the worst-off job.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020.
This is Gavel's least attained service. The level of a job is its rate relative to its proportional share of every type,
times its GPUs, over its weight:

    max over shares of  min over jobs  scale / (weight * proportional rate) * rate(shares)

This determines the lowest level only. `shares: leximin` then maximises the second lowest level, and so on, so no usable
capacity stays idle. `shares: interior` returns the analytic centre of all optimal shares, as the published solver did.

`shares: efficient`, the default in rounds, guarantees `FLOOR` of every job's leximin rate and assigns the rest where it
adds the most total speed. Near saturation this keeps queues short: `docs/results.md` has the figures. With space
sharing the guarantee is relative to leximin without it. Without space sharing, jobs with less remaining GPU time win
near-ties.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from levada.compat.gavel.solver.interior import max_min_interior
from levada.compat.gavel.solver.interior_packed import max_min_packed_interior
from levada.core.types import Floats
from levada.kernels import rates
from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.lp_common import (
    EFFICIENT,
    INTERIOR,
    LEXIMIN,
    can_run,
    even_shares_of,
    first_solved,
    pairs_of,
    problem_of,
    shares_of,
    unit_rates,
    which_shares,
)
from levada.policies.gavel.share import ShareDefaults, Shares
from levada.policies.protocol import Needs
from levada.solve.efficient import efficient
from levada.solve.leximin import leximin
from levada.solve.packed import efficient_packed, leximin_packed, max_min_packed
from levada.solve.problem import ShareProblem, Solution

#: The part of its leximin rate that `efficient` shares guarantee to every job.
FLOOR = 0.5
#: The remaining GPU time of a job counts as the number of times that `_LONGEST_S` (45 days) must be halved to reach it,
#: up to `_HALVINGS` (1 minute). With so few distinct values, equal jobs still form classes.
_LONGEST_S, _HALVINGS = 60.0 * 2**16, 16
#: Each halving adds this part to the weight of a job's speed: enough to break ties, too little to cost speed.
_FAVOUR = 1e-3 / _HALVINGS


class MaxMinFairness(ShareDefaults):
    """Max-min fairness that treats all GPU types as equal."""

    name: ClassVar[str] = "max_min_fairness"
    objective: ClassVar[str] = "max_min_normalized_agnostic"

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares)

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares that maximise the lowest level."""
        published = self.which == INTERIOR
        solution = _max_min(problem_of(instance, unit_rates(instance), published=published), published)
        return (shares_of(solution, can_run(instance)) if published else even_shares_of(solution, instance)), None


class MaxMinFairnessPerf(ShareDefaults):
    """Max-min fairness with the measured speed on each GPU type."""

    name: ClassVar[str] = "max_min_fairness_perf"
    needs: ClassVar[Needs] = Needs.RATE | Needs.PROGRESS
    objective: ClassVar[str] = "max_min_normalized"
    aware: ClassVar[bool] = True
    in_rounds: ClassVar[Mapping[str, Any]] = {"shares": EFFICIENT}

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares, EFFICIENT)

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares that maximise the lowest level, or the total speed above the floor."""
        if self.which == EFFICIENT:
            problem = problem_of(instance)
            fastest = partial(efficient, problem, FLOOR, _favour(instance))
            return shares_of(first_solved(fastest, partial(leximin, problem))), None
        published = self.which == INTERIOR
        solution = _max_min(problem_of(instance, published=published), published)
        return shares_of(solution, can_run(instance) if published else None), None


class MaxMinFairnessPacked(ShareDefaults):
    """Max-min fairness with the speed on each GPU type and space sharing."""

    name: ClassVar[str] = "max_min_fairness_packed"
    needs: ClassVar[Needs] = Needs.RATE
    objective: ClassVar[str] = "max_min_normalized_packed"
    aware: ClassVar[bool] = True
    packs: ClassVar[bool] = True
    in_rounds: ClassVar[Mapping[str, Any]] = {"shares": EFFICIENT}

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares, EFFICIENT)

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares that maximise the lowest level, or the total speed above the floor."""
        published = self.which == INTERIOR
        problem = problem_of(instance, published=published)
        pairs, together = pairs_of(instance, problem)
        lowest = partial(max_min_packed, problem, pairs, together)
        if self.which == EFFICIENT:
            return shares_of(first_solved(partial(efficient_packed, problem, pairs, together, FLOOR), lowest)), None
        if not published:
            return shares_of(first_solved(partial(leximin_packed, problem, pairs, together), lowest)), None
        centre = partial(max_min_packed_interior, problem, pairs, together)
        return shares_of(first_solved(centre, lowest), can_run(instance)), None


def _max_min(problem: ShareProblem, published: bool) -> Solution:
    """The leximin solution, or the published one; each is the fallback of the other."""
    attempts = (partial(leximin, problem), partial(max_min_interior, problem))
    return first_solved(*(reversed(attempts) if published else attempts))


def _favour(instance: Instance) -> Floats:
    """The weight of each job's speed: larger for less remaining GPU time, else 1."""
    table, slots = instance.snap.table, instance.snap.jobs.slots
    near = rates.halvings(table.floats, slots, instance.scale, instance.best, _LONGEST_S, _HALVINGS)
    return np.asarray(1.0 + _FAVOUR * near, np.float64)
