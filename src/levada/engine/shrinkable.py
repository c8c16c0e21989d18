"""Workers above the minimum of their jobs, by node.

They tell which node can be cleared by removing the fewest.
"""

from __future__ import annotations

import numpy as np

from levada.core.assignment import DEVICE, INDEX, MILLI, NODE, SLOT, Assignment
from levada.core.types import WHOLE, Bools, Ints
from levada.engine.state import State
from levada.tables.cluster_state import ClusterState
from levada.tables.placement_rows import takes, whole_devices


def spare_workers(state: State) -> Ints:
    """How many workers each job has above its minimum, per slot; 0 if it must not shrink now."""
    table = state.world.table
    # Removing one worker must leave a size that the job allows.
    able = (table.number >= 0) & (table.step == 1) & (table.issued == 0) & ~state.protected()
    return np.where(able, np.maximum(table.count - table.min, 0), 0)


class Surplus:
    """Places of the workers that jobs can spare on *plane*, by node, in the order of removal.

    On each node, the highest index of the youngest job is removed first. *spare* has the number of workers per slot.
    Valid until *plane* changes.
    """

    def __init__(self, world: ClusterState, plane: Assignment, spare: Ints) -> None:
        table, able = world.table, spare > 0
        whole = whole_devices(world.inventory, plane, plane.devices_of(able.nonzero()[0]))
        rows = np.concatenate([whole, plane.rows[:, able[plane.rows[SLOT]]]], axis=1)
        rows = rows[:, rows[INDEX] > 0]
        rows = rows[:, np.lexsort((-rows[INDEX], -table.number[rows[SLOT]], rows[NODE]))]
        worker = _starts(rows[[NODE, SLOT, INDEX]])
        of_job = _starts(rows[[NODE, SLOT]])
        # How many workers of its job are removed before it on its node: at most the surplus of the job.
        before: Ints = np.cumsum(worker, dtype=np.int64)
        before -= before[_last_start(of_job)]
        rows = rows[:, before < spare[rows[SLOT]]]
        #: Columns as in `Assignment.rows`; the places of a worker are adjacent.
        self.rows = rows
        self._first = _starts(rows[[NODE, SLOT, INDEX]]).nonzero()[0]
        self._node = rows[NODE][self._first]
        self._cpu, self._memory = takes(table, rows[:, self._first])

    def cheapest(self, wanted: Bools, *, short_devices: Ints, short_cpu: Ints, short_memory: Ints) -> tuple[int, Ints]:
        """The node where the fewest workers must be removed, and their places; -1 if no node is sufficient.

        The node must then have, more than now, *short_devices* of the *wanted* ones, *short_cpu* and *short_memory*
        (all per node). Of several such nodes, workers with high indices are removed.
        """
        if not len(self._first):
            return -1, self.rows
        gained = np.zeros(self.rows.shape[1], np.int64)
        whole = (self.rows[MILLI] == WHOLE).nonzero()[0]
        gained[whole] = wanted[self.rows[DEVICE, whole]]
        gains = (np.add.reduceat(gained, self._first), self._cpu, self._memory)
        begin = _last_start(_starts(self._node[None]))
        enough = np.ones(len(begin), bool)
        for gain, needed in zip(gains, (short_devices, short_cpu, short_memory), strict=True):
            total = np.cumsum(gain)
            enough &= total - (total - gain)[begin] >= needed[self._node]
        at = enough.nonzero()[0]
        if not len(at):
            return -1, self.rows[:, :0]
        removed = at - begin[at]
        at = at[removed == removed.min()]
        indices = self.rows[INDEX][self._first[begin[at][:, None] + np.arange(removed.min() + 1)]]
        last = at[indices.min(axis=1).argmax()]
        stop = self._first[last + 1] if last + 1 < len(self._first) else self.rows.shape[1]
        return int(self._node[last]), self.rows[:, self._first[begin[last]] : stop]


def _last_start(starts: Bools) -> Ints:
    """The index of the last start at or before each index."""
    here = np.arange(len(starts))
    return np.asarray(np.maximum.accumulate(np.where(starts, here, 0)))


def _starts(columns: Ints) -> Bools:
    """True where a run of equal columns begins."""
    starts = np.ones(columns.shape[1], bool)
    starts[1:] = (columns[:, 1:] != columns[:, :-1]).any(axis=0)
    return starts
