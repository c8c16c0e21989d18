"""Giving sizes in an order, and growth in turns, type by type. Jobs whose workers take nothing always fit."""

from __future__ import annotations

from levada.core.types import Ints
from levada.kernels import fill
from levada.policies.sizes import COLUMNS
from levada.tables.snapshot import Snapshot


def give(snap: Snapshot, order: Ints, types: Ints, size: Ints) -> Ints:
    """Workers per job when each in *order* gets *size* or, where that does not fit any more, nothing."""
    return fill.give(snap.table.ints, snap.jobs.slots, COLUMNS, snap.capacity, order, types, size)


def grow_in_turns(snap: Snapshot, order: Ints, types: Ints, count: Ints) -> Ints:
    """Workers per job after what is free went round, step by step in *order*, to jobs that run and can grow."""
    return fill.grow_in_turns(snap.table.ints, snap.jobs.slots, COLUMNS, snap.capacity, order, types, count)


def left_over(snap: Snapshot, types: Ints, count: Ints) -> Ints:
    """Per type what is free after these grants."""
    return fill.left_over(snap.table.ints, snap.jobs.slots, COLUMNS, snap.capacity, types, count)
