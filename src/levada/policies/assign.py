"""Which GPU type each job competes on, for policies that know one type only.

Running jobs keep their type while it can hold them. The others take, in the policy's order, the first of their
preferred types where what they need fits into what running and earlier jobs leave. A job that fits nowhere competes on
the first of its types that is large enough for it in all, else on its first.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from levada.core.snapshot import Snapshot
from levada.core.types import CPU_TYPE, Bools, Ints
from levada.kernels import fill
from levada.policies.sizes import COLUMNS, smallest

_NO_ROOM = np.zeros((0, 0), np.int64)


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of queues that a choice of type must respect, all per queue and type, in 1/1000ths."""

    #: Per job its queue and those above it, padded with -1.
    lineage: Ints
    room: Ints
    guarantee: Ints


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


def assign_types(snap: Snapshot, order: Ints, size: Ints, fence: Fence | None = None) -> Ints:
    """Per job the type it competes on with *size* workers, -1 where none of its types exists. *order* lists rows."""
    if fence is None:
        lineage, room, guarantee = np.empty((len(snap), 0), np.int64), _NO_ROOM, _NO_ROOM
    else:
        lineage, room, guarantee = fence.lineage, fence.room, fence.guarantee
    return fill.assign_types(
        snap.table.ints,
        snap.jobs.slots,
        COLUMNS,
        by_preference(snap),
        existing(snap),
        snap.capacity,
        order,
        size,
        lineage,
        room,
        guarantee,
    )


def by_preference(snap: Snapshot) -> Ints:
    """What jobs prefer, per type and job, as kernels want it."""
    return np.ascontiguousarray(snap.preference.T)


def by_type(types: Ints, order: Ints) -> Iterator[tuple[int, Ints]]:
    """Each type that jobs compete on, with their rows in the order given."""
    sorted_types = types.take(order)
    for kind in np.bincount(sorted_types + 1)[1:].nonzero()[0]:
        yield int(kind), order[sorted_types == kind]
