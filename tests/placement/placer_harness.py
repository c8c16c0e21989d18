"""A cluster state with direct control of sizes, for tests of placement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from levada.core.assignment import DEVICE, INDEX, NODE, Assignment
from levada.core.cluster import Cluster
from levada.core.job import Job
from levada.placement.placer import Packer
from levada.tables.invariants import (
    Proposal,
    i1_no_device_beyond_whole,
    i2_new_grants_on_open_devices,
    i4_places_add_up,
    i12_nodes_within_limits,
    i14_grants_on_eligible_nodes,
)
from levada.tables.violations import Violation
from tests.builders import world

#: Workers (and, below zero, parameter servers) of a job: index to (node, devices).
Places = dict[int, tuple[str, tuple[int, ...]]]


class PlacerHarness:
    """Places sizes; by default the placed workers run at once."""

    def __init__(self, machines: Cluster, *jobs: Job, highest_first: bool = False) -> None:
        self.world = world(machines, *jobs)
        self.packer = Packer(highest_first=highest_first)

    def slots(self, *names: str) -> Any:
        return np.array([self.world.slot(name) for name in names], np.int64)

    def propose(
        self, sizes: Mapping[str, int], gpu_type: str | Mapping[str, str] = "v100"
    ) -> tuple[Assignment, Any, Any]:
        """The assignment for these sizes and the sizes reached; the state is not changed. CPU jobs get their type."""
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
        """Place these sizes, check the result and apply it; return the sizes reached."""
        plane, kinds, reached = self.propose(sizes, gpu_type)
        slots = self.slots(*sizes)
        faults = self.faults(plane, slots, kinds, reached)
        assert not faults, faults
        self.accept(plane, slots, kinds, reached)
        if observe:
            self.observe()
        return dict(zip(sizes, reached.tolist(), strict=True))

    def faults(self, plane: Assignment, slots: Any, kinds: Any, reached: Any) -> list[Violation]:
        """Violations of *plane*, for all jobs."""
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
            + i14_grants_on_eligible_nodes(self.world, proposal)
        )

    def accept(self, plane: Assignment, slots: Any, kinds: Any, reached: Any) -> None:
        table = self.world.table
        self.world.target.take_from(plane)
        table.count[slots], table.type[slots] = reached, np.where(reached > 0, kinds, -1)

    def observe(self) -> None:
        """Let all jobs hold their target devices."""
        table = self.world.table
        self.world.held.take_from(self.world.target)
        table.held[:], table.held_type[:] = table.count, table.type

    # --- queries ----------------------------------------------------------------------------------------------------

    def places(self, name: str, plane: Assignment | None = None) -> Places:
        rows = self.world.places(plane if plane is not None else self.world.target, self.world.slot(name))
        places: Places = {}
        for index in np.unique(rows[INDEX]):
            worker = rows[:, rows[INDEX] == index]
            assert len(set(worker[NODE])) == 1
            places[int(index)] = (self.world.inventory.nodes[int(worker[NODE][0])], tuple(worker[DEVICE].tolist()))
        return places

    def by_node(self, name: str, plane: Assignment | None = None) -> dict[str, int]:
        """Workers of a job per node."""
        workers: dict[str, int] = {}
        for index, (node, _) in self.places(name, plane).items():
            if index >= 0:
                workers[node] = workers.get(node, 0) + 1
        return dict(sorted(workers.items()))

    def servers(self, name: str) -> list[str]:
        """Nodes of the parameter servers of a job, by replica."""
        return [node for index, (node, _) in sorted(self.places(name).items(), reverse=True) if index < 0]
