"""Fill jobs in order or grow them in turns; workers without capacity always fit."""

from __future__ import annotations

from levada.core.types import Ints
from levada.kernels import fill
from levada.policies.sizes import COLUMNS
from levada.tables.snapshot import Snapshot


def fill_in_order(snap: Snapshot, order: Ints, types: Ints, size: Ints) -> Ints:
    """Workers per job if each in *order* gets *size*, or 0 if that no longer fits."""
    return fill.fill_in_order(snap.table.ints, snap.jobs.slots, COLUMNS, snap.capacity, order, types, size)


def grow_in_turns(snap: Snapshot, order: Ints, types: Ints, count: Ints) -> Ints:
    """Workers per job after jobs with workers grow step by step in *order*."""
    return fill.grow_in_turns(snap.table.ints, snap.jobs.slots, COLUMNS, snap.capacity, order, types, count)


def free_after(snap: Snapshot, types: Ints, count: Ints) -> Ints:
    """The free capacity of each type beside these sizes."""
    return fill.free_after(snap.table.ints, snap.jobs.slots, COLUMNS, snap.capacity, types, count)
