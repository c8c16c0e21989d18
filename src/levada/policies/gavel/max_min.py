"""The job that is worst off gets as much as possible (least attained service, by another name).

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020.
A job's level is its rate over what it would have with its part of every type, times its GPUs, over its weight:

    max over shares of  min over jobs  scale / (weight * proportional rate) * rate(shares)

That fixes the lowest level only. With `shares: leximin` the next lowest follows, and so on, which leaves nothing idle
that somebody could use; `shares: interior` gives the middle of all optimal shares, as the published solver did.

`shares: efficient`, which rounds take unless told otherwise, keeps `FLOOR` of every job's leximin rate and gives the
rest where it brings most speed in all. Near saturation that is what keeps queues short: `docs/results.md` has the
figures. Where two jobs may share GPUs, the rate is what leximin would give if nobody did; where each runs alone, and it
hardly matters for speed who comes first, whoever needs least to be done does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from levada.core.types import Floats
from levada.kernels import rates
from levada.perf.model import ThroughputModel
from levada.policies.gavel.forms import (
    EFFICIENT,
    INTERIOR,
    LEXIMIN,
    able,
    all_alike,
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
from levada.solve.efficient import efficient
from levada.solve.interior import max_min_interior
from levada.solve.interior_packed import max_min_packed_interior
from levada.solve.leximin import leximin
from levada.solve.packed import efficient_packed, leximin_packed, max_min_packed

#: What `efficient` shares leave every job of its leximin rate.
FLOOR = 0.5
#: What is left of a job counts by how often `_LONGEST_S` of GPU time must be halved to come down to it, up to
#: `_HALVINGS` times: from 45 days to a minute. By so many steps only, there are still classes of equal jobs.
_LONGEST_S, _HALVINGS = 60.0 * 2**16, 16
#: And for each halving, a job's speed counts this part more: no loss of speed is worth it, but ties are broken.
_FAVOUR = 1e-3 / _HALVINGS


class MaxMinFairness(Sharing):
    """All types alike."""

    name: ClassVar[str] = "max_min_fairness"
    objective: ClassVar[str] = "max_min_normalized_agnostic"

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares)

    def initial(self, seed: int) -> None:
        """It remembers nothing."""

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares with the highest lowest level."""
        published = self.which == INTERIOR
        problem = problem_of(instance, instance.rate if self.aware else all_alike(instance), published=published)
        best, middle = partial(leximin, problem), partial(max_min_interior, problem)
        if not published:
            found = sound(best, middle)
            return (shares_of(found) if self.aware else even_shares_of(found, instance)), None
        return shares_of(sound(middle, best), able(instance)), None


class MaxMinFairnessPerf(MaxMinFairness):
    """Types as they are."""

    name: ClassVar[str] = "max_min_fairness_perf"
    needs: ClassVar[Needs] = Needs.RATE | Needs.PROGRESS
    objective: ClassVar[str] = "max_min_normalized"
    aware: ClassVar[bool] = True
    in_rounds: ClassVar[Mapping[str, Any]] = {"shares": EFFICIENT}

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares, EFFICIENT)

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares with the highest lowest level, or with the most speed above a floor."""
        if self.which != EFFICIENT:
            return super().shares(instance, perf, state)
        problem = problem_of(instance)
        return shares_of(sound(partial(efficient, problem, FLOOR, _favour(instance)), partial(leximin, problem))), None


class MaxMinFairnessPacked(MaxMinFairnessPerf):
    """Types as they are, and two jobs may share GPUs."""

    name: ClassVar[str] = "max_min_fairness_packed"
    needs: ClassVar[Needs] = Needs.RATE
    objective: ClassVar[str] = "max_min_normalized_packed"
    packs: ClassVar[bool] = True

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares with the highest lowest level, or with the most speed above a floor."""
        published = self.which == INTERIOR
        problem = problem_of(instance, published=published)
        pairs, together = pairs_of(instance, problem)
        lowest = partial(max_min_packed, problem, pairs, together)
        all_levels = partial(leximin_packed, problem, pairs, together)
        if self.which == EFFICIENT:
            return shares_of(sound(partial(efficient_packed, problem, pairs, together, FLOOR), lowest)), None
        if not published:
            return shares_of(sound(all_levels, lowest)), None
        middle = partial(max_min_packed_interior, problem, pairs, together)
        return shares_of(sound(middle, lowest), able(instance)), None


def _favour(instance: Instance) -> Floats:
    """What the speed of each job counts: more, the less GPU time it needs to be done; 1 where nobody can tell."""
    table, slots = instance.snap.table, instance.snap.jobs.slots
    near = rates.halvings(table.floats, slots, instance.scale, instance.best, _LONGEST_S, _HALVINGS)
    return np.asarray(1.0 + _FAVOUR * near, np.float64)
