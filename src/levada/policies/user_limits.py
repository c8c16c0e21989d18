"""Per-user limits of queues: restrict a policy's decision and reuse the rest.

Jobs of a user above the limit are cut in the policy's order: first as many as fit get their minimum, then they grow up
to the size that the policy chose. The policy then decides again about the other jobs with the remaining capacity, until
no user exceeds a limit. Each pass fixes at least one user on one type, so it terminates.

Types are split independently. So if a user exceeds a limit over all types together, the limit becomes one limit per
type, in the policy's order, and everything is decided again.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.decision import Decision
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE, Bools, Ints
from levada.perf.model import ThroughputModel
from levada.policies.assign import TypeBounds
from levada.policies.protocol import Policy, S
from levada.tables.snapshot import Snapshot
from levada.tables.user_quota import UserQuotas, gpus_of


class UserBounds:
    """The limits of the users of a snapshot's jobs. Accounts as in `UserQuotas`."""

    def __init__(self, snap: Snapshot) -> None:
        table, slots = snap.table, snap.jobs.slots
        accounts = UserQuotas(table, snap.queues, snap.inventory.types)
        hidden = table.count > 0
        hidden[slots] = False
        outside = table.order[hidden[table.order]]
        units = table.units()[outside] * table.count[outside]
        self.limit = accounts.limit
        self._outside = accounts.usage(outside, table.type[outside], units)
        #: Per account and type the room of the jobs in view together.
        self.room = accounts.left(self._outside)
        #: The accounts of each job in view: one per queue with user limits.
        self.line = accounts.line[slots]
        #: Accounts whose room has been split among types.
        self._split: set[int] = set()
        self._accounts, self._slots, self._unit, self._users = accounts, slots, snap.jobs.unit, snap.jobs.entity

    def left(self, types: Ints, count: Ints) -> Ints:
        """Per account and type the room left beside these sizes; may be negative."""
        runs = (count > 0).nonzero()[0]
        used = self._accounts.usage(self._slots[runs], types[runs], (count * self._unit)[runs])
        return np.minimum(self.room - used, self._accounts.left(self._outside + used))

    def split(self, snap: Snapshot, types: Ints, count: Ints, rank: Ints) -> bool:
        """Split the room of users above their total limit by type; False if none is."""
        runs = (count > 0).nonzero()[0]
        jobs, units = snap.jobs, count * self._unit
        used = self._accounts.usage(self._slots[runs], types[runs], units[runs])
        room = self._accounts.total - gpus_of(self._outside)
        beyond = set((gpus_of(used) > np.maximum(room, 0)).nonzero()[0].tolist()) - self._split
        self._split |= beyond
        for account in sorted(beyond):
            rows = runs[(self.line[runs] == account).any(axis=1) & (types[runs] != CPU_TYPE)]
            rows = rows[np.argsort(rank[rows], kind="stable")]
            left, part = max(int(room[account]), 0), np.zeros(self.room.shape[1], np.int64)
            starts = {}
            for row in rows.tolist():
                starts[row] = int(jobs.min[row] * self._unit[row]) <= left
                part[types[row]] += starts[row] * int(jobs.min[row] * self._unit[row])
                left -= starts[row] * int(jobs.min[row] * self._unit[row])
            for row in rows.tolist():
                step = max(int(jobs.step[row] * self._unit[row]), 1)
                more = min(int((count[row] - jobs.min[row]) * self._unit[row]), left) // step * step * starts[row]
                part[types[row]] += more
                left -= more
            gpus = np.arange(len(part)) != CPU_TYPE
            self.room[account, gpus] = np.minimum(self.room[account], part)[gpus]
        return bool(beyond)

    def per_job(self, left: Ints) -> Ints:
        """Per job and type the smallest value of its accounts."""
        return left[self.line].min(axis=1)

    def demand(self, rows: Ints, types: Ints, wants: Ints) -> Ints:
        """Per type the demand of these jobs of one queue, at most each user's room."""
        _, first, which = np.unique(self._users[rows], return_index=True, return_inverse=True)
        asked = _sums(which, types[rows], wants[rows], (len(first), self.room.shape[1]))
        return np.minimum(asked, np.maximum(self.per_job(self.room)[rows[first]], 0)).sum(axis=0)

    def extend(self, bounds: TypeBounds) -> TypeBounds:
        """The bounds extended by the accounts, as additional queues."""
        line = np.where(self.line >= 0, self.line + len(bounds.room), -1)
        return msgspec.structs.replace(
            bounds,
            lineage=np.concatenate([bounds.lineage, line], axis=1),
            room=np.concatenate([bounds.room, self.room]),
        )


def decide_within(
    policy: Policy[S], view: Snapshot, perf: ThroughputModel, state: S, types: Ints, room: Ints
) -> tuple[Decision, S]:
    """The policy's decision about one queue, with every user within *room*.

    *room* is per job and type. Jobs are bound to *types*. The state is that of the first call, which sees all jobs.
    """
    first, after = policy.decide(view, perf, state)
    users = view.jobs.entity
    rank = np.arange(len(view)) if first.rank is None else first.rank
    count, reason, evidence = first.count.copy(), first.reason.copy(), first.evidence.copy()
    batch = np.zeros(len(view), np.int64) if first.batch is None else first.batch.copy()
    open_rows = np.arange(len(view))
    left, wake_at = view.capacity.copy(), first.wake_at
    while (beyond := open_rows[_beyond(view, open_rows, users, types, count, room)]).size:
        wished = count[beyond].copy()
        count[beyond] = _cut(view, beyond[np.argsort(rank[beyond], kind="stable")], users, types, count, room)[beyond]
        changed = count[beyond] != wished
        batch[beyond[changed]] = 0
        reason[beyond[changed]] = np.where(count[beyond[changed]] > 0, int(Code.RUNS), int(Code.CAPACITY))
        np.subtract.at(left, types[beyond], (count * view.jobs.unit)[beyond])
        open_rows = np.setdiff1d(open_rows, beyond)
        again, _ = policy.decide(view.restricted(open_rows, left), perf, state)
        count[open_rows], reason[open_rows], evidence[open_rows] = again.count, again.reason, again.evidence
        if again.batch is not None:
            batch[open_rows] = again.batch
        wake_at = min(wake_at, again.wake_at)
    decision = msgspec.structs.replace(
        first,
        type=np.where(count > 0, types, -1),
        count=count,
        reason=reason,
        evidence=evidence,
        rank=rank,
        batch=batch if batch.any() else None,
        wake_at=wake_at,
    )
    return decision, after


def _beyond(view: Snapshot, rows: Ints, users: Ints, types: Ints, count: Ints, room: Ints) -> Bools:
    """Which of these jobs belong to a user who exceeds the room on the job's type."""
    typed = types[rows] >= 0
    names, which = np.unique(users[rows], return_inverse=True)
    units = (count * view.jobs.unit)[rows[typed]]
    used = _sums(which[typed], types[rows[typed]], units, (len(names), room.shape[1]))
    return np.asarray(typed & (used[which, types[rows]] > room[rows, types[rows]]))


def _cut(view: Snapshot, rows: Ints, users: Ints, types: Ints, wished: Ints, room: Ints) -> Ints:
    """Sizes of the jobs of the view if *rows*, in this order, stay within the room."""
    jobs, count = view.jobs, np.zeros(len(view), np.int64)
    left = {(int(users[row]), int(types[row])): int(room[row, types[row]]) for row in rows}
    for first in (True, False):
        for row in rows:
            key, unit = (int(users[row]), int(types[row])), max(int(jobs.unit[row]), 1)
            fits = left[key] // unit
            if first:
                more = int(jobs.min[row]) if fits >= jobs.min[row] else 0
            elif count[row] > 0:
                step = int(jobs.step[row])
                more = max(min(int(wished[row] - count[row]), fits), 0) // step * step
            else:
                more = 0
            count[row] += more
            left[key] -= more * unit
    return count


def _sums(which: Ints, types: Ints, units: Ints, shape: tuple[int, int]) -> Ints:
    total = np.zeros(shape, np.int64)
    np.add.at(total, (which, types), units)
    return total
