"""What queues bound: per queue and type how much it may use, and how much of that is taken."""

from __future__ import annotations

import numpy as np

from levada.core.types import Ints
from levada.policies.assign import Fence
from levada.policies.users import UserBounds
from levada.tables.snapshot import Snapshot


class Bounds:
    """The limits of a snapshot's queues, and what jobs out of view use already. All in 1/1000ths, children included."""

    def __init__(self, snap: Snapshot) -> None:
        tree, types = snap.queues, snap.inventory.types
        self._tree, self._queue = tree, snap.jobs.queue
        self.limit = tree.limits(types)
        self.guarantee = tree.guarantees(types)
        borrows = np.array([queue.borrow for queue in tree.values])
        #: Nobody's use may go beyond this: the limit, and the guarantee where a queue may not borrow.
        self.most = np.where(borrows[:, None], self.limit, np.minimum(self.limit, self.guarantee))
        self.outside = self._used_outside(snap)
        #: What one user may have; None where no queue limits that.
        self.users = UserBounds(snap) if tree.limiting_users else None

    def keep_guarantees(self, snap: Snapshot) -> None:
        """Lowers what each queue may use by what its neighbours are sure of and ask for.

        For policies that decide over all queues at once: they are not asked queue by queue, guarantees first.
        """
        asked = np.minimum(self.guarantee, self.with_children(self._demand(snap)) + self.outside)
        pending = [(self._tree.roots, snap.capacity + self.outside[self._tree.roots].sum(axis=0))]
        while pending:
            level, room = pending.pop()
            for number in level:
                theirs = asked[[other for other in level if other != number]].sum(axis=0)
                self.most[number] = np.minimum(self.most[number], np.maximum(room - theirs, 0))
                pending.append((self._tree.children[number], self.most[number]))

    def _demand(self, snap: Snapshot) -> Ints:
        """Per queue and type what its own jobs in view ask for: on the type they run on, else on any they may use."""
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
        """Per type what *queue* could use more, given what each queue's own jobs in view use; may be below 0."""
        bound = self.limit if only_limits else self.most
        return (bound - self.outside - self.with_children(used))[self._tree.lineage(queue)].min(axis=0)

    def at_most(self) -> Ints:
        """Per job and type what its queue, those above it and its user may have when nobody else has anything."""
        lines = [self._tree.lineage(number) for number in range(len(self._tree.values))]
        tightest = np.stack([self.most[line].min(axis=0) for line in lines])[self._queue]
        return tightest if self.users is None else np.minimum(tightest, self.users.per_job(self.users.limit))

    def with_children(self, used: Ints) -> Ints:
        """Use per queue and type including the queues below, from that of each queue's own jobs."""
        queue, kind = np.indices(used.shape)
        return self._tree.usage(queue.ravel(), kind.ravel(), used.ravel(), used.shape[1])

    def fence(self, snap: Snapshot) -> Fence:
        """What a choice of type must respect."""
        lines = [self._tree.lineage(number) for number in range(len(self._tree.values))]
        depth = max(map(len, lines))
        padded = np.array([line + [-1] * (depth - len(line)) for line in lines], np.int64)
        fair = self._tree.shares(snap.capacity, self._demand(snap), snap.inventory.types, self.outside)
        queues = Fence(lineage=padded[self._queue], room=self.most - self.outside, guarantee=self.guarantee, fair=fair)
        return queues if self.users is None else self.users.fence(queues)
