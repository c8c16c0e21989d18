"""From sizes to places, for all jobs that a decision changes."""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import msgspec
import numpy as np

from levada.core.plane import Plane
from levada.core.types import Bools, Ints
from levada.kernels import place, release
from levada.placement import general
from levada.tables.world import World


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
        special = general.is_general(world, slots)
        blocks = (plane.devices, plane.nodes, world.held.devices)
        openings, table = world.inventory.openings, world.table
        if not special.any():
            cluster = (openings.devices, openings.nodes, openings.pools)
            return place.place(*blocks, *cluster, table.ints, slots, gpu_type, count, self.highest_first)
        plain = (~special).nonzero()[0]
        asked = (slots[plain], gpu_type[plain], count[plain])
        release.release(*blocks, openings.devices, table.ints, *asked, self.highest_first)
        had = np.where(table.type[slots] == gpu_type, table.count[slots], 0)
        for row in (special & (table.count[slots] > 0)).nonzero()[0]:
            slot = int(slots[row])
            if had[row] == 0 or count[row] == 0:
                world.clear_workers(plane, slot)
            elif count[row] < had[row]:
                general.shrink(world, plane, slot, int(count[row]), highest_first=self.highest_first)
        return self._grow(world, plane, slots, gpu_type, count, had, special)

    def _grow(
        self, world: World, plane: Plane, slots: Ints, gpu_type: Ints, count: Ints, had: Ints, special: Bools
    ) -> Ints:
        table, openings = world.table, world.inventory.openings
        reached = count.copy()
        grows = (count > had).nonzero()[0]
        size = count[grows] * np.maximum(table.milli[slots[grows]], 1)
        order = grows[np.lexsort((table.number[slots[grows]], -size))]
        for run in _runs(special[order]):
            rows = order[run]
            if special[rows[0]]:
                for row in rows:
                    slot = int(slots[row])
                    reached[row] = general.grow(world, plane, slot, int(gpu_type[row]), int(count[row]))
            else:
                reached[rows] = place.seat(
                    plane.devices,
                    plane.nodes,
                    world.held.devices,
                    openings.devices,
                    openings.nodes,
                    openings.pools,
                    table.ints,
                    slots[rows],
                    gpu_type[rows],
                    count[rows],
                )
        return reached


def _runs(flags: Bools) -> list[slice]:
    """Slices of equal neighbours."""
    if not len(flags):
        return []
    borders = np.append(np.append(0, (flags[1:] != flags[:-1]).nonzero()[0] + 1), len(flags))
    return [slice(int(a), int(b)) for a, b in pairwise(borders)]
