"""Read-only views of the cluster: nodes, devices, who is on which of them, and queues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from levada.core.cluster import Node
from levada.core.decision import Reservation
from levada.core.grant import Grant
from levada.core.inventory import UNLIMITED, Inventory
from levada.core.plane import FREE, NODE, SLOT, Plane
from levada.core.queue import Queue
from levada.core.types import WHOLE, Floats, Ints
from levada.engine.because import why_it_stays
from levada.engine.drains import staying
from levada.engine.job_queries import read_only
from levada.engine.state import State
from levada.kernels import drive
from levada.tables.world import World

if TYPE_CHECKING:
    from levada.engine.engine import Engine


class NameList(Protocol):
    """Names by number, as `core.names.Names` without its `add`."""

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
    """One node that has not been removed."""

    node: Node
    lost: bool
    cordoned: bool
    gpus: Mapping[str, GpuCount]
    #: 1/1000ths of cores, and MiB; None = unlimited.
    cpu: int | None
    memory: int | None
    #: Ids of the jobs that hold something of it.
    jobs: tuple[str, ...]
    #: While it is drained: the jobs that have not left yet, and why; None otherwise.
    draining: tuple[tuple[str, str], ...] | None


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """One queue with what its jobs hold."""

    queue: Queue
    #: GPUs by type.
    used: Mapping[str, float]
    running: int
    waiting: int


class ClusterView:
    """Nodes, devices and GPU types."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def _inventory(self) -> Inventory:
        return self._engine._state.world.inventory

    @property
    def types(self) -> NameList:
        """GPU types by number."""
        return self._inventory.types

    @property
    def nodes(self) -> NameList:
        """Nodes by number, removed ones included."""
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
        """Types of which some node has a device."""
        return frozenset(self._inventory.type_of[~self._inventory.absent].tolist())

    def is_known(self, node: str) -> bool:
        """Whether there is a node of this name, lost ones included and removed ones not."""
        number = self._inventory.nodes.find(node)
        return number >= 0 and not self._inventory.removed[number]

    def known(self) -> dict[str, tuple[Node, bool]]:
        """All nodes that ever were, by name, and whether each is lost."""
        values, lost = self._inventory.node_values, self._inventory.lost.tolist()
        return {node.name: (node, gone) for node, gone in zip(values, lost, strict=True)}


class PlaneView:
    """Who is on which device: what jobs hold, or what they should hold. Columns as in `core.plane.Plane`."""

    def __init__(self, engine: Engine, *, held: bool) -> None:
        self._engine, self._held = engine, held

    @property
    def _plane(self) -> Plane:
        world = self._engine._state.world
        return world.held if self._held else world.target

    @property
    def _world(self) -> World:
        return self._engine._state.world

    @property
    def owner(self) -> Ints:
        """The slot of each whole device's job, FREE or SHARED."""
        owner: Ints = read_only(self._plane.owner)
        return owner

    @property
    def rows(self) -> Ints:
        """Parts of GPUs, workers without one, and parameter servers."""
        rows: Ints = read_only(self._plane.rows)
        return rows

    @property
    def has_rows(self) -> bool:
        """Whether any job has more than whole devices."""
        return self._plane.rows.shape[1] > 0

    def grant(self, slot: int) -> Grant:
        """What one job has."""
        return self._world.grant(self._plane, slot)

    def node_counts(self, slots: Ints) -> Ints:
        """On how many nodes each of these jobs is."""
        plane, node_of = self._plane, self._world.inventory.node_of
        rows = plane.rows
        return drive.node_counts(plane.owner, node_of, rows[SLOT], rows[NODE], slots, self._world.table.capacity)

    def node_pairs(self, slots: Ints) -> tuple[Ints, Ints]:
        """(row of *slots*, node) for every node that a job is on, in this order."""
        plane, inventory = self._plane, self._world.inventory
        # FREE and SHARED are below zero: they look up the last two places, which no job has.
        row_of = np.full(self._world.table.capacity + 2, -1, np.int64)
        row_of[slots] = np.arange(len(slots))
        whole = row_of[plane.owner]
        devices = (whole >= 0).nonzero()[0]
        keys = whole[devices] * len(inventory.nodes) + inventory.node_of[devices]
        if plane.rows.shape[1]:
            row = row_of[plane.rows[SLOT]]
            ours = row >= 0
            keys = np.append(keys, row[ours] * len(inventory.nodes) + plane.rows[NODE][ours])
        keys = np.unique(keys)
        row, node = np.divmod(keys, max(len(inventory.nodes), 1))
        return row, node

    def add_use(self, seconds: float, used: Floats, prices: Floats) -> float:
        """Adds the GPU-seconds of so many seconds to *used*, by type; what they cost at these *prices* per second."""
        return drive.use(self._plane.owner, self._world.inventory.type_of, seconds, used, prices)


def nodes(state: State) -> list[NodeState]:
    """All nodes, by number."""
    world, inventory = state.world, state.world.inventory
    found = []
    for number in (~inventory.removed).nonzero()[0].tolist():
        devices = inventory.devices_of(number)
        devices = devices[~inventory.absent[devices]]
        kinds, used = inventory.type_of[devices], world.held.owner[devices] != FREE
        cpu, memory = int(inventory.cpu[number]), int(inventory.memory[number])
        found.append(
            NodeState(
                node=inventory.node_values[number],
                lost=bool(inventory.lost[number]),
                cordoned=bool(inventory.cordoned[number]),
                gpus={
                    inventory.types[kind]: GpuCount(int((kinds == kind).sum()), int(used[kinds == kind].sum()))
                    for kind in dict.fromkeys(kinds.tolist())
                },
                cpu=None if cpu >= UNLIMITED else cpu,
                memory=None if memory >= UNLIMITED else memory,
                jobs=tuple(world.holders_on(number)),
                draining=_staying(state, number) if number in inventory.draining else None,
            )
        )
    return found


def _staying(state: State, node: int) -> tuple[tuple[str, str], ...]:
    ids, numbers = state.world.ids, state.world.table.number
    slots = staying(state, frozenset({node})).tolist()
    return tuple((ids[int(numbers[slot])], why_it_stays(state, slot)) for slot in slots)


def queues(state: State) -> list[QueueState]:
    """All queues, by number."""
    world, table = state.world, state.world.table
    slots = state.living()
    of, found = table.queue[slots], []
    for number, queue in enumerate(world.queues.values):
        mine = slots[of == number]
        holders = mine[table.held[mine] > 0]
        gpus = table.held[holders] * table.milli[holders] / WHOLE
        used: dict[str, float] = {}
        for kind, amount in zip(table.held_type[holders].tolist(), gpus.tolist(), strict=True):
            used[world.inventory.types[kind]] = used.get(world.inventory.types[kind], 0) + amount
        found.append(QueueState(queue=queue, used=used, running=len(holders), waiting=len(mine) - len(holders)))
    return found


def free_devices(world: World, node: str | None, gpu_type: str | None) -> list[tuple[str, str]]:
    """(node, device) of every GPU that is wholly free, on this node and of this type where given."""
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


def is_vacant(world: World, kept: Reservation) -> bool:
    """Whether none of our jobs is seen on the devices, cores and memory of a reservation."""
    inventory, held = world.inventory, world.held
    devices = np.array([device for device, _, _ in kept.devices], np.int64)
    cpu = inventory.cpu[kept.node] - inventory.foreign_cpu[kept.node] - held.cpu[kept.node]
    memory = inventory.memory[kept.node] - inventory.foreign_memory[kept.node] - held.memory[kept.node]
    return bool((held.owner[devices] == FREE).all() and cpu >= kept.cpu and memory >= kept.memory)
