"""Which GPU type each job competes on, for policies that know one type only.

Running jobs keep their type while it can hold them; `relocate` has the exception. The others choose in the policy's
order. A job whose user named types prefers them in that order. A job without named types prefers the type it is fastest
on, under a policy that knows speeds; under any other policy, and among equally fast types, it prefers the type with the
largest free part (free over total), then the one that the cluster lists first. Names of types never matter.

A job takes the preferred type among those where all that it may use fits beside all that running and earlier jobs may
use: its maximum, or the whole type if that is less. So elastic jobs spread over types before they share one. Where
there is no such type, it takes the first where what it needs fits beside what they need; a job without named types
takes that of those which is asked for least, for its size and for its queue's part of it, so that types are shared
evenly. A job that fits nowhere competes on the first of its types that is large enough for it, else on its first.

A policy that gives jobs no more than they need says nothing of what they may use: that is the same then.
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


def home_types(snap: Snapshot, perf: ThroughputModel | None = None) -> Ints:
    """Per job its present type, else its first preferred one that exists, else -1. *perf* as for `by_preference`."""
    table, size = snap.table, smallest(snap)
    return fill.home_types(
        table.ints, snap.jobs.slots, COLUMNS, by_preference(snap, perf, size), existing(snap), snap.capacity, size
    )


def totals(snap: Snapshot) -> Ints:
    """Per type what all machines have together, whoever uses it now."""
    return np.maximum(snap.inventory.openings.supply[view.TOTAL], snap.capacity)


def assign_types(
    snap: Snapshot,
    order: Ints,
    size: Ints,
    most: Ints | None = None,
    fence: Fence | None = None,
    perf: ThroughputModel | None = None,
) -> Ints:
    """Per job the type it competes on, -1 where none of its types exists. *order* lists rows.

    Each needs *size* workers and may use *most*, which is *size* where nobody says so. *perf* is for policies that know
    speeds.
    """
    if fence is None:
        fence = Fence(lineage=np.empty((len(snap), 0), np.int64), room=_NO_ROOM, guarantee=_NO_ROOM, fair=_NO_ROOM)
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
        fence.lineage,
        fence.room,
        fence.guarantee,
        fence.fair,
    )


def by_preference(snap: Snapshot, perf: ThroughputModel | None = None, size: Ints | None = None) -> Ints:
    """The rank of each type for each job, per type and job; NOT_ALLOWED where it cannot run.

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
    """*ranks* of jobs (columns) that may use several types, the fastest first; equal speeds have equal ranks.

    A type on which a job makes no progress is left out, unless it makes none on any.
    """
    rate = np.where(ranks < NOT_ALLOWED, rate, 0.0)
    by_speed = (rate[None, :, :] > rate[:, None, :]).sum(axis=1).astype(ranks.dtype)
    useless = (rate <= 0) & (rate > 0).any(axis=0)
    return np.where((ranks == NOT_ALLOWED) | useless, NOT_ALLOWED, by_speed).astype(ranks.dtype)


def by_type(types: Ints, order: Ints) -> Iterator[tuple[int, Ints]]:
    """Each type that jobs compete on, with their rows in the order given."""
    sorted_types = types.take(order)
    for kind in np.bincount(sorted_types + 1)[1:].nonzero()[0]:
        yield int(kind), order[sorted_types == kind]
