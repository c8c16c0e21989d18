"""From sizes to a decision: every job that waits gets the reason that is true for it."""

from __future__ import annotations

import numpy as np

from levada.core.decision import Decision, decision
from levada.core.inventory import total_of
from levada.core.jobtable import NOT_ALLOWED
from levada.core.reasons import Code
from levada.core.snapshot import Snapshot
from levada.core.types import CPU_TYPE, WHOLE, Bools, Floats, Ints


def verdict(
    snap: Snapshot, order: Ints, types: Ints, count: Ints, reason: Ints | None = None, **more: object
) -> Decision:
    """The decision of a policy that took the jobs in *order* (rows).

    *reason*, where given, holds what the policy itself knows about waiting jobs; otherwise they wait for capacity.
    """
    if reason is None:
        reason = np.full(len(count), int(Code.CAPACITY))
    reason = np.where(count > 0, int(Code.RUNS), np.where(types < 0, int(Code.UNKNOWN_TYPE), reason))
    evidence = np.zeros(len(count), np.int64)
    waits = ((count == 0) & (types >= 0)).nonzero()[0]
    if len(waits):
        unit = np.maximum(snap.jobs.unit[waits], 1)
        # All types its user allows, also where this view binds it to one.
        allowed = snap.table.preference[:, snap.jobs.slots[waits]].T != NOT_ALLOWED
        at_most = np.where(allowed, totals(snap) // unit[:, None], 0).max(axis=1)
        too_large = (at_most < snap.jobs.min[waits]) & (snap.jobs.unit[waits] > 0)
        reason[waits[too_large]] = int(Code.TOO_LARGE)
        evidence[waits[too_large]] = at_most[too_large]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return decision(snap, types, count, reason, evidence, rank=rank, **more)


def because_unknown(snap: Snapshot, types: Ints, count: Ints, remaining: Floats) -> Ints:
    """Reasons of waiting jobs under a policy that puts jobs of unknown length last.

    A job waits because nothing is known of it only if it would fit where it competes, but not beside jobs that are
    known.
    """
    unknown = np.isnan(remaining)
    need = snap.jobs.min * snap.jobs.unit
    beside = snap.capacity.copy()
    known = (~unknown & (count > 0)).nonzero()[0]
    np.subtract.at(beside, types[known], count[known] * snap.jobs.unit[known])
    blamed: Bools = unknown & (need <= snap.capacity[types]) & (need > beside[types])
    return np.where(blamed, int(Code.UNKNOWN_SPEED), int(Code.CAPACITY))


def totals(snap: Snapshot) -> Ints:
    """Per type what all machines have together, whoever uses it now."""
    inventory = snap.inventory
    present = inventory.type_of[inventory.present]
    total = np.bincount(present, minlength=len(snap.capacity)) * WHOLE
    total[CPU_TYPE] = total_of(inventory.cpu[~inventory.lost])
    return np.maximum(total, snap.capacity)
