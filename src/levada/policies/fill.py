"""Giving sizes in an order, and growth in turns, type by type. Jobs whose workers take nothing always fit."""

from __future__ import annotations

import numpy as np

from levada.core.snapshot import Snapshot
from levada.core.types import Ints
from levada.kernels import choose
from levada.policies.assign import by_type
from levada.policies.sizes import largest


def give(snap: Snapshot, order: Ints, types: Ints, size: Ints) -> Ints:
    """Workers per job when each in *order* gets *size* or, where that does not fit any more, nothing."""
    need = size * snap.jobs.unit
    count = np.zeros(len(snap), np.int64)
    for kind, rows in by_type(types, order):
        given = rows[choose.give_in_order(need[rows], int(snap.capacity[kind]))]
        count[given] = size[given]
    return count


def grow_in_turns(snap: Snapshot, order: Ints, types: Ints, count: Ints) -> Ints:
    """Workers per job after what is free went round, step by step in *order*, to jobs that run and can grow."""
    jobs = snap.jobs
    cost = jobs.step * jobs.unit
    room = np.where(count > 0, (largest(jobs) - count) // jobs.step, 0)
    free = left_over(snap, types, count)
    grown: Ints = np.where(cost == 0, count + room * jobs.step, count)
    growing = order[((room > 0) & (cost > 0))[order]]
    for kind, rows in by_type(types, growing):
        grown[rows] += choose.grow_in_turns(cost[rows], room[rows], int(free[kind])) * jobs.step[rows]
    return grown


def left_over(snap: Snapshot, types: Ints, count: Ints) -> Ints:
    """Per type what is free after these grants."""
    free = snap.capacity.copy()
    runs = (count > 0).nonzero()[0]
    np.subtract.at(free, types[runs], count[runs] * snap.jobs.unit[runs])
    return free
