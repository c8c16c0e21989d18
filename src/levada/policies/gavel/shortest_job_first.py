"""The shortest jobs run, all the time, each on one GPU type; longer ones get what they leave.

Source: Narayanan et al., OSDI 2020, which names this policy; its code has none. In the order of the time that is left,
each job takes a type with room for it: where types are known to differ, the fastest; otherwise the first that its user
named, else the one it runs on, else the one with the largest free part. A job that fits nowhere is passed over.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from levada.core.types import Floats
from levada.perf.model import ThroughputModel
from levada.policies.gavel.forms import able, by_reference
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import Shares, Sharing
from levada.policies.protocol import Needs


class ShortestJobFirst(Sharing):
    """Time left as on the reference type; types are all alike."""

    name: ClassVar[str] = "shortest_job_first"
    needs: ClassVar[Needs] = Needs.RATE | Needs.REMAINING

    def initial(self, seed: int) -> None:
        """It remembers nothing."""

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """1 on the job's type, 0 elsewhere."""
        rate = instance.rate if self.aware else by_reference(instance)
        runs = able(instance)
        best = np.where(runs, rate, 0.0).max(axis=1, initial=0.0)
        left = np.divide(instance.steps_left, best, out=np.full(len(instance), np.inf), where=best > 0)
        # What a job likes most comes first.
        liking = -rate if self.aware else _named_first(instance)
        free = instance.capacity.copy()
        share = np.zeros_like(instance.rate)
        # Rows stand in the order of submission.
        for row in np.argsort(left, kind="stable").tolist():
            fits = np.flatnonzero(runs[row] & (free >= instance.scale[row]))
            if len(fits):
                best_liked = fits[liking[row, fits] == liking[row, fits].min()]
                kind = best_liked[np.argmax(free[best_liked] / instance.capacity[best_liked])]
                share[row, kind] = 1.0
                free[kind] -= instance.scale[row]
        return Shares(share=share), None


def _named_first(instance: Instance) -> Floats:
    """Per job and type its rank for a policy to which all types are alike; a job keeps the type it runs on."""
    jobs, rank = instance.snap.jobs, instance.snap.preference.astype(np.float64)
    rank[jobs.any_type > 0] = 0.0
    runs = ((jobs.count > 0) & (jobs.any_type > 0)).nonzero()[0]
    rank[runs, jobs.type[runs]] = -1.0
    return rank


class ShortestJobFirstPerf(ShortestJobFirst):
    """Time left on the fastest type, which is also the one that a job takes where it can."""

    name: ClassVar[str] = "shortest_job_first_perf"
    aware: ClassVar[bool] = True
