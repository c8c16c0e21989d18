"""Build a decision from sizes; every pending job gets its actual reason."""

from __future__ import annotations

from typing import Any

import numpy as np

from levada.core.decision import Decision
from levada.core.reasons import Code
from levada.core.types import Floats, Ints
from levada.kernels import fill
from levada.policies.assign import by_preference, existing, totals
from levada.policies.fill import free_after
from levada.policies.sizes import COLUMNS, largest
from levada.tables.snapshot import Snapshot

_CODES = np.array([Code.RUNS, Code.UNKNOWN_TYPE, Code.TOO_LARGE], np.int64)


def decide_in_order(snap: Snapshot, order: Ints, size: Ints, *, grow: bool = False) -> Decision:
    """Decide that each job in *order* (rows) gets its *size* if that still fits.

    Chooses a type for each job first. With *grow*, the rest is then handed out in turns.
    """
    return _decision(
        fill.decide_in_order(
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


def build_decision(
    snap: Snapshot, order: Ints, types: Ints, count: Ints, reason: Ints | None = None, **more: Any
) -> Decision:
    """The decision of a policy that decide_in_order the jobs in *order* (rows).

    *reason* holds the policy's own reasons for pending jobs; by default they wait for capacity.
    """
    table, slots = snap.table, snap.jobs.slots
    if reason is None:
        reason = np.full(len(count), int(Code.CAPACITY))
    columns = fill.build_decision(
        table.ints, slots, COLUMNS, table.preference, totals(snap), order, types, count, reason, _CODES
    )
    return _decision(columns, **more)


def _decision(columns: Ints, **more: Any) -> Decision:
    number, kind, count, reason, evidence, rank = columns
    return Decision(number=number, type=kind, count=count, reason=reason, evidence=evidence, rank=rank, **more)


def unknown_length_reasons(snap: Snapshot, types: Ints, count: Ints, remaining: Floats) -> Ints:
    """Reasons of pending jobs under a policy that serves jobs of unknown length last.

    The unknown length is the reason if the job fits on its type, but not beside the jobs of known length.
    """
    return fill.attribute_wait(
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


def skipped_reasons(snap: Snapshot, types: Ints, count: Ints, code: int) -> Ints:
    """Reasons of pending jobs: *code* if the policy skips a job that fits."""
    free = free_after(snap, types, count)
    return fill.fitting_reasons(snap.table.ints, snap.jobs.slots, COLUMNS, free, types, int(code), int(Code.CAPACITY))
