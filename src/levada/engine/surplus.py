"""Workers that their jobs could do without, by node: where could room be made at the cost of fewest of them?"""

from __future__ import annotations

import numpy as np

from levada.core.plane import DEVICE, INDEX, MILLI, NODE, SLOT
from levada.core.types import WHOLE, Bools, Ints
from levada.engine.state import State
from levada.tables.places import takes, whole_devices


class Surplus:
    """Places of all workers above their jobs' minimum, node by node in the order in which they would go.

    On each node the youngest job's highest index goes first. It holds until targets change.
    """

    def __init__(self, state: State) -> None:
        world, table = state.world, state.world.table
        spare = table.count - table.min
        # Removing one worker must leave a size that the job allows.
        able = (table.number >= 0) & (spare > 0) & (table.step == 1) & ~state.protected() & (table.issued == 0)
        target = world.target
        whole = whole_devices(world.inventory, target, target.devices_of(able.nonzero()[0]))
        rows = np.concatenate([whole, target.rows[:, able[target.rows[SLOT]]]], axis=1)
        rows = rows[:, rows[INDEX] > 0]
        rows = rows[:, np.lexsort((-rows[INDEX], -table.number[rows[SLOT]], rows[NODE]))]
        worker = _starts(rows[[NODE, SLOT, INDEX]])
        of_job = _starts(rows[[NODE, SLOT]])
        # How many of its job's workers go before it on its node: the job can spare no more than its surplus.
        before: Ints = np.cumsum(worker, dtype=np.int64)
        before -= before[_last_start(of_job)]
        rows = rows[:, before < spare[rows[SLOT]]]
        #: Columns as in `Plane.rows`; the places of a worker stand together.
        self.rows = rows
        self._first = _starts(rows[[NODE, SLOT, INDEX]]).nonzero()[0]
        self._node = rows[NODE][self._first]
        self._cpu, self._memory = takes(table, rows[:, self._first])

    def cheapest(
        self, wanted: Bools, *, free: Ints, devices: int, short_cpu: Ints, short_memory: Ints
    ) -> tuple[int, Ints]:
        """The node where fewest workers have to go, and their places; -1 where all of them would not be enough.

        There shall be so many whole *devices* of the *wanted* ones, of which *free* are free already (per node), and
        cores and memory so that nothing is short (per node).
        """
        if not len(self._first):
            return -1, self.rows
        gained = np.zeros(self.rows.shape[1], np.int64)
        whole = (self.rows[MILLI] == WHOLE).nonzero()[0]
        gained[whole] = wanted[self.rows[DEVICE, whole]]
        gains = (np.add.reduceat(gained, self._first), self._cpu, self._memory)
        begin = _last_start(_starts(self._node[None]))
        enough = np.ones(len(begin), bool)
        for gain, needed in zip(gains, (devices - free, short_cpu, short_memory), strict=True):
            total = np.cumsum(gain)
            enough &= total - (total - gain)[begin] >= needed[self._node]
        at = enough.nonzero()[0]
        if not len(at):
            return -1, self.rows[:, :0]
        last = at[(at - begin[at]).argmin()]
        stop = self._first[last + 1] if last + 1 < len(self._first) else self.rows.shape[1]
        return int(self._node[last]), self.rows[:, self._first[begin[last]] : stop]


def _last_start(starts: Bools) -> Ints:
    """For each place the last one, up to it, where something starts."""
    here = np.arange(len(starts))
    return np.asarray(np.maximum.accumulate(np.where(starts, here, 0)))


def _starts(columns: Ints) -> Bools:
    """True where a run of equal ones begins."""
    starts = np.ones(columns.shape[1], bool)
    starts[1:] = (columns[:, 1:] != columns[:, :-1]).any(axis=0)
    return starts
