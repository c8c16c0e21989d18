"""The workers and servers of the jobs in view, with their places."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from levada.core.assignment import DEVICE, GPU_MEMORY, INDEX, MILLI, NODE, SLOT
from levada.core.types import WHOLE, Bools, Ints
from levada.policies.dragon.capacity import FreeCapacity
from levada.tables.snapshot import Snapshot

#: Bits of worker index and node in sort keys.
_INDEX_BITS = 20
_NODE_BITS = 20


class JobWorkers:
    """Members (workers and servers) of all jobs in view, by (job, index)."""

    def __init__(self, snap: Snapshot) -> None:
        row_of = np.full(snap.table.capacity, -1, np.int64)
        row_of[snap.jobs.slots] = np.arange(len(snap))
        target = snap.target
        owned = (target.owner >= 0).nonzero()[0]
        places = np.zeros((6, len(owned) + target.rows.shape[1]), np.int64)
        whole, rest = places[:, : len(owned)], places[:, len(owned) :]
        whole[SLOT], whole[INDEX], whole[DEVICE] = target.owner[owned], target.index[owned], owned
        whole[NODE], whole[MILLI] = snap.inventory.node_of[owned], WHOLE
        rest[:] = target.rows
        places[SLOT] = row_of[places[SLOT]]
        places = places[:, places[SLOT] >= 0]
        # Devices are sorted within each half, and no worker is in both.
        order = np.argsort((places[SLOT] << _INDEX_BITS) + places[INDEX], kind="stable")
        #: Columns as in `Assignment.rows`, with the job's row in view instead of its slot.
        self.places: Ints = places[:, order]
        job, index = self.places[SLOT], self.places[INDEX]
        is_first = np.ones(len(job), bool)
        is_first[1:] = (job[1:] != job[:-1]) | (index[1:] != index[:-1])
        #: The begin and end of each member's places.
        self.begin: Ints = is_first.nonzero()[0]
        self.end: Ints = np.append(self.begin[1:], len(job))[: len(self.begin)]
        self.job: Ints = job[self.begin]
        self.index: Ints = index[self.begin]
        self.node: Ints = self.places[NODE][self.begin]
        #: Per job in view the begin of its members; servers come before workers.
        self.bounds: list[int] = np.searchsorted(self.job, np.arange(len(snap) + 1)).tolist()
        #: Per job in view the number of its workers.
        self.workers: Ints = np.bincount(self.job[self.index >= 0], minlength=len(snap))
        jobs = snap.jobs
        is_worker = self.index >= 0
        self.cpu: Ints = np.where(is_worker, jobs.cpu[self.job], jobs.server_cpu[self.job])
        self.memory: Ints = np.where(is_worker, jobs.memory[self.job], jobs.server_memory[self.job])
        self._inventory = snap.inventory

    def members(self, row: int) -> range:
        """The members of a job, servers first, then workers by index."""
        return range(self.bounds[row], self.bounds[row + 1])

    @cached_property
    def is_home(self) -> Bools:
        """Per member whether it is on a node with a server of its job.

        In a job without servers: on the node of its first worker.
        """
        first = np.ones(len(self.job), bool)
        first[1:] = self.job[1:] != self.job[:-1]
        # Members are sorted by index, so the first of a job is a server if it has one.
        anchors = (self.index < 0) | first
        at = (self.job << _NODE_BITS) + self.node
        return np.isin(at, at[anchors])

    @cached_property
    def removable(self) -> Bools:
        """Workers except the first, on usable nodes with known devices."""
        devices = self.places[DEVICE][self.begin]
        is_real = (self.places[MILLI][self.begin] == 0) | (devices >= 0)
        return (self.index > 0) & self._inventory.usable_nodes[self.node] & is_real

    def places_of(self, members: Ints) -> Ints:
        """The places of these members, concatenated."""
        lengths = self.end[members] - self.begin[members]
        if len(members) and int(lengths.max()) == 1:
            return self.places[:, self.begin[members]]
        at = np.repeat(self.begin[members] - np.append(0, np.cumsum(lengths)[:-1]), lengths)
        return self.places[:, at + np.arange(len(at))]

    def release(self, capacity: FreeCapacity, members: Ints) -> None:
        """Release the capacity of these members."""
        self._change(capacity, members, 1)

    def undo_release(self, capacity: FreeCapacity, members: Ints) -> None:
        """Undo `release`."""
        self._change(capacity, members, -1)

    def _change(self, capacity: FreeCapacity, members: Ints, sign: int) -> None:
        if not len(members):
            return
        places = self.places_of(members)
        places = places[:, places[DEVICE] >= 0]
        cpu, memory = sign * self.cpu[members], sign * self.memory[members]
        capacity.release(
            self.node[members], cpu, memory, places[DEVICE], sign * places[MILLI], sign * places[GPU_MEMORY]
        )
