"""A small mixed cluster with one job of each shape, and short ways to place them."""

from __future__ import annotations

from typing import Any

import numpy as np

from levada.core.assignment import NO_DEVICE, Assignment
from levada.core.cluster import Cluster, Device, Node
from levada.core.job import Job, ParameterServers, Phase
from levada.core.queue import Queue
from levada.core.reasons import Code
from levada.core.types import WHOLE
from levada.tables.cluster_state import ClusterState
from levada.tables.invariants import Proposal
from levada.tables.violations import Violation
from tests.builders import job, world

#: Devices 0-3 are n0's, 4-7 n1's (both v100), 8 and 9 n2's (a100, 32 GiB each); the numbers of the types.
V100, A100 = 1, 2
MACHINES = Cluster(
    nodes=(
        Node.of("n0", {"v100": 4}, cpu=8000, memory=8000),
        Node.of("n1", {"v100": 4}, cpu=8000, memory=8000),
        Node.of("n2", {"a100": 2}, gpu_memory=32000, cpu=8000, memory=8000),
    )
)
QUEUES = (
    Queue(name="team", limit={"v100": 6}),
    Queue(name="small", parent="team", limit={"a100": 1}),
    Queue(name="default"),
)
JOBS = (
    job("whole", 1, min=1, max=4, cpu=1000, memory=1000),
    job("other", 2, min=1, max=8, cpu=1000, memory=1000),
    job("pairs", 3, min=1, max=3, step=2, milli=2000, cpu=1000),
    job("part", 4, min=1, max=2, milli=600, gpu_memory=12000, gpu_types=("a100",)),
    job("slice", 5, min=1, max=2, milli=300, gpu_memory=24000, gpu_types=("a100",)),
    job("cores", 6, min=1, max=9, milli=0, cpu=2000, memory=100),
    job("served", 7, min=1, max=4, servers=ParameterServers(replicas=2, cpu=500, memory=100), queue="team"),
    job("queued", 8, min=1, max=8, queue="small"),
)


class ClusterHarness:
    """A cluster state and methods to change it."""

    def __init__(self, *jobs: Job, machines: Cluster = MACHINES) -> None:
        self.world: ClusterState = world(machines, *(jobs or JOBS), queues=QUEUES)

    def slot(self, name: str) -> int:
        return self.world.slot(name)

    def names(self, violations: list[Violation]) -> list[tuple[str, str]]:
        """(invariant, job) of each violation; an empty name if no single job is at fault."""
        numbers = self.world.table.number
        return [(item.rule, self.world.ids[int(numbers[item.slot])] if item.slot >= 0 else "") for item in violations]

    def put(self, plane: Assignment, name: str, *places: tuple[int, int], servers: tuple[int, ...] = ()) -> None:
        """Place a job on (worker, device), or on (worker, node) without GPUs; parameter servers by node."""
        there, slot = self.world, self.slot(name)
        there.clear_workers(plane, slot)
        table, whole = there.table, WHOLE
        milli = int(table.milli[slot])
        rows = []
        for index, at in places:
            if milli == 0:
                rows.append((slot, index, at, NO_DEVICE, 0, 0))
            else:
                part = milli if milli < whole else whole
                memory = int(table.gpu_memory[slot]) if milli < whole else 0
                rows.append((slot, index, int(there.inventory.node_of[at]), at, part, memory))
        rows += [(slot, -1 - replica, node, NO_DEVICE, 0, 0) for replica, node in enumerate(servers)]
        if rows:
            there.put_workers(plane, slot, np.array(rows, np.int64).T)

    def runs(
        self, name: str, *places: tuple[int, int], kind: int = V100, servers: tuple[int, ...] = ()
    ) -> ClusterHarness:
        """Let a job run on these places: as target and as held devices."""
        there, slot = self.world, self.slot(name)
        for plane in (there.target, there.held):
            self.put(plane, name, *places, servers=servers)
        table = there.table
        table.count[slot] = table.held[slot] = table.observed[slot] = len({index for index, _ in places})
        table.type[slot] = table.held_type[slot] = kind
        table.phase[slot], table.reason[slot] = Phase.RUNNING, Code.RUNS
        return self

    def propose(self, *about: str, protected: tuple[str, ...] = ()) -> ProposalBuilder:
        """A proposal for these jobs without changes."""
        return ProposalBuilder(self, about, protected)


class ProposalBuilder:
    """A proposal under construction."""

    def __init__(self, harness: ClusterHarness, about: tuple[str, ...], protected: tuple[str, ...]) -> None:
        table = harness.world.table
        self.harness, self.plane = harness, harness.world.target.copy()
        self.type, self.count = table.type.copy(), table.count.copy()
        self.slots = np.array([harness.slot(name) for name in about], np.int64)
        self.protected = np.zeros(table.capacity, bool)
        self.protected[[harness.slot(name) for name in protected]] = True

    def give(
        self, name: str, *places: tuple[int, int], kind: int = V100, servers: tuple[int, ...] = ()
    ) -> ProposalBuilder:
        """Set the places of a job, and its size accordingly."""
        self.harness.put(self.plane, name, *places, servers=servers)
        count = len({index for index, _ in places})
        return self.size(name, count, kind if count else -1)

    def size(self, name: str, count: int, kind: int) -> ProposalBuilder:
        """Set the size of a job independently of its places."""
        slot = self.harness.slot(name)
        self.count[slot], self.type[slot] = count, kind
        return self

    def row(self, name: str, **fields: Any) -> ProposalBuilder:
        """Change fields of the first row of a job."""
        columns = ("slot", "index", "node", "device", "milli", "gpu_memory")
        at = (self.plane.rows[0] == self.harness.slot(name)).nonzero()[0][0]
        for field, value in fields.items():
            self.plane.rows[columns.index(field), at] = value
        return self

    def done(self) -> Proposal:
        return Proposal(plane=self.plane, type=self.type, count=self.count, slots=self.slots, protected=self.protected)


def device(harness: ClusterHarness, number: int) -> Device:
    """The declaration of a device in its node."""
    inventory = harness.world.inventory
    node = inventory.node_values[int(inventory.node_of[number])]
    return next(device for device in node.devices if device.id == inventory.device_id(number))
