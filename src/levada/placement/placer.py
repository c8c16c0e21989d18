"""Placement of all jobs that a decision changes."""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import msgspec
import numpy as np

from levada.core.assignment import Assignment
from levada.core.types import Ints
from levada.kernels import place, release
from levada.placement import general
from levada.tables.cluster_state import ClusterState

#: In place of the node class of jobs that are placed one by one.
_SPECIAL = -1


class Placer(Protocol):
    """Assigns devices to jobs of given sizes."""

    def place(self, world: ClusterState, plane: Assignment, slots: Ints, gpu_type: Ints, count: Ints) -> Ints:
        """Change *plane* so that each job has *count* workers on *gpu_type*; returns the counts that fit.

        *plane* is a copy of the current target. Only the jobs in *slots* are changed.
        """
        ...


class Packer(msgspec.Struct, frozen=True, kw_only=True):
    """Places jobs on the fewest nodes, with the fewest moves, by best fit."""

    #: The backend can only remove the workers with the highest indices.
    highest_first: bool = False

    def place(self, world: ClusterState, plane: Assignment, slots: Ints, gpu_type: Ints, count: Ints) -> Ints:
        """See `Placer`. Running workers are not moved; larger jobs are placed first."""
        special, classes = general.is_general(world, slots), world.table.node_class[slots]
        blocks = (plane.devices, plane.nodes, world.held.devices)
        allocatable, table = world.inventory.allocatable, world.table
        if not special.any() and not classes.any():
            cluster = (allocatable.devices, allocatable.nodes, allocatable.pools)
            return place.place(*blocks, *cluster, table.ints, slots, gpu_type, count, self.highest_first)
        had = np.where(table.type[slots] == gpu_type, table.count[slots], 0)
        # Jobs with a class can use only some of the nodes: the others must shrink there.
        growing = np.unique(classes[(count > had) & (classes > 0)])
        wanted = np.asarray(world.inventory.eligible[growing].any(axis=0))
        one_by_one = special | ((count > 0) & (count < had) & wanted.any())
        plain = (~one_by_one).nonzero()[0]
        rows = (slots[plain], gpu_type[plain], count[plain])
        release.release(*blocks, allocatable.devices, table.ints, *rows, self.highest_first)
        for row in (one_by_one & (table.count[slots] > 0)).nonzero()[0]:
            slot, size = int(slots[row]), int(count[row])
            if had[row] == 0 or size == 0:
                world.clear_workers(plane, slot)
            elif size < had[row]:
                general.shrink(world, plane, slot, size, highest_first=self.highest_first, wanted=wanted)
        return self._grow(world, plane, slots, gpu_type, count, had, np.where(special, _SPECIAL, classes))

    def _grow(
        self,
        world: ClusterState,
        plane: Assignment,
        slots: Ints,
        gpu_type: Ints,
        count: Ints,
        had: Ints,
        classes: Ints,
    ) -> Ints:
        """Grow jobs; *classes* has the node class of each, or `_SPECIAL`."""
        table = world.table
        reached = count.copy()
        grows = (count > had).nonzero()[0]
        size = count[grows] * np.maximum(table.milli[slots[grows]], 1)
        order = grows[np.lexsort((table.number[slots[grows]], -size))]
        for run in _runs(classes[order]):
            rows = order[run]
            if classes[rows[0]] == _SPECIAL:
                for row in rows:
                    slot = int(slots[row])
                    reached[row] = general.grow(world, plane, slot, int(gpu_type[row]), int(count[row]))
            else:
                allocatable = world.inventory.allocatable_for(int(classes[rows[0]]))
                reached[rows] = place.grow(
                    plane.devices,
                    plane.nodes,
                    world.held.devices,
                    allocatable.devices,
                    allocatable.nodes,
                    allocatable.pools,
                    table.ints,
                    slots[rows],
                    gpu_type[rows],
                    count[rows],
                )
        return reached


def _runs(values: Ints) -> list[slice]:
    """Slices of adjacent equal values."""
    if not len(values):
        return []
    borders = np.append(np.append(0, (values[1:] != values[:-1]).nonzero()[0] + 1), len(values))
    return [slice(int(a), int(b)) for a, b in pairwise(borders)]
