"""Capacity bounds of queues: per queue and type what it may use and what it uses."""

from __future__ import annotations

import numpy as np

from levada.core.types import Ints
from levada.policies.assign import TypeBounds
from levada.policies.user_limits import UserBounds
from levada.tables.snapshot import Snapshot


class Bounds:
    """The limits of a snapshot's queues, and the usage by jobs out of view.

    In 1/1000ths; queues include their children.
    """

    def __init__(self, snap: Snapshot) -> None:
        tree, types = snap.queues, snap.inventory.types
        self._tree, self._queue = tree, snap.jobs.queue
        self.limit = tree.limits(types)
        self.guarantee = tree.guarantees(types)
        borrows = np.array([queue.borrow for queue in tree.values])
        #: The most that a queue may use: its limit, or its guarantee if it may not borrow.
        self.most = np.where(borrows[:, None], self.limit, np.minimum(self.limit, self.guarantee))
        self.outside = self._used_outside(snap)
        #: Per-user limits; None if no queue has any.
        self.users = UserBounds(snap) if tree.limiting_users else None

    def keep_guarantees(self, snap: Snapshot) -> None:
        """Lower the bound of each queue by the guarantees that its siblings request.

        For policies that decide over all queues at once instead of queue by queue, guarantees first.
        """
        asked = np.minimum(self.guarantee, self.with_children(self._demand(snap)) + self.outside)
        pending = [(self._tree.roots, snap.capacity + self.outside[self._tree.roots].sum(axis=0))]
        while pending:
            level, room = pending.pop()
            for number in level:
                siblings = asked[[other for other in level if other != number]].sum(axis=0)
                self.most[number] = np.minimum(self.most[number], np.maximum(room - siblings, 0))
                pending.append((self._tree.children[number], self.most[number]))

    def _demand(self, snap: Snapshot) -> Ints:
        """The demand of each queue's own jobs in view; pending jobs on all their types."""
        jobs = snap.jobs
        on_type = np.where(jobs.count[:, None] > 0, np.arange(len(snap.capacity)) == jobs.type[:, None], snap.allowed)
        total = np.zeros((len(self._tree.values), len(snap.capacity)), np.int64)
        np.add.at(total, jobs.queue, on_type * (jobs.max * jobs.unit)[:, None])
        return total

    def _used_outside(self, snap: Snapshot) -> Ints:
        table = snap.table
        hidden = table.count > 0
        hidden[snap.jobs.slots] = False
        slots = table.order[hidden[table.order]]
        units = table.units()[slots] * table.count[slots]
        return self._tree.usage(table.queue[slots], table.type[slots], units, len(snap.capacity))

    def room(self, queue: int, used: Ints, *, only_limits: bool = False) -> Ints:
        """Per type what *queue* may use beyond *used* (by own jobs); may be negative."""
        bound = self.limit if only_limits else self.most
        return (bound - self.outside - self.with_children(used))[self._tree.lineage(queue)].min(axis=0)

    def at_most(self) -> Ints:
        """Per job and type what its queues and its user allow on an empty cluster."""
        lines = [self._tree.lineage(number) for number in range(len(self._tree.values))]
        tightest = np.stack([self.most[line].min(axis=0) for line in lines])[self._queue]
        return tightest if self.users is None else np.minimum(tightest, self.users.per_job(self.users.limit))

    def with_children(self, used: Ints) -> Ints:
        """Usage per queue and type including child queues, from that of own jobs."""
        queue, kind = np.indices(used.shape)
        return self._tree.usage(queue.ravel(), kind.ravel(), used.ravel(), used.shape[1])

    def type_bounds(self, snap: Snapshot) -> TypeBounds:
        """The queue bounds for the choice of a type."""
        lines = [self._tree.lineage(number) for number in range(len(self._tree.values))]
        depth = max(map(len, lines))
        padded = np.array([line + [-1] * (depth - len(line)) for line in lines], np.int64)
        fair = self._tree.shares(snap.capacity, self._demand(snap), snap.inventory.types, self.outside)
        queues = TypeBounds(
            lineage=padded[self._queue], room=self.most - self.outside, guarantee=self.guarantee, fair=fair
        )
        return queues if self.users is None else self.users.extend(queues)
