"""A small cluster that applies DRAGON's decisions and checks the invariants."""

from __future__ import annotations

from typing import Any

import numpy as np

from levada.core.assignment import INDEX, NODE, SLOT
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Foreign, Node
from levada.core.decision import Decision
from levada.core.job import Job, ParameterServers, Phase
from levada.core.types import WHOLE
from levada.perf.table_model import TableModel
from levada.policies.dragon.policy import Dragon
from levada.tables.cluster_state import ClusterState
from levada.tables.invariants import Proposal, check

PERF = TableModel([], [])


def node(name: str, gpus: int, *, cpu: int = 16000, memory: int = 65536, gpu_memory: int = 8192, **more: Any) -> Node:
    return Node.of(name, {"v100": gpus}, cpu=cpu, memory=memory, gpu_memory=gpu_memory, **more)


def job(name: str, submitted: float, least: int = 1, most: int | None = None, **fields: Any) -> Job:
    """A job with one server of one core, and workers of one core and one GPU."""
    fields.setdefault("servers", ParameterServers(replicas=1, cpu=1000, memory=1024))
    fields.setdefault("cpu", 1000)
    fields.setdefault("memory", 1024)
    return Job(id=name, submitted=submitted, min=least, max=most or least, **fields)


class Story:
    """A world, a policy and its state; `decide` carries out what it decides, at once."""

    def __init__(self, *nodes: Node, policy: Any = None) -> None:
        self.world = ClusterState(Cluster(nodes=nodes))
        self.policy = policy or Dragon()
        self.state = self.policy.initial(0)
        self.places: dict[str, list[tuple[int, int, int]]] = {}
        self.last: Decision | None = None

    def submit(self, *jobs: Job) -> None:
        self.world.add_jobs(JobBatch.of(jobs))

    def finish(self, name: str) -> None:
        slot = self.world.slot(name)
        for plane in (self.world.target, self.world.held):
            self.world.clear_workers(plane, slot)
        self.world.table.count[slot] = 0
        self.world.remove_jobs(np.array([slot]))

    def serve(self, name: str, **fields: Any) -> None:
        """A serving pod wants room."""
        self.world.foreign[name] = Foreign(id=name, serving=True, **fields)

    def gone(self, name: str) -> None:
        """A serving pod is gone, bound or not."""
        self.world.foreign.remove(name)
        self._count_foreign(name, -1)
        self.places.pop(name, None)

    def decide(self, now: float, *, released: bool = True) -> Decision:
        """Decide, check and apply; without *released*, victims stay for a while."""
        world = self.world
        self._reserve()
        snap = world.snapshot(now)
        decision, self.state = self.policy.decide(snap, PERF, self.state)
        self.last = decision
        table, slots = world.table, snap.jobs.slots
        plane = world.target.copy()
        placed = [] if decision.placed is None else decision.placed.tolist()
        for row, slot in enumerate(slots.tolist()):
            if row in placed or decision.count[row] == 0:
                world.clear_workers(plane, slot)
        for row in placed:
            rows = decision.places[:, decision.places[SLOT] == row].copy()
            rows[SLOT] = slots[row]
            world.put_workers(plane, int(slots[row]), rows)
        kind, count = table.type.copy(), table.count.copy()
        kind[slots], count[slots] = decision.type, decision.count
        proposal = Proposal(plane=plane, type=kind, count=count, slots=slots, protected=np.zeros(table.capacity, bool))
        assert check(world, proposal) == []
        world.target = plane
        table.type[:], table.count[:] = kind, count
        table.phase[slots] = np.where(decision.count > 0, int(Phase.RUNNING), int(Phase.PENDING))
        if released:
            world.held = world.target.copy()
        for bind in decision.binds:
            self._bind(bind.pod, bind.node)
        return decision

    def _reserve(self) -> None:
        """Does what the engine does with reservations of the last decision."""
        inventory = self.world.inventory
        for column in ("reserved_cpu", "reserved_memory", "reserved", "reserved_gpu_memory"):
            getattr(inventory, column)[:] = 0
        for reservation in () if self.last is None else self.last.reservations:
            pod = self.world.foreign.get(reservation.id)
            if pod is not None and pod.node is None:
                inventory.reserved_cpu[reservation.node] += reservation.cpu
                inventory.reserved_memory[reservation.node] += reservation.memory
                for device, milli, memory in reservation.devices:
                    inventory.reserved[device] += milli
                    inventory.reserved_gpu_memory[device] += memory
        inventory.changed()

    def _bind(self, pod: str, where: int) -> None:
        """Run the pod on its reserved room, which must be free."""
        reservation = next(reservation for reservation in self.last.reservations if reservation.id == pod)
        assert reservation.node == where
        held = self.world.held
        for device, milli, _ in reservation.devices:
            assert held.owner[device] < 0
            assert held.shared_milli()[device] + self.world.inventory.foreign[device] + milli <= WHOLE
        name = self.world.inventory.nodes[where]
        before = self.world.foreign[pod]
        self.world.foreign[pod] = Foreign(
            id=pod, node=name, serving=True, cpu=before.cpu, memory=before.memory, milli=before.milli
        )
        self.places[pod] = list(reservation.devices)
        self._count_foreign(pod, +1)

    def _count_foreign(self, name: str, sign: int) -> None:
        inventory = self.world.inventory
        for device, milli, memory in self.places.get(name, []):
            inventory.foreign[device] += sign * milli
            inventory.foreign_gpu_memory[device] += sign * memory
        if name in self.places:
            where, cpu, memory = self._cores[name] if sign < 0 else self._note_cores(name)
            inventory.foreign_cpu[where] += sign * cpu
            inventory.foreign_memory[where] += sign * memory
        inventory.changed()

    def _note_cores(self, name: str) -> tuple[int, int, int]:
        pod = self.world.foreign[name]
        self._cores = {
            **getattr(self, "_cores", {}),
            name: (self.world.inventory.nodes.find(pod.node), pod.cpu, pod.memory),
        }
        return self._cores[name]

    def sizes(self) -> dict[str, int]:
        """Workers by job."""
        return {name: int(self.world.table.count[self.world.slot(name)]) for name in self.world.numbers}

    def where(self, name: str) -> dict[str, int]:
        """Workers of a job by node."""
        rows = self.world.places(self.world.target, self.world.slot(name))
        result: dict[str, int] = {}
        for _, at in dict(zip(rows[INDEX][rows[INDEX] >= 0], rows[NODE][rows[INDEX] >= 0], strict=True)).items():
            result[self.world.inventory.nodes[int(at)]] = result.get(self.world.inventory.nodes[int(at)], 0) + 1
        return result
