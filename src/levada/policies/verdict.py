"""From sizes to a decision: every job that waits gets the reason that is true for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from levada.core.decision import Decision
from levada.core.reasons import Code
from levada.core.types import Floats, Ints
from levada.kernels import fill
from levada.policies.assign import by_preference, existing, totals
from levada.policies.fill import left_over
from levada.policies.sizes import COLUMNS, largest
from levada.tables.snapshot import Snapshot

_CODES = np.array([Code.RUNS, Code.UNKNOWN_TYPE, Code.TOO_LARGE], np.int64)


def served(snap: Snapshot, order: Ints, size: Ints, *, grow: bool = False) -> Decision:
    """The decision that gives each job in *order* (rows) its *size* if that still fits, after a choice of its type.

    With *grow*, what is left then goes round in turns.
    """
    return _decision(
        fill.serve(
            snap.table.ints,
            snap.jobs.slots,
            COLUMNS,
            by_preference(snap),
            existing(snap),
            snap.table.preference,
            snap.capacity,
            totals(snap),
            order,
            size,
            largest(snap) if grow else size,
            grow,
            int(Code.CAPACITY),
            _CODES,
        )
    )


def verdict(snap: Snapshot, order: Ints, types: Ints, count: Ints, reason: Ints | None = None, **more: Any) -> Decision:
    """The decision of a policy that took the jobs in *order* (rows).

    *reason*, where given, holds what the policy itself knows about waiting jobs; otherwise they wait for capacity.
    """
    table, slots = snap.table, snap.jobs.slots
    said = np.full(len(count), int(Code.CAPACITY)) if reason is None else reason
    found = fill.judge(table.ints, slots, COLUMNS, table.preference, totals(snap), order, types, count, said, _CODES)
    return _decision(found, **more)


def _decision(found: Ints, **more: Any) -> Decision:
    number, given, count, reason, evidence, rank = found
    return Decision(number=number, type=given, count=count, reason=reason, evidence=evidence, rank=rank, **more)


def because_unknown(snap: Snapshot, types: Ints, count: Ints, remaining: Floats) -> Ints:
    """Reasons of waiting jobs under a policy that puts jobs of unknown length last.

    A job waits because nothing is known of it only if it would fit where it competes, but not beside jobs that are
    known.
    """
    return fill.blame(
        snap.table.ints,
        snap.jobs.slots,
        COLUMNS,
        snap.capacity,
        types,
        count,
        remaining,
        int(Code.UNKNOWN_SPEED),
        int(Code.CAPACITY),
    )


def where_it_fits(snap: Snapshot, types: Ints, count: Ints, code: int) -> Ints:
    """Reasons of waiting jobs under a policy that leaves one out though it fits: *code* where it does."""
    free = left_over(snap, types, count)
    return fill.fitting(snap.table.ints, snap.jobs.slots, COLUMNS, free, types, int(code), int(Code.CAPACITY))
