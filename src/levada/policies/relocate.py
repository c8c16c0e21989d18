"""Move jobs from crowded GPU types to idle ones.

A job keeps its type; see `assign`. But after other jobs arrive on it, or machines of another type join, some jobs can
share one type while another type is idle. So after sizes are assigned, a pending job moves to another allowed type if
it can start there without stopping another job. A job below its maximum moves if

- no pending job may use that type,
- it becomes at least `FASTER` times as fast with the free capacity there. If its speed is unknown, it must get `FASTER`
  times the workers, and the type must not come later in the user's list of types,
- no other job gets less when sizes are assigned again.

The first job in the policy's order moves first. Only jobs in view move: guards protect jobs that have just started, may
not be preempted, or have no checkpoint yet.

Queue and user limits can make the room of a job smaller than the free capacity; see `RoomByType`.
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
from levada.policies.fill import free_after
from levada.policies.sizes import largest, on_grid
from levada.tables.snapshot import Snapshot

#: The least speed-up of a change of type: it costs a restart, and another job may arrive for the type.
FASTER = 2.0
#: Candidate moves per decision; each assigns all sizes again.
MOST_TRIES = 8

#: From the type of each job to its workers.
Rule: TypeAlias = Callable[[Ints], Ints]


class RoomByType(msgspec.Struct, frozen=True):
    """Room per job and type beyond what all jobs have, within its bounds."""

    #: Within the free capacity.
    free: Ints
    #: If the whole type were free.
    bound: Ints


#: From type and workers of each job to the room.
Rooms: TypeAlias = Callable[[Ints, Ints], RoomByType]


def has_several_types(snap: Snapshot) -> bool:
    """Whether the cluster has more than one GPU type."""
    return int(np.count_nonzero(snap.capacity[CPU_TYPE + 1 :] > 0)) > 1


def move_to_idle_types(
    snap: Snapshot,
    perf: ThroughputModel,
    order: Ints,
    types: Ints,
    rule: Rule,
    *,
    rooms: Rooms | None = None,
    grows: bool = True,
) -> tuple[Ints, Ints]:
    """The type and workers of each job under *rule*, after moves to idle types.

    *rooms* gives the room of jobs in bounded queues. Without *grows*, only pending jobs move.
    """
    count = rule(types)
    if not has_several_types(snap):
        return types, count
    rooms = rooms or _unbounded(snap)
    tried = np.zeros(len(snap), bool)
    for _ in range(MOST_TRIES):
        may_go = (count < (largest(snap) if grows else 1)) & ~tried
        if (move := _next_move(snap, perf, order, types, count, rooms(types, count), may_go)) is None:
            break
        row, kind = move
        tried[row] = True
        elsewhere = types.copy()
        elsewhere[row] = kind
        sizes = rule(elsewhere)
        others = np.arange(len(snap)) != row
        one = np.array([row])
        gains = _gains_enough(snap, perf, one, types[one], count[one], kind, sizes[one])
        # Other jobs may shrink, but not stop, for a pending job.
        least = count[others] if count[row] else count[others] > 0
        if gains[0] and (sizes[others] >= least).all():
            types, count = elsewhere, sizes
    return types, count


def _unbounded(snap: Snapshot) -> Rooms:
    """Room without queue or user bounds."""
    shape = (len(snap), len(snap.capacity))
    bound = np.broadcast_to(totals(snap), shape)

    def rooms(types: Ints, count: Ints) -> RoomByType:
        return RoomByType(np.broadcast_to(free_after(snap, types, count), shape), bound)

    return rooms


def _next_move(
    snap: Snapshot, perf: ThroughputModel, order: Ints, types: Ints, count: Ints, room: RoomByType, may_go: Bools
) -> tuple[int, int] | None:
    """The next job to move and its new type; None if no move is worthwhile.

    The first pending job in *order* of those that *may_go*, else the first that gains enough. It moves to the most
    preferred of the suitable types; see `assign`.
    """
    jobs, allowed = snap.jobs, snap.allowed
    preference = by_preference(snap, perf, jobs.min).T
    need = jobs.min * jobs.unit
    waits = (count == 0) & (types >= 0)
    may_go = may_go & (types >= 0) & (jobs.milli > 0)
    best = np.full(len(snap), -1, np.int64)
    rank = np.full(len(snap), NOT_ALLOWED, np.int64)
    most_free = room.free.max(axis=0, initial=0)
    by_free_fraction = np.argsort(-most_free / np.maximum(totals(snap), 1), kind="stable")
    for kind in by_free_fraction[most_free[by_free_fraction] > 0].tolist():
        if kind == CPU_TYPE:
            continue
        free = room.free[:, kind]
        able = may_go & (need <= free) & (types != kind) & (preference[:, kind] < rank)
        if (waits & allowed[:, kind] & (need <= room.bound[:, kind])).any():
            able &= waits
        rows = able.nonzero()[0]
        size = on_grid(jobs, free // np.maximum(jobs.unit, 1))[rows]
        rows = rows[_gains_enough(snap, perf, rows, types[rows], count[rows], kind, size)]
        best[rows], rank[rows] = kind, preference[rows, kind]
    movers = order[best.take(order) >= 0]
    movers = movers[(~waits[movers]).argsort(kind="stable")]
    return (int(movers[0]), int(best[movers[0]])) if len(movers) else None


def _gains_enough(
    snap: Snapshot, perf: ThroughputModel, rows: Ints, types: Ints, count: Ints, kind: int, size: Ints
) -> Bools:
    """Which jobs gain enough with *size* workers of *kind* compared to now."""
    jobs, preference = snap.jobs, snap.preference
    number = jobs.number[rows]
    as_named = (jobs.any_type[rows] > 0) | (preference[rows, kind] < preference[rows, types]) | (count == 0)
    more = (size >= FASTER * count) & as_named
    then = perf.rates(number, np.full(len(rows), kind, np.int64), size)
    faster = (then > 0) & (then >= FASTER * perf.rates(number, types, count))
    return np.asarray((size > 0) & np.where(perf.known(number), faster, more))
