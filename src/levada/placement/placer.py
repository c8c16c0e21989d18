"""From sizes to places, for all jobs that a decision changes."""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import msgspec
import numpy as np

from levada.core.plane import Plane
from levada.core.types import WHOLE, Bools, Ints
from levada.core.world import World
from levada.kernels import place
from levada.placement import general


class Placer(Protocol):
    """Finds places for sizes."""

    def place(self, world: World, plane: Plane, slots: Ints, gpu_type: Ints, count: Ints) -> Ints:
        """Changes *plane* so that each job has *count* workers on *gpu_type*; the counts that were reached.

        *plane* starts as what the jobs should have at present. Only the jobs given are touched.
        """
        ...


class Packer(msgspec.Struct, frozen=True, kw_only=True):
    """Fewest nodes, fewest moves, best fit."""

    #: The backend can only take away the workers with the highest indices.
    highest_first: bool = False

    def place(self, world: World, plane: Plane, slots: Ints, gpu_type: Ints, count: Ints) -> Ints:
        """See `Placer`. Running workers stay where they are; larger jobs find places first."""
        table = world.table
        reached = count.copy()
        special = general.is_general(world, slots)
        had = np.where(table.type[slots] == gpu_type, table.count[slots], 0)
        leaves = (table.count[slots] > 0) & ((had == 0) | (count == 0))
        self._clear(world, plane, slots[leaves & ~special])
        for slot in slots[leaves & special]:
            world.clear_workers(plane, int(slot))
        shrinks = (count > 0) & (count < had)
        self._shrink(world, plane, slots, count, shrinks, special)
        grows = (count > had).nonzero()[0]
        # Large jobs need room in one piece, small ones fill the gaps; equal ones by submission.
        size = count[grows] * np.maximum(table.milli[slots[grows]], 1)
        order = grows[np.lexsort((table.number[slots[grows]], -size))]
        for run in _runs(special[order]):
            rows = order[run]
            if special[rows[0]]:
                for row in rows:
                    slot = int(slots[row])
                    reached[row] = general.grow(world, plane, slot, int(gpu_type[row]), int(count[row]))
            else:
                reached[rows] = self._seat(world, plane, slots[rows], gpu_type[rows], count[rows])
        return reached

    def _clear(self, world: World, plane: Plane, slots: Ints) -> None:
        table = world.table
        nothing = np.zeros(len(slots), np.int64)
        place.shed(
            plane.owner,
            plane.index,
            plane.cpu,
            plane.memory,
            world.held.owner,
            world.inventory.node_of,
            slots,
            nothing,
            table.milli[slots] // WHOLE,
            table.cpu[slots],
            table.memory[slots],
            True,
        )

    def _shrink(self, world: World, plane: Plane, slots: Ints, count: Ints, which: Bools, special: Bools) -> None:
        for row in (which & special).nonzero()[0]:
            general.shrink(world, plane, int(slots[row]), int(count[row]), highest_first=self.highest_first)
        rows = (which & ~special).nonzero()[0]
        if len(rows):
            table, chosen = world.table, slots[rows]
            place.shed(
                plane.owner,
                plane.index,
                plane.cpu,
                plane.memory,
                world.held.owner,
                world.inventory.node_of,
                chosen,
                count[rows],
                table.milli[chosen] // WHOLE,
                table.cpu[chosen],
                table.memory[chosen],
                self.highest_first,
            )

    def _seat(self, world: World, plane: Plane, slots: Ints, gpu_type: Ints, count: Ints) -> Ints:
        table, inventory = world.table, world.inventory
        return place.seat(
            plane.owner,
            plane.index,
            plane.cpu,
            plane.memory,
            inventory.free_cpu(),
            inventory.free_memory(),
            world.held.owner,
            world.held.index,
            inventory.free_milli() == WHOLE,
            inventory.pool_start,
            inventory.pool_stop,
            inventory.pool_node,
            inventory.pool_type,
            inventory.rack,
            inventory.zone,
            slots,
            gpu_type,
            count,
            table.min[slots],
            table.step[slots],
            table.milli[slots] // WHOLE,
            table.cpu[slots],
            table.memory[slots],
        )


def _runs(flags: Bools) -> list[slice]:
    """Slices of equal neighbours."""
    if not len(flags):
        return []
    borders = np.append(np.append(0, (flags[1:] != flags[:-1]).nonzero()[0] + 1), len(flags))
    return [slice(int(a), int(b)) for a, b in pairwise(borders)]
