"""Jobs that are crowded on their type, or wait for it, go to one that lies idle.

A job keeps its type; see `assign`. But when others have come to it, or machines of another type have joined, some jobs
share one type while another is idle. So when sizes have been given out, a job that waits goes to another type that it
may use, if it runs there and nobody stops for it. And one that has less than it may use goes there, if

- nobody who waits may use that type,
- it is at least twice as fast with what is free there. Where its speed is not known, it has twice the workers there,
  and the type does not come later in the list of types that its user gave,
- nobody else gets less by it when sizes are given out again.

The first in the policy's order goes first. Only jobs in view go: guards protect those that are young, may not be
preempted, or have no checkpoint yet.

What is free to a job may be less than what there is: its queue and its user have bounds. See `Room`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np

from levada.core.layout import NOT_ALLOWED
from levada.core.types import CPU_TYPE, Bools, Ints
from levada.perf.model import ThroughputModel
from levada.policies.assign import by_preference, totals
from levada.policies.fill import left_over
from levada.policies.sizes import largest, on_grid
from levada.tables.snapshot import Snapshot

#: What a change of type must be worth: it is a restart, and another job may come for the type.
FASTER = 2.0
#: Jobs that are thought of per decision; sizes are given out again for each.
MOST_TRIES = 8

#: Workers per job, given the type of each.
Rule: TypeAlias = Callable[[Ints], Ints]


class Room(msgspec.Struct, frozen=True):
    """What jobs could have on top of what all have, per job and type."""

    #: Of what is free now.
    free: Ints
    #: If all of the type were free.
    bound: Ints


#: What there is room for, given the type and the workers of each job.
Rooms: TypeAlias = Callable[[Ints, Ints], Room]


def mixed(snap: Snapshot) -> bool:
    """Whether there is a choice of types at all."""
    return int(np.count_nonzero(snap.capacity[CPU_TYPE + 1 :] > 0)) > 1


def settled(
    snap: Snapshot,
    perf: ThroughputModel,
    order: Ints,
    types: Ints,
    rule: Rule,
    *,
    rooms: Rooms | None = None,
    grows: bool = True,
) -> tuple[Ints, Ints]:
    """The type of each job and its workers under *rule*, after jobs went to types that lay idle.

    *rooms* is for jobs whose queues bound what they may have. Where nobody *grows* only those go that wait.
    """
    count = rule(types)
    if not mixed(snap):
        return types, count
    rooms = rooms or _unbounded(snap)
    tried = np.zeros(len(snap), bool)
    for _ in range(MOST_TRIES):
        may_go = (count < (largest(snap) if grows else 1)) & ~tried
        if (found := _move(snap, perf, order, types, count, rooms(types, count), may_go)) is None:
            break
        row, kind = found
        tried[row] = True
        elsewhere = types.copy()
        elsewhere[row] = kind
        sizes = rule(elsewhere)
        others = np.arange(len(snap)) != row
        one = np.array([row])
        worth = _worth(snap, perf, one, types[one], count[one], kind, sizes[one])
        # As wherever a job starts, others may shrink for one that waits.
        keep = count[others] if count[row] else count[others] > 0
        if worth[0] and (sizes[others] >= keep).all():
            types, count = elsewhere, sizes
    return types, count


def _unbounded(snap: Snapshot) -> Rooms:
    """Room where nobody bounds it."""
    shape = (len(snap), len(snap.capacity))
    bound = np.broadcast_to(totals(snap), shape)

    def rooms(types: Ints, count: Ints) -> Room:
        return Room(np.broadcast_to(left_over(snap, types, count), shape), bound)

    return rooms


def _move(
    snap: Snapshot, perf: ThroughputModel, order: Ints, types: Ints, count: Ints, room: Room, may_go: Bools
) -> tuple[int, int] | None:
    """Who of those that *may_go* does, and to which type: the first in *order* that waits, else that gains enough.

    It goes to the preferred one of the types where that is so; see `assign`.
    """
    jobs, allowed = snap.jobs, snap.allowed
    preference = by_preference(snap, perf, jobs.min).T
    need = jobs.min * jobs.unit
    waits = (count == 0) & (types >= 0)
    may_go = may_go & (types >= 0) & (jobs.milli > 0)
    best = np.full(len(snap), -1, np.int64)
    rank = np.full(len(snap), NOT_ALLOWED, np.int64)
    most_free = room.free.max(axis=0, initial=0)
    largest_part_first = np.argsort(-most_free / np.maximum(totals(snap), 1), kind="stable")
    for kind in largest_part_first[most_free[largest_part_first] > 0].tolist():
        if kind == CPU_TYPE:
            continue
        free = room.free[:, kind]
        able = may_go & (need <= free) & (types != kind) & (preference[:, kind] < rank)
        if (waits & allowed[:, kind] & (need <= room.bound[:, kind])).any():
            able &= waits
        rows = able.nonzero()[0]
        size = on_grid(jobs, free // np.maximum(jobs.unit, 1))[rows]
        rows = rows[_worth(snap, perf, rows, types[rows], count[rows], kind, size)]
        best[rows], rank[rows] = kind, preference[rows, kind]
    movers = order[best.take(order) >= 0]
    movers = movers[(~waits[movers]).argsort(kind="stable")]
    return (int(movers[0]), int(best[movers[0]])) if len(movers) else None


def _worth(snap: Snapshot, perf: ThroughputModel, rows: Ints, types: Ints, count: Ints, kind: int, size: Ints) -> Bools:
    """Which of these jobs are faster enough with *size* workers of *kind* than with what they have."""
    jobs, preference = snap.jobs, snap.preference
    number = jobs.number[rows]
    as_named = (jobs.any_type[rows] > 0) | (preference[rows, kind] < preference[rows, types]) | (count == 0)
    more = (size >= FASTER * count) & as_named
    then = perf.rates(number, np.full(len(rows), kind, np.int64), size)
    faster = (then > 0) & (then >= FASTER * perf.rates(number, types, count))
    return np.asarray((size > 0) & np.where(perf.known(number), faster, more))
