"""What one user may have in a queue: an account per user in each queue that limits its users.

Whatever the user's jobs have in the queue and in those below it counts there.
"""

from __future__ import annotations

import numpy as np

from levada.core.inventory import UNLIMITED
from levada.core.names import Names
from levada.core.queue import QueueTree
from levada.core.types import CPU_TYPE, Ints
from levada.tables.jobtable import JobTable


class UserAccounts:
    """The accounts of all active jobs. The last one has no limit: it stands for "not limited here"."""

    def __init__(self, table: JobTable, tree: QueueTree, types: Names) -> None:
        limits = tree.user_limits(types)
        #: Per slot its account in each queue that limits its users, -1 in those it has nothing to do with.
        self.line: Ints = np.full((table.capacity, len(tree.limiting_users)), -1, np.int64)
        #: Queue and user of each account but the last.
        self.owner: list[tuple[int, int]] = []
        for column, queue in enumerate(tree.limiting_users):
            below = np.array([queue in tree.lineage(number) for number in range(len(tree.values))])
            slots = table.order[below[table.queue[table.order]]]
            users, which = np.unique(table.entity[slots], return_inverse=True)
            self.line[slots, column] = len(self.owner) + which.reshape(-1)
            self.owner += [(queue, int(user)) for user in users]
        #: Per account and type, in 1/1000ths.
        self.limit: Ints = np.full((len(self.owner) + 1, len(types)), UNLIMITED, np.int64)
        #: Per account, of all GPU types together.
        self.total: Ints = np.full(len(self.owner) + 1, UNLIMITED, np.int64)
        totals = tree.user_totals()
        for account, (queue, _) in enumerate(self.owner):
            self.limit[account], self.total[account] = limits[queue], totals[queue]

    def left(self, used: Ints) -> Ints:
        """Per account and type what is left beside such use; may be below 0."""
        left = self.limit - used
        together = (self.total - gpus_of(used))[:, None]
        return np.where(np.arange(used.shape[1]) == CPU_TYPE, left, np.minimum(left, together))

    def usage(self, slots: Ints, gpu_type: Ints, units: Ints) -> Ints:
        """Per account and type what these jobs use."""
        used = np.zeros_like(self.limit)
        for accounts in self.line[slots].T:
            np.add.at(used, (accounts, gpu_type), units)
        return used


def gpus_of(used: Ints) -> Ints:
    """Per row the sum over all GPU types."""
    return np.asarray(used.sum(axis=1) - used[:, CPU_TYPE])
