"""How long jobs have to go, and who has the shortest way."""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.perf.model import ThroughputModel, remaining_s
from levada.tables.snapshot import Snapshot


def remaining(snap: Snapshot, perf: ThroughputModel, types: Ints) -> Floats:
    """Serial seconds that each job has left on its type; nan where its work is not known."""
    return _remaining(snap, perf, snap.jobs.slots, types)


def remaining_again(snap: Snapshot, perf: ThroughputModel, types: Ints, before: Ints, left: Floats) -> Floats:
    """`remaining` on *types*, where it is *left* on the types *before*: only those that differ are looked up."""
    rows = (types != before).nonzero()[0]
    if not len(rows):
        return left
    slots, again = snap.jobs.slots.take(rows), left.copy()
    again[rows] = _remaining(snap, perf, slots, types.take(rows))
    return again


def _remaining(snap: Snapshot, perf: ThroughputModel, slots: Ints, types: Ints) -> Floats:
    table = snap.table
    steps_left = table.steps.take(slots) - table.steps_done.take(slots)
    return remaining_s(perf, table.number.take(slots), np.maximum(types, 0), steps_left)


def shortest_first(left: Floats) -> Ints:
    """Rows by time left; unknown ones last, equal ones in the order of submission."""
    return np.argsort(left, kind="stable")
