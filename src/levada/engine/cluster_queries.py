"""Read-only views of the cluster: nodes, devices, their jobs, and queues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec
import numpy as np

from levada.core.assignment import FREE, NODE, SLOT, Assignment
from levada.core.cluster import Node
from levada.core.decision import Reservation
from levada.core.grant import Grant
from levada.core.inventory import UNLIMITED, Inventory
from levada.core.queue import Queue
from levada.core.types import WHOLE, Floats, Ints
from levada.engine.drain import staying
from levada.engine.explain_size import why_not_drained
from levada.engine.job_queries import read_only
from levada.engine.state import State
from levada.kernels import sim_progress
from levada.tables.cluster_state import ClusterState


class NameList(Protocol):
    """Names by number; `core.names.Names` without `add`."""

    def __getitem__(self, number: int, /) -> str: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[str]: ...

    def __contains__(self, name: object, /) -> bool: ...

    def find(self, name: str) -> int:
        """The number of *name*, or -1."""
        ...


class GpuCount(msgspec.Struct, frozen=True):
    """GPUs of one type in one node."""

    total: int
    used: int


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """A node that has not been removed."""

    node: Node
    lost: bool
    cordoned: bool
    gpus: Mapping[str, GpuCount]
    #: 1/1000ths of cores, and MiB; None = unlimited.
    cpu: int | None
    memory: int | None
    #: Ids of the jobs that hold resources of it.
    jobs: tuple[str, ...]
    #: While it is drained: the remaining jobs and why they are still there; None otherwise.
    draining: tuple[tuple[str, str], ...] | None


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A queue and the resources that its jobs hold."""

    queue: Queue
    #: GPUs by type.
    used: Mapping[str, float]
    running: int
    waiting: int


class ClusterView:
    """Nodes, devices and GPU types."""

    def __init__(self, state: State) -> None:
        self._state = state

    @property
    def _inventory(self) -> Inventory:
        return self._state.world.inventory

    @property
    def types(self) -> NameList:
        """GPU types by number."""
        return self._inventory.types

    @property
    def nodes(self) -> NameList:
        """Nodes by number, including removed ones."""
        return self._inventory.nodes

    @property
    def type_of(self) -> Ints:
        """The type of each device."""
        types: Ints = read_only(self._inventory.type_of)
        return types

    def device_id(self, device: int) -> str:
        """The name of a device on its node."""
        return self._inventory.device_id(device)

    def types_present(self) -> frozenset[int]:
        """GPU types of the devices in the cluster."""
        return frozenset(self._inventory.type_of[~self._inventory.absent].tolist())

    def is_known(self, node: str) -> bool:
        """Whether the cluster has a node of this name; lost nodes count, removed ones do not."""
        number = self._inventory.nodes.find(node)
        return number >= 0 and not self._inventory.removed[number]

    def known(self) -> dict[str, tuple[Node, bool]]:
        """All nodes by name, including removed ones, and whether each is lost."""
        values, lost = self._inventory.node_values, self._inventory.lost.tolist()
        return {node.name: (node, is_lost) for node, is_lost in zip(values, lost, strict=True)}


class PlaneView:
    """The held or the target devices of all jobs; columns as in `core.assignment.Assignment`."""

    def __init__(self, state: State, *, held: bool) -> None:
        self._state, self._held = state, held

    @property
    def _plane(self) -> Assignment:
        world = self._state.world
        return world.held if self._held else world.target

    @property
    def _world(self) -> ClusterState:
        return self._state.world

    @property
    def owner(self) -> Ints:
        """The slot of each device's job, FREE or SHARED."""
        owner: Ints = read_only(self._plane.owner)
        return owner

    @property
    def rows(self) -> Ints:
        """Rows of GPU fractions, workers without a GPU, and parameter servers."""
        rows: Ints = read_only(self._plane.rows)
        return rows

    @property
    def has_rows(self) -> bool:
        """Whether any job has rows besides whole devices."""
        return self._plane.rows.shape[1] > 0

    def grant(self, slot: int) -> Grant:
        """The grant of a job."""
        return self._world.grant(self._plane, slot)

    def node_counts(self, slots: Ints) -> Ints:
        """The number of nodes of each of these jobs."""
        plane, node_of = self._plane, self._world.inventory.node_of
        rows = plane.rows
        return sim_progress.node_counts(plane.owner, node_of, rows[SLOT], rows[NODE], slots, self._world.table.capacity)

    def node_pairs(self, slots: Ints) -> tuple[Ints, Ints]:
        """Sorted pairs (row of *slots*, node) for every node of each job."""
        plane, inventory = self._plane, self._world.inventory
        # FREE and SHARED are negative: as indices they mean the last two entries, which belong to no job.
        row_of = np.full(self._world.table.capacity + 2, -1, np.int64)
        row_of[slots] = np.arange(len(slots))
        whole = row_of[plane.owner]
        devices = (whole >= 0).nonzero()[0]
        keys = whole[devices] * len(inventory.nodes) + inventory.node_of[devices]
        if plane.rows.shape[1]:
            row = row_of[plane.rows[SLOT]]
            wanted = row >= 0
            keys = np.append(keys, row[wanted] * len(inventory.nodes) + plane.rows[NODE][wanted])
        keys = np.unique(keys)
        row, node = np.divmod(keys, max(len(inventory.nodes), 1))
        return row, node

    def add_use(self, seconds: float, used: Floats, prices: Floats) -> float:
        """Add the GPU-seconds of *seconds* to *used*, by type; returns their cost at *prices* per second."""
        return sim_progress.add_use(self._plane.owner, self._world.inventory.type_of, seconds, used, prices)


def nodes(state: State) -> list[NodeState]:
    """All nodes, by number."""
    world, inventory = state.world, state.world.inventory
    states = []
    for number in (~inventory.removed).nonzero()[0].tolist():
        devices = inventory.devices_of(number)
        devices = devices[~inventory.absent[devices]]
        types, used = inventory.type_of[devices], world.held.owner[devices] != FREE
        cpu, memory = int(inventory.cpu[number]), int(inventory.memory[number])
        states.append(
            NodeState(
                node=inventory.node_values[number],
                lost=bool(inventory.lost[number]),
                cordoned=bool(inventory.cordoned[number]),
                gpus={
                    inventory.types[gpu_type]: GpuCount(
                        int((types == gpu_type).sum()), int(used[types == gpu_type].sum())
                    )
                    for gpu_type in dict.fromkeys(types.tolist())
                },
                cpu=None if cpu >= UNLIMITED else cpu,
                memory=None if memory >= UNLIMITED else memory,
                jobs=tuple(world.holders_on(number)),
                draining=_staying(state, number) if number in inventory.draining else None,
            )
        )
    return states


def _staying(state: State, node: int) -> tuple[tuple[str, str], ...]:
    ids, numbers = state.world.ids, state.world.table.number
    slots = staying(state, frozenset({node})).tolist()
    return tuple((ids[int(numbers[slot])], why_not_drained(state, slot)) for slot in slots)


def queues(state: State) -> list[QueueState]:
    """All queues, by number."""
    world, table = state.world, state.world.table
    slots = state.living()
    queue_of, states = table.queue[slots], []
    for number, queue in enumerate(world.queues.values):
        members = slots[queue_of == number]
        holders = members[table.held[members] > 0]
        gpus = table.held[holders] * table.milli[holders] / WHOLE
        used: dict[str, float] = {}
        for gpu_type, amount in zip(table.held_type[holders].tolist(), gpus.tolist(), strict=True):
            name = world.inventory.types[gpu_type]
            used[name] = used.get(name, 0) + amount
        states.append(QueueState(queue=queue, used=used, running=len(holders), waiting=len(members) - len(holders)))
    return states


def free_devices(world: ClusterState, node: str | None, gpu_type: str | None) -> list[tuple[str, str]]:
    """(node, device) of every completely free GPU, optionally of one node and of one type."""
    inventory = world.inventory
    free = (world.target.owner == FREE) & (world.held.owner == FREE) & (inventory.free_milli() == WHOLE)
    if node is not None:
        free &= inventory.node_of == inventory.nodes.find(node)
    if gpu_type is not None:
        free &= inventory.type_of == inventory.types.find(gpu_type)
    return [
        (inventory.nodes[int(inventory.node_of[device])], inventory.device_id(device))
        for device in free.nonzero()[0].tolist()
    ]


def is_vacant(world: ClusterState, reservation: Reservation) -> bool:
    """Whether no job holds the devices, CPU or memory of a reservation."""
    inventory, held, node = world.inventory, world.held, reservation.node
    devices = np.array([device for device, _, _ in reservation.devices], np.int64)
    cpu = inventory.cpu[node] - inventory.foreign_cpu[node] - held.cpu[node]
    memory = inventory.memory[node] - inventory.foreign_memory[node] - held.memory[node]
    return bool((held.owner[devices] == FREE).all() and cpu >= reservation.cpu and memory >= reservation.memory)
