"""From sizes to a decision: every job that waits gets the reason that is true for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from levada.core.decision import Decision
from levada.core.inventory import total_of
from levada.core.reasons import Code
from levada.core.snapshot import Snapshot
from levada.core.types import CPU_TYPE, WHOLE, Floats, Ints
from levada.kernels import fill
from levada.policies.assign import by_preference, existing
from levada.policies.fill import left_over
from levada.policies.sizes import COLUMNS

_CODES = np.array([Code.RUNS, Code.UNKNOWN_TYPE, Code.TOO_LARGE], np.int64)


def served(snap: Snapshot, order: Ints, size: Ints, *, grow: bool = False) -> Decision:
    """The decision that gives each job in *order* (rows) its *size* if that still fits, after a choice of its type.

    With *grow*, what is left then goes round in turns.
    """
    table, slots, capacity = snap.table, snap.jobs.slots, snap.capacity
    preference, exists, code = by_preference(snap), existing(snap), int(Code.CAPACITY)

    def serve(most: Ints) -> tuple[Ints, bool]:
        return fill.serve(
            table.ints,
            slots,
            COLUMNS,
            preference,
            exists,
            table.preference,
            capacity,
            most,
            order,
            size,
            grow,
            code,
            _CODES,
        )

    return _decision(snap, serve)


def verdict(snap: Snapshot, order: Ints, types: Ints, count: Ints, reason: Ints | None = None, **more: Any) -> Decision:
    """The decision of a policy that took the jobs in *order* (rows).

    *reason*, where given, holds what the policy itself knows about waiting jobs; otherwise they wait for capacity.
    """
    table, slots = snap.table, snap.jobs.slots
    said = np.full(len(count), int(Code.CAPACITY)) if reason is None else reason

    def judge(most: Ints) -> tuple[Ints, bool]:
        return fill.judge(table.ints, slots, COLUMNS, table.preference, most, order, types, count, said, _CODES)

    return _decision(snap, judge, **more)


def _decision(snap: Snapshot, judge: Callable[[Ints], tuple[Ints, bool]], **more: Any) -> Decision:
    found, any_too_large = judge(snap.capacity)
    if any_too_large:
        # The cluster may hold more than this view has to give; to count that is too much for every decision.
        found, _ = judge(totals(snap))
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


def totals(snap: Snapshot) -> Ints:
    """Per type what all machines have together, whoever uses it now."""
    inventory = snap.inventory
    present = inventory.type_of[inventory.present]
    total = np.bincount(present, minlength=len(snap.capacity)) * WHOLE
    total[CPU_TYPE] = total_of(inventory.cpu[~inventory.lost])
    return np.maximum(total, snap.capacity)
