"""A small mixed cluster with one job of each shape, and short ways to give them places."""

from __future__ import annotations

from typing import Any

import numpy as np

from levada.core.cluster import Cluster, Device, Node
from levada.core.job import Job, ParameterServers, Phase
from levada.core.plane import NO_DEVICE, Plane
from levada.core.queue import Queue
from levada.core.reasons import Code
from levada.core.types import WHOLE
from levada.tables.invariants import Proposal, Violation
from levada.tables.world import World
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


class Scene:
    """A world, and the verbs to change it."""

    def __init__(self, *jobs: Job, machines: Cluster = MACHINES) -> None:
        self.world: World = world(machines, *(jobs or JOBS), queues=QUEUES)

    def slot(self, name: str) -> int:
        return self.world.slot(name)

    def names(self, found: list[Violation]) -> list[tuple[str, str]]:
        """(rule, job) of each violation; an empty name where nobody is at fault."""
        numbers = self.world.table.number
        return [(each.rule, self.world.ids[int(numbers[each.slot])] if each.slot >= 0 else "") for each in found]

    def put(self, plane: Plane, name: str, *places: tuple[int, int], servers: tuple[int, ...] = ()) -> None:
        """Gives a job these (worker, device) places, or (worker, node) where it has no GPU; servers by node."""
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

    def runs(self, name: str, *places: tuple[int, int], kind: int = V100, servers: tuple[int, ...] = ()) -> Scene:
        """The job runs there: it is its target, and it is seen to hold it."""
        there, slot = self.world, self.slot(name)
        for plane in (there.target, there.held):
            self.put(plane, name, *places, servers=servers)
        table = there.table
        table.count[slot] = table.held[slot] = table.observed[slot] = len({index for index, _ in places})
        table.type[slot] = table.held_type[slot] = kind
        table.phase[slot], table.reason[slot] = Phase.RUNNING, Code.RUNS
        return self

    def propose(self, *about: str, protected: tuple[str, ...] = ()) -> Draft:
        """A proposal about these jobs that changes nothing yet."""
        return Draft(self, about, protected)


class Draft:
    """A proposal in the making."""

    def __init__(self, scene: Scene, about: tuple[str, ...], protected: tuple[str, ...]) -> None:
        table = scene.world.table
        self.scene, self.plane = scene, scene.world.target.copy()
        self.type, self.count = table.type.copy(), table.count.copy()
        self.slots = np.array([scene.slot(name) for name in about], np.int64)
        self.protected = np.zeros(table.capacity, bool)
        self.protected[[scene.slot(name) for name in protected]] = True

    def give(self, name: str, *places: tuple[int, int], kind: int = V100, servers: tuple[int, ...] = ()) -> Draft:
        """The job shall have these places, and the size that follows from them."""
        self.scene.put(self.plane, name, *places, servers=servers)
        count = len({index for index, _ in places})
        return self.size(name, count, kind if count else -1)

    def size(self, name: str, count: int, kind: int) -> Draft:
        """The job shall have this size, whatever its places are."""
        slot = self.scene.slot(name)
        self.count[slot], self.type[slot] = count, kind
        return self

    def row(self, name: str, **fields: Any) -> Draft:
        """Changes fields of the first row of a job."""
        columns = ("slot", "index", "node", "device", "milli", "gpu_memory")
        at = (self.plane.rows[0] == self.scene.slot(name)).nonzero()[0][0]
        for field, value in fields.items():
            self.plane.rows[columns.index(field), at] = value
        return self

    def done(self) -> Proposal:
        return Proposal(plane=self.plane, type=self.type, count=self.count, slots=self.slots, protected=self.protected)


def device(scene: Scene, number: int) -> Device:
    """The device as its node declares it."""
    inventory = scene.world.inventory
    node = inventory.node_values[int(inventory.node_of[number])]
    return next(each for each in node.devices if each.id == inventory.device_id(number))
