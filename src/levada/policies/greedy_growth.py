"""Grow jobs grant by grant, type by type: by a given rule, or by gain per GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np

from levada.core.types import WHOLE, Bools, Floats, Ints
from levada.kernels import fill, greedy
from levada.perf.model import ThroughputModel
from levada.policies.assign import by_type
from levada.policies.fill import free_after
from levada.policies.sizes import COLUMNS, SizeTable, largest
from levada.tables.snapshot import Snapshot

#: Sizes of a job that are looked up at once: WINDOW, or more while those of all jobs stay below MOST_SIZES. A job that
#: grows beyond its window gets a new one.
WINDOW = 128
MOST_SIZES = 250_000


class GrowthTable(msgspec.Struct, frozen=True):
    """Jobs of one type that could grow, in the order that breaks ties."""

    rows: Ints
    #: Whether the job has no workers yet.
    waits: Bools
    #: The cost of the next grant, and of each one after it.
    first: Ints
    cost: Ints
    sizes: SizeTable
    #: The speed-up at each of the sizes.
    speed: Floats


#: From a table and the free capacity to the number of grants of each job.
Rule: TypeAlias = Callable[[GrowthTable, int], Ints]


def grow_by_gain(snap: Snapshot, perf: ThroughputModel, order: Ints, types: Ints, count: Ints) -> Ints:
    """Grow jobs by gain per GPU; ties go to pending jobs, then by *order*.

    Jobs that would gain nothing neither grow nor start.
    """

    def by_gain(table: GrowthTable, free: int) -> Ints:
        sizes = table.sizes
        unit = np.maximum(snap.jobs.unit[table.rows], 1)
        gpus = np.diff(sizes.size) * unit[sizes.job[1:]] / WHOLE
        same_job = np.ones(len(gpus), bool)
        same_job[sizes.start[1:-1] - 1] = False
        gain = np.diff(table.speed)[same_job] / gpus[same_job]
        start = sizes.start - np.arange(len(sizes.start))
        return greedy.grow_by_gain(table.first, table.cost, table.waits, gain, start, free, sizes.more)

    return grow_by_rule(snap, perf, order, types, count, by_gain)


def grow_by_rule(snap: Snapshot, perf: ThroughputModel, order: Ints, types: Ints, count: Ints, rule: Rule) -> Ints:
    """Workers per job after *rule* assigns free capacity; starts are at the minimum."""
    count = count.copy()
    free = free_after(snap, types, count)
    # Free capacity only shrinks, so jobs that cannot pay for a grant now never will: their speed is not looked up.
    able = fill.growable(snap.table.ints, snap.jobs.slots, COLUMNS, free, order, types, count)
    if not len(able):
        return count
    pays = snap.jobs.unit > 0
    for kind, rows in by_type(types, able):
        _grow(snap, perf, rows[pays[rows]], kind, count, int(free[kind]), rule)
        # Workers that take no capacity do not need any to be free.
        _grow(snap, perf, rows[~pays[rows]], kind, count, 1, rule)
    return count


def _grow(snap: Snapshot, perf: ThroughputModel, rows: Ints, kind: int, count: Ints, free: int, rule: Rule) -> None:
    """Update *count* of *rows*; repeats while a job reaches the end of its window."""
    unit = snap.jobs.unit[rows]
    at_end = bool(len(rows))
    while at_end:
        table = growth_table(snap, perf, rows, kind, count[rows], free, max(WINDOW, MOST_SIZES // len(rows)))
        grants = rule(table, free)
        size = table.sizes.reached(grants)
        free -= int(((size - count[rows]) * unit).sum())
        count[rows] = size
        at_end = bool((table.sizes.more & (grants > 0) & (table.sizes.length == grants)).any())


def growth_table(
    snap: Snapshot, perf: ThroughputModel, rows: Ints, kind: int, have: Ints, free: int, window: int
) -> GrowthTable:
    """The sizes that *rows*, now with *have* workers, can reach with *free* capacity."""
    jobs = snap.jobs
    least, step, unit, most = jobs.min[rows], jobs.step[rows], jobs.unit[rows], largest(snap)[rows]
    cost, waits = step * unit, have == 0
    first = np.where(waits, least * unit, cost)
    affordable = np.where(first <= free, 1 + (free - first) // np.maximum(cost, 1), 0)
    sizes = SizeTable(have, least, step, most, np.where(cost > 0, affordable, most), window)
    speed = perf.speedups(jobs.number[rows][sizes.job], np.array(kind), sizes.size)
    return GrowthTable(rows, waits, first, cost, sizes, speed)
