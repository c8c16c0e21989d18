"""The remaining time of jobs, and the order of the shortest first."""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.perf.model import ThroughputModel, remaining_s
from levada.tables.snapshot import Snapshot


def remaining(snap: Snapshot, perf: ThroughputModel, types: Ints) -> Floats:
    """Remaining serial seconds of each job on its type; nan if its work is unknown."""
    return _remaining(snap, perf, snap.jobs.slots, types)


def update_remaining(snap: Snapshot, perf: ThroughputModel, types: Ints, before: Ints, left: Floats) -> Floats:
    """`remaining` on *types*, updated from *left* on the types *before*."""
    rows = (types != before).nonzero()[0]
    if not len(rows):
        return left
    slots, updated = snap.jobs.slots.take(rows), left.copy()
    updated[rows] = _remaining(snap, perf, slots, types.take(rows))
    return updated


def _remaining(snap: Snapshot, perf: ThroughputModel, slots: Ints, types: Ints) -> Floats:
    table = snap.table
    steps_left = table.steps.take(slots) - table.steps_done.take(slots)
    return remaining_s(perf, table.number.take(slots), np.maximum(types, 0), steps_left)


def shortest_first(left: Floats) -> Ints:
    """Rows by remaining time, then submission; unknown times last."""
    return np.argsort(left, kind="stable")
