"""Who works where: the places of the jobs in view, worker by worker."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from levada.core.plane import DEVICE, GPU_MEMORY, INDEX, MILLI, NODE, SLOT
from levada.core.types import WHOLE, Bools, Ints
from levada.policies.dragon_board import Board
from levada.tables.snapshot import Snapshot

#: Worker indices, servers below zero among them, are put above zero to sort by them.
_INDEX_BITS = 20
_NODE_BITS = 20


class Crew:
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
        # Devices come in order within each half, and no worker is in both.
        order = np.argsort((places[SLOT] << _INDEX_BITS) + places[INDEX], kind="stable")
        #: Columns as in a plane's rows, with the job's row in view for its slot.
        self.places: Ints = places[:, order]
        job, index = self.places[SLOT], self.places[INDEX]
        is_first = np.ones(len(job), bool)
        is_first[1:] = (job[1:] != job[:-1]) | (index[1:] != index[:-1])
        #: Where each member's places begin, and end.
        self.begin: Ints = is_first.nonzero()[0]
        self.end: Ints = np.append(self.begin[1:], len(job))[: len(self.begin)]
        self.job: Ints = job[self.begin]
        self.index: Ints = index[self.begin]
        self.node: Ints = self.places[NODE][self.begin]
        #: Per job in view, where its members begin; servers stand before workers.
        self.bounds: list[int] = np.searchsorted(self.job, np.arange(len(snap) + 1)).tolist()
        #: Per job in view, how many workers it has.
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
        """Per member whether a server of its job is on its node, or, in a job without any, its first worker."""
        first = np.ones(len(self.job), bool)
        first[1:] = self.job[1:] != self.job[:-1]
        # Members are by index, so the first of a job is a server where it has one.
        anchors = (self.index < 0) | first
        at = (self.job << _NODE_BITS) + self.node
        return np.isin(at, at[anchors])

    @cached_property
    def removable(self) -> Bools:
        """Members whose leaving frees something: workers but the first, where grants may go and devices are known."""
        devices = self.places[DEVICE][self.begin]
        is_real = (self.places[MILLI][self.begin] == 0) | (devices >= 0)
        return (self.index > 0) & self._inventory.usable_nodes[self.node] & is_real

    def places_of(self, members: Ints) -> Ints:
        """The places of these members, one after the other."""
        lengths = self.end[members] - self.begin[members]
        if len(members) and int(lengths.max()) == 1:
            return self.places[:, self.begin[members]]
        at = np.repeat(self.begin[members] - np.append(0, np.cumsum(lengths)[:-1]), lengths)
        return self.places[:, at + np.arange(len(at))]

    def give_back(self, board: Board, members: Ints) -> None:
        """Puts on *board* what these members would leave behind."""
        if not len(members):
            return
        places = self.places_of(members)
        places = places[:, places[DEVICE] >= 0]
        nodes, cpu, memory = self.node[members], self.cpu[members], self.memory[members]
        board.give(nodes, cpu, memory, places[DEVICE], places[MILLI], places[GPU_MEMORY])

    def take_back(self, board: Board, members: Ints) -> None:
        """Undoes `give_back`."""
        if not len(members):
            return
        places = self.places_of(members)
        places = places[:, places[DEVICE] >= 0]
        nodes, cpu, memory = self.node[members], -self.cpu[members], -self.memory[members]
        board.give(nodes, cpu, memory, places[DEVICE], -places[MILLI], -places[GPU_MEMORY])
