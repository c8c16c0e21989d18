"""Which GPU type each job competes on, for policies that know one type only.

Running jobs keep their type while it can hold them. The others take, in the policy's order, the first of their
preferred types where what they need fits into what running and earlier jobs leave. A job that fits nowhere competes on
the first of its types that is large enough for it in all, else on its first.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from levada.core.jobtable import NOT_ALLOWED
from levada.core.snapshot import Snapshot
from levada.core.types import CPU_TYPE, Bools, Ints
from levada.kernels import choose

#: No job has a type.
NO_TYPE = -1


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of queues that a choice of type must respect, all per queue and type, in 1/1000ths."""

    #: Per job its queue and those above it, padded with -1.
    lineage: Ints
    room: Ints
    guarantee: Ints


def existing(snap: Snapshot) -> Bools:
    """Per type whether the cluster has any of it, whoever uses it now."""
    inventory = snap.inventory
    found = np.asarray(snap.capacity > 0)
    found[inventory.type_of[inventory.present]] = True
    found[CPU_TYPE] |= bool((~inventory.lost).any())
    return found


def home_types(snap: Snapshot) -> Ints:
    """Per job its present type, else its first preferred one that exists, else -1."""
    options = snap.allowed & existing(snap)
    return _homes(snap, options, _keeps(snap, options, snap.jobs.min * snap.jobs.unit))


def _homes(snap: Snapshot, options: Bools, keeps: Bools) -> Ints:
    ranks = np.where(options, snap.preference, NOT_ALLOWED)
    first = np.where(options.any(axis=1), ranks.argmin(axis=1), NO_TYPE)
    return np.where(keeps, snap.jobs.type, first)


def _keeps(snap: Snapshot, options: Bools, need: Ints) -> Bools:
    """Who runs on a type that can still hold it; the others must look for another one."""
    jobs = snap.jobs
    kind = np.maximum(jobs.type, 0)
    runs = (jobs.count > 0) & (jobs.type >= 0)
    return runs & options[np.arange(len(jobs)), kind] & (need <= snap.capacity[kind])


def assign_types(snap: Snapshot, order: Ints, size: Ints, fence: Fence | None = None) -> Ints:
    """Per job the type it competes on with *size* workers, -1 where none of its types exists. *order* lists rows."""
    options = snap.allowed & existing(snap)
    need = size * snap.jobs.unit
    keeps = _keeps(snap, options, need)
    types = _homes(snap, options, keeps)
    # The usual cluster has one type: nobody has a choice, and there is nothing to do in order.
    if not ((options.sum(axis=1) > 1) & ~keeps).any():
        return types
    stays = keeps.nonzero()[0]
    left = snap.capacity.copy()
    np.subtract.at(left, types[stays], need[stays])
    lineage, room = np.zeros((len(snap), 0), np.int64), np.zeros((0, len(left)), np.int64)
    large = options & (snap.capacity >= need[:, None])
    if fence is not None:
        lineage, room = fence.lineage, fence.room.copy()
        for line in lineage.T:
            inside = stays[line[stays] >= 0]
            np.subtract.at(room, (line[inside], types[inside]), need[inside])
            large &= (line < 0)[:, None] | (fence.room[line] >= need[:, None])
    rows = order[(~keeps & (types >= 0))[order]]
    ranks = np.where(options[rows], snap.preference[rows], NOT_ALLOWED)
    choices = ranks.argsort(axis=1, kind="stable")
    choices = np.where(np.take_along_axis(ranks, choices, axis=1) < NOT_ALLOWED, choices, -1)
    found = choose.assign_types(choices, need[rows], left, lineage[rows], room)
    if fence is not None:
        # What a queue is sure of it may claim back, so its job had better wait there.
        sure = large & (fence.guarantee[lineage[:, 0]] >= need[:, None])
        large = np.where(sure.any(axis=1, keepdims=True), sure, large)
    ranks = np.where(large[rows], ranks, NOT_ALLOWED)
    fallback = np.where(large[rows].any(axis=1), ranks.argmin(axis=1), types[rows])
    types[rows] = np.where(found >= 0, found, fallback)
    return types


def by_type(types: Ints, order: Ints) -> Iterator[tuple[int, Ints]]:
    """Each type that jobs compete on, with their rows in the order given."""
    sorted_types = types[order]
    for kind in np.unique(sorted_types):
        if kind >= 0:
            yield int(kind), order[sorted_types == kind]
