"""Growth by gain: each grant to the job whose speed-up rises most per GPU."""

from __future__ import annotations

import numpy as np

from levada.core.types import WHOLE, Ints
from levada.kernels import choose
from levada.perf.model import ThroughputModel
from levada.policies.climb import Climb, climb
from levada.tables.snapshot import Snapshot


def grow_by_gain(snap: Snapshot, perf: ThroughputModel, order: Ints, types: Ints, count: Ints) -> Ints:
    """Workers per job after what is free went where it gains most; ties to waiting jobs, then by *order*.

    Nobody grows or starts where that gains nothing.
    """

    def by_gain(jobs: Climb, free: int) -> Ints:
        ladder = jobs.ladder
        unit = np.maximum(snap.jobs.unit[jobs.rows], 1)
        gpus = np.diff(ladder.size) * unit[ladder.job[1:]] / WHOLE
        inside = np.ones(len(gpus), bool)
        inside[ladder.start[1:-1] - 1] = False  # from one job's last rung to the next one's first
        gain = np.diff(jobs.speed)[inside] / gpus[inside]
        start = ladder.start - np.arange(len(ladder.start))
        return choose.grow_by_gain(jobs.first, jobs.cost, jobs.waits, gain, start, free, ladder.more)

    return climb(snap, perf, order, types, count, by_gain)
