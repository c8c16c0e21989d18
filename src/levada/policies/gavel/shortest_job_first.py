"""Shortest job first: the shortest jobs run all the time, each on one GPU type.

Source: Narayanan et al., OSDI 2020, which names this policy; its code does not implement it. In the order of remaining
time, each job takes a type with enough free GPUs: in the `_perf` variant the fastest; otherwise the first that its user
named, else the one it runs on, else the one with the largest free fraction. A job that fits nowhere is skipped.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from levada.core.types import Floats
from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.lp_common import can_run, reference_rates
from levada.policies.gavel.share import ShareDefaults, Shares
from levada.policies.protocol import Needs


class ShortestJobFirst(ShareDefaults):
    """Remaining time on the reference type; all types are equal."""

    name: ClassVar[str] = "shortest_job_first"
    needs: ClassVar[Needs] = Needs.RATE | Needs.REMAINING

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """1 on the job's type, 0 elsewhere."""
        return _shortest_first(instance, reference_rates(instance), _preference(instance)), None


class ShortestJobFirstPerf(ShareDefaults):
    """Remaining time on the fastest type, which is also the preferred one."""

    name: ClassVar[str] = "shortest_job_first_perf"
    needs: ClassVar[Needs] = Needs.RATE | Needs.REMAINING
    aware: ClassVar[bool] = True

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """1 on the job's type, 0 elsewhere."""
        return _shortest_first(instance, instance.rate, -instance.rate), None


def _shortest_first(instance: Instance, rate: Floats, preference: Floats) -> Shares:
    """Shares by remaining time at *rate*; the lowest *preference* with room wins."""
    runs = can_run(instance)
    best = np.where(runs, rate, 0.0).max(axis=1, initial=0.0)
    left = np.divide(instance.steps_left, best, out=np.full(len(instance), np.inf), where=best > 0)
    free = instance.capacity.copy()
    share = np.zeros_like(instance.rate)
    # Rows are in the order of submission, which breaks ties.
    for row in np.argsort(left, kind="stable").tolist():
        fits = np.flatnonzero(runs[row] & (free >= instance.scale[row]))
        if len(fits):
            preferred = fits[preference[row, fits] == preference[row, fits].min()]
            kind = preferred[np.argmax(free[preferred] / instance.capacity[preferred])]
            share[row, kind] = 1.0
            free[kind] -= instance.scale[row]
    return Shares(share=share)


def _preference(instance: Instance) -> Floats:
    """Per job and type its rank without speeds: as the user named, else current first."""
    jobs, rank = instance.snap.jobs, instance.snap.preference.astype(np.float64)
    rank[jobs.any_type > 0] = 0.0
    runs = ((jobs.count > 0) & (jobs.any_type > 0)).nonzero()[0]
    rank[runs, jobs.type[runs]] = -1.0
    return rank
