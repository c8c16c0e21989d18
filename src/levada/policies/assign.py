"""Which GPU type each job competes on, for policies that know one type only.

Running jobs keep their type while it can hold them; `relocate` has the exception. The others choose in the policy's
order, each by its own order of types. It takes the first type where all that it may use fits beside all that running
and earlier jobs may use: its maximum, or the whole type if that is less. So elastic jobs spread over types before they
share one. Where there is no such type, it takes the first where what it needs fits beside what they need; a job whose
user named no types takes that of those which is asked for least, for its size and for its queue's part of it, so that
types are shared evenly. A job that fits nowhere competes on the first of its types that is large enough for it in all,
else on its first.

A policy that gives jobs no more than they need says nothing of what they may use: that is the same then.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from levada.core.snapshot import Snapshot
from levada.core.types import CPU_TYPE, Bools, Ints
from levada.kernels import fill, view
from levada.policies.sizes import COLUMNS, smallest

_NO_ROOM = np.zeros((0, 0), np.int64)


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of queues that a choice of type must respect, all per queue and type, in 1/1000ths."""

    #: Per job its queue and those above it, padded with -1.
    lineage: Ints
    room: Ints
    guarantee: Ints
    #: What each may count on if all take what they ask for.
    fair: Ints


def existing(snap: Snapshot) -> Bools:
    """Per type whether the cluster has any of it, whoever uses it now."""
    found = np.asarray(snap.capacity > 0)
    if np.count_nonzero(found) < len(found):
        inventory = snap.inventory
        found[inventory.type_of[inventory.present]] = True
        found[CPU_TYPE] |= bool((~inventory.lost).any())
    return found


def home_types(snap: Snapshot) -> Ints:
    """Per job its present type, else its first preferred one that exists, else -1."""
    table, size = snap.table, smallest(snap)
    return fill.home_types(
        table.ints, snap.jobs.slots, COLUMNS, by_preference(snap), existing(snap), snap.capacity, size
    )


def totals(snap: Snapshot) -> Ints:
    """Per type what all machines have together, whoever uses it now."""
    return np.maximum(snap.inventory.openings.supply[view.TOTAL], snap.capacity)


def assign_types(snap: Snapshot, order: Ints, size: Ints, most: Ints | None = None, fence: Fence | None = None) -> Ints:
    """Per job the type it competes on, -1 where none of its types exists. *order* lists rows.

    Each needs *size* workers and may use *most*, which is *size* where nobody says so.
    """
    if fence is None:
        fence = Fence(lineage=np.empty((len(snap), 0), np.int64), room=_NO_ROOM, guarantee=_NO_ROOM, fair=_NO_ROOM)
    return fill.assign_types(
        snap.table.ints,
        snap.jobs.slots,
        COLUMNS,
        by_preference(snap),
        existing(snap),
        snap.capacity,
        totals(snap),
        order,
        size,
        size if most is None else most,
        fence.lineage,
        fence.room,
        fence.guarantee,
        fence.fair,
    )


def by_preference(snap: Snapshot) -> Ints:
    """What jobs prefer, per type and job, as kernels want it."""
    return np.ascontiguousarray(snap.preference.T)


def by_type(types: Ints, order: Ints) -> Iterator[tuple[int, Ints]]:
    """Each type that jobs compete on, with their rows in the order given."""
    sorted_types = types.take(order)
    for kind in np.bincount(sorted_types + 1)[1:].nonzero()[0]:
        yield int(kind), order[sorted_types == kind]
