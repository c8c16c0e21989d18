"""Limits per user: one account per user in each queue with such limits.

An account counts all jobs of the user in the queue and its descendants.
"""

from __future__ import annotations

import numpy as np

from levada.core.inventory import UNLIMITED
from levada.core.names import Names
from levada.core.queue import QueueTree
from levada.core.types import CPU_TYPE, Ints
from levada.tables.job_table import JobTable


class UserQuotas:
    """The accounts of all active jobs. The last account has no limit and means "not limited"."""

    def __init__(self, table: JobTable, tree: QueueTree, types: Names) -> None:
        limits = tree.user_limits(types)
        #: The accounts of each slot, one column per limiting queue; -1 = not limited by that queue.
        self.line: Ints = np.full((table.capacity, len(tree.limiting_users)), -1, np.int64)
        #: Queue and user of each account, except the last.
        self.owner: list[tuple[int, int]] = []
        for column, queue in enumerate(tree.limiting_users):
            descendants = np.array([queue in tree.lineage(number) for number in range(len(tree.values))])
            slots = table.order[descendants[table.queue[table.order]]]
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
        """Units left by account and type; may be negative."""
        left = self.limit - used
        gpus_left = (self.total - gpus_of(used))[:, None]
        return np.where(np.arange(used.shape[1]) == CPU_TYPE, left, np.minimum(left, gpus_left))

    def usage(self, slots: Ints, gpu_type: Ints, units: Ints) -> Ints:
        """Units used by these jobs, by account and type."""
        used = np.zeros_like(self.limit)
        for accounts in self.line[slots].T:
            np.add.at(used, (accounts, gpu_type), units)
        return used


def gpus_of(used: Ints) -> Ints:
    """The sum over all GPU types, per row."""
    return np.asarray(used.sum(axis=1) - used[:, CPU_TYPE])
