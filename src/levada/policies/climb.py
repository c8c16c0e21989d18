"""Growth grant by grant, type by type, under any rule of who gets the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.kernels import fill
from levada.perf.model import ThroughputModel
from levada.policies.assign import by_type
from levada.policies.fill import left_over
from levada.policies.sizes import COLUMNS, Ladder, largest
from levada.tables.snapshot import Snapshot

#: How many sizes of a job are looked up at once: so many, or more while all together stay below RUNGS. A ladder that
#: goes on beyond that is looked up again from where it ended.
WINDOW = 128
RUNGS = 250_000


class Climb(msgspec.Struct, frozen=True):
    """Jobs of one type that could grow, by place in the order that breaks ties."""

    rows: Ints
    #: Who has nothing yet.
    waits: Bools
    #: What the next grant costs, and each one after it.
    first: Ints
    cost: Ints
    ladder: Ladder
    #: Speed-up of each rung.
    speed: Floats


#: Grants per job of a climb, given what is free.
Rule: TypeAlias = Callable[[Climb, int], Ints]


def climb(snap: Snapshot, perf: ThroughputModel, order: Ints, types: Ints, count: Ints, rule: Rule) -> Ints:
    """Workers per job after *rule* has given away what is free; waiting jobs start at their minimum."""
    count = count.copy()
    free = left_over(snap, types, count)
    # Less is free from grant to grant, so who cannot pay for one now never will: nobody need ask how fast it would be.
    able = fill.climbers(snap.table.ints, snap.jobs.slots, COLUMNS, free, order, types, count)
    if not len(able):
        return count
    pays = snap.jobs.unit > 0
    for kind, rows in by_type(types, able):
        _climb(snap, perf, rows[pays[rows]], kind, count, int(free[kind]), rule)
        # Workers that take nothing need nothing to be free.
        _climb(snap, perf, rows[~pays[rows]], kind, count, 1, rule)
    return count


def _climb(snap: Snapshot, perf: ThroughputModel, rows: Ints, kind: int, count: Ints, free: int, rule: Rule) -> None:
    """Changes *count* of *rows*; starts again as long as a rule stopped because a ladder was longer than its table."""
    unit = snap.jobs.unit[rows]
    stopped = bool(len(rows))
    while stopped:
        found = survey(snap, perf, rows, kind, count[rows], free, max(WINDOW, RUNGS // len(rows)))
        grants = rule(found, free)
        size = found.ladder.reached(grants)
        free -= int(((size - count[rows]) * unit).sum())
        count[rows] = size
        stopped = bool((found.ladder.more & (grants > 0) & (found.ladder.length == grants)).any())


def survey(snap: Snapshot, perf: ThroughputModel, rows: Ints, kind: int, have: Ints, free: int, window: int) -> Climb:
    """What *rows*, which have so many workers of one type, could grow to with what is free, and how fast they were."""
    jobs = snap.jobs
    least, step, unit, most = jobs.min[rows], jobs.step[rows], jobs.unit[rows], largest(snap)[rows]
    cost, waits = step * unit, have == 0
    first = np.where(waits, least * unit, cost)
    affordable = np.where(first <= free, 1 + (free - first) // np.maximum(cost, 1), 0)
    ladder = Ladder(have, least, step, most, np.where(cost > 0, affordable, most), window)
    speed = perf.speedups(jobs.number[rows][ladder.job], np.array(kind), ladder.size)
    return Climb(rows, waits, first, cost, ladder, speed)
