"""A world whose sizes change as told, for tests of placement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from levada.core.cluster import Cluster
from levada.core.job import Job
from levada.core.plane import DEVICE, INDEX, NODE, Plane
from levada.placement.placer import Packer
from levada.tables.invariants import (
    Proposal,
    Violation,
    i1_no_device_beyond_whole,
    i2_new_grants_on_open_devices,
    i4_places_add_up,
    i12_nodes_within_limits,
)
from tests.builders import world

#: Workers (and, below zero, parameter servers) of a job: index to (node, devices).
Places = dict[int, tuple[str, tuple[int, ...]]]


class Desk:
    """Places sizes and, unless told otherwise, lets what was placed run at once."""

    def __init__(self, machines: Cluster, *jobs: Job, highest_first: bool = False) -> None:
        self.world = world(machines, *jobs)
        self.packer = Packer(highest_first=highest_first)

    def slots(self, *names: str) -> Any:
        return np.array([self.world.slot(name) for name in names], np.int64)

    def propose(self, sizes: Mapping[str, int], gpu_type: str | Mapping[str, str] = "v100") -> tuple[Plane, Any, Any]:
        """The plane with these sizes and what was reached; nothing is changed. CPU-only jobs find their type."""
        types, table = self.world.inventory.types, self.world.table
        slots = self.slots(*sizes)
        count = np.array(list(sizes.values()), np.int64)
        names = [gpu_type if isinstance(gpu_type, str) else gpu_type.get(name, "v100") for name in sizes]
        kinds = np.array([types.find(name) for name in names], np.int64)
        kinds = np.where(count == 0, -1, np.where(table.milli[slots] == 0, 0, kinds))
        differs = (table.count[slots] != count) | (table.type[slots] != kinds)
        plane = self.world.target.copy()
        reached = count.copy()
        if differs.any():
            reached[differs] = self.packer.place(self.world, plane, slots[differs], kinds[differs], count[differs])
        return plane, kinds, reached

    def resize(
        self, gpu_type: str | Mapping[str, str] = "v100", *, observe: bool = True, **sizes: int
    ) -> dict[str, int]:
        """Gives the jobs these sizes, checks what came of it, and lets it be; the sizes that were reached."""
        plane, kinds, reached = self.propose(sizes, gpu_type)
        slots = self.slots(*sizes)
        faults = self.faults(plane, slots, kinds, reached)
        assert not faults, faults
        self.accept(plane, slots, kinds, reached)
        if observe:
            self.observe()
        return dict(zip(sizes, reached.tolist(), strict=True))

    def faults(self, plane: Plane, slots: Any, kinds: Any, reached: Any) -> list[Violation]:
        """What is wrong with *plane*, asked about all jobs."""
        table = self.world.table
        kind, count = table.type.copy(), table.count.copy()
        count[slots], kind[slots] = reached, np.where(reached > 0, kinds, -1)
        proposal = Proposal(
            plane=plane, type=kind, count=count, slots=table.order, protected=np.zeros(table.capacity, bool)
        )
        return (
            i1_no_device_beyond_whole(self.world, plane)
            + i2_new_grants_on_open_devices(self.world, proposal)
            + i4_places_add_up(self.world, proposal)
            + i12_nodes_within_limits(self.world, plane)
        )

    def accept(self, plane: Plane, slots: Any, kinds: Any, reached: Any) -> None:
        table = self.world.table
        self.world.target.take_from(plane)
        table.count[slots], table.type[slots] = reached, np.where(reached > 0, kinds, -1)

    def observe(self) -> None:
        """All jobs hold what they should."""
        table = self.world.table
        self.world.held.take_from(self.world.target)
        table.held[:], table.held_type[:] = table.count, table.type

    # --- questions --------------------------------------------------------------------------------------------------

    def places(self, name: str, plane: Plane | None = None) -> Places:
        rows = self.world.places(plane if plane is not None else self.world.target, self.world.slot(name))
        found: Places = {}
        for index in np.unique(rows[INDEX]):
            mine = rows[:, rows[INDEX] == index]
            assert len(set(mine[NODE])) == 1
            found[int(index)] = (self.world.inventory.nodes[int(mine[NODE][0])], tuple(mine[DEVICE].tolist()))
        return found

    def by_node(self, name: str, plane: Plane | None = None) -> dict[str, int]:
        """Workers of a job per node."""
        found: dict[str, int] = {}
        for index, (node, _) in self.places(name, plane).items():
            if index >= 0:
                found[node] = found.get(node, 0) + 1
        return dict(sorted(found.items()))

    def servers(self, name: str) -> list[str]:
        """Nodes of the parameter servers of a job, by replica."""
        return [node for index, (node, _) in sorted(self.places(name).items(), reverse=True) if index < 0]
