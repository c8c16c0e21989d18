"""Choose the GPU type on which each job competes, for policies of a single type.

Running jobs keep their type while it can hold them, except as in `relocate`. The others choose in the policy's order. A
job whose user named types prefers them in that order. A job without named types prefers its fastest type under a policy
that knows speeds. Otherwise, and among equally fast types, it prefers the type with the largest free fraction, then the
one that the cluster lists first. Type names never matter.

A job takes its most preferred type on which its maximum (or the whole type, if that is less) fits beside the maximums
of running and earlier jobs, so elastic jobs spread over types before they share one. If there is none, it takes the
first type on which its minimum fits beside their minimums; a job without named types takes the least requested of
these, relative to the type's size and to its queue's part of it. A job that fits nowhere competes on the first of its
types that is large enough for it, else on its first type.

For a policy that never exceeds the minimum, minimum and maximum are the same here.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from levada.core.layout import NOT_ALLOWED
from levada.core.types import CPU_TYPE, Bools, Floats, Ints
from levada.kernels import fill, view
from levada.perf.model import ThroughputModel
from levada.policies.sizes import COLUMNS, smallest
from levada.tables.snapshot import Snapshot

_NO_ROOM = np.zeros((0, 0), np.int64)


class TypeBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Queue bounds for the choice of a type: per queue and type, in 1/1000ths."""

    #: Per job its queue and the queues above it, padded with -1.
    lineage: Ints
    room: Ints
    guarantee: Ints
    #: The share of each queue if all queues use what they request.
    fair: Ints


def existing(snap: Snapshot) -> Bools:
    """Per type whether the cluster has any device of it, used or free."""
    exists = np.asarray(snap.capacity > 0)
    if np.count_nonzero(exists) < len(exists):
        inventory = snap.inventory
        exists[inventory.type_of[inventory.present]] = True
        exists[CPU_TYPE] |= bool((~inventory.lost).any())
    return exists


def home_types(snap: Snapshot, perf: ThroughputModel | None = None) -> Ints:
    """The current type of each job, else its first preferred existing one, else -1."""
    table, size = snap.table, smallest(snap)
    return fill.home_types(
        table.ints, snap.jobs.slots, COLUMNS, by_preference(snap, perf, size), existing(snap), snap.capacity, size
    )


def totals(snap: Snapshot) -> Ints:
    """The capacity of each type over all machines, used or free."""
    return np.maximum(snap.inventory.allocatable.supply[view.TOTAL], snap.capacity)


def assign_types(
    snap: Snapshot,
    order: Ints,
    size: Ints,
    most: Ints | None = None,
    bounds: TypeBounds | None = None,
    perf: ThroughputModel | None = None,
) -> Ints:
    """The type on which each job competes; -1 if none of its types exists.

    *order* lists rows. Each job needs *size* workers and can use *most* (default: *size*). *perf* is for policies that
    know speeds.
    """
    if bounds is None:
        bounds = TypeBounds(
            lineage=np.empty((len(snap), 0), np.int64), room=_NO_ROOM, guarantee=_NO_ROOM, fair=_NO_ROOM
        )
    return fill.assign_types(
        snap.table.ints,
        snap.jobs.slots,
        COLUMNS,
        by_preference(snap, perf, size),
        existing(snap),
        snap.capacity,
        totals(snap),
        order,
        size,
        size if most is None else most,
        bounds.lineage,
        bounds.room,
        bounds.guarantee,
        bounds.fair,
    )


def by_preference(snap: Snapshot, perf: ThroughputModel | None = None, size: Ints | None = None) -> Ints:
    """The rank of each type (row) for each job (column); NOT_ALLOWED if it cannot run.

    Types that a user named rank in that order. The others rank equal, or by speed at *size* where *perf* knows it.
    """
    ranks = snap.preference.T
    free = (snap.jobs.any_type > 0).nonzero()[0]
    # With a single GPU type there is nothing to rank.
    if not len(free) or len(snap.capacity) <= CPU_TYPE + 2:
        return np.ascontiguousarray(ranks)
    ranks = ranks.copy()
    among = ranks[:, free]
    equal = np.where(among == NOT_ALLOWED, NOT_ALLOWED, 0).astype(ranks.dtype)
    if perf is not None and size is not None:
        number = snap.jobs.number[free]
        rate = perf.rates_by_type(number, size[free], len(snap.capacity)).T
        equal = np.where(perf.known(number), _by_speed(rate, equal), equal)
    ranks[:, free] = equal
    return np.ascontiguousarray(ranks)


def _by_speed(rate: Floats, ranks: Ints) -> Ints:
    """Rank the types (rows) of each job (columns) by speed; equal speeds rank equal.

    *ranks* marks the types that a job may use. A type on which a job makes no progress is left out, unless it makes
    none on any.
    """
    rate = np.where(ranks < NOT_ALLOWED, rate, 0.0)
    by_speed = (rate[None, :, :] > rate[:, None, :]).sum(axis=1).astype(ranks.dtype)
    useless = (rate <= 0) & (rate > 0).any(axis=0)
    return np.where((ranks == NOT_ALLOWED) | useless, NOT_ALLOWED, by_speed).astype(ranks.dtype)


def by_type(types: Ints, order: Ints) -> Iterator[tuple[int, Ints]]:
    """Each type on which jobs compete, with their rows in *order*."""
    sorted_types = types.take(order)
    for kind in np.bincount(sorted_types + 1)[1:].nonzero()[0]:
        yield int(kind), order[sorted_types == kind]
