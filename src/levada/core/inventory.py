"""The cluster as columns: nodes, devices, and pools (the devices of one type in one node, which stand side by side).

The inventory knows what exists, its health, and what others use or have reserved. Who of us holds what is in a `Plane`.
Nodes keep their number for ever; devices are numbered anew when a node comes or changes, and `put` tells how.

A device that vanishes from its node while somebody holds it stays as an *absent* one: an operation that names it may be
on its way, and would be carried out if the device came back. Nobody can be given it and it counts for nothing; when it
is held no more, the next `put` forgets it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from levada.core.cluster import Cluster, Device, Node
from levada.core.layout import UNLIMITED
from levada.core.names import Names
from levada.core.openings import Openings, total_of
from levada.core.types import CPU_TYPE, CPU_TYPE_NAME, WHOLE, Bools, Ints

__all__ = ["UNLIMITED", "Inventory", "total_of"]

_NODE_COLUMNS = ("cpu", "memory", "foreign_cpu", "foreign_memory", "reserved_cpu", "reserved_memory")
_DEVICE_COLUMNS = ("foreign", "foreign_gpu_memory", "reserved", "reserved_gpu_memory")


class Inventory:
    """Columns of nodes (`cpu` … `zone`), devices (`node_of` … `reserved_gpu_memory`) and pools."""

    def __init__(self, cluster: Cluster = Cluster(), types: Names | None = None) -> None:  # noqa: B008 frozen default
        self.types = types if types is not None else Names([CPU_TYPE_NAME])
        self.nodes = Names()
        self.node_values: list[Node] = []
        #: Absent devices by node; replaced, never written to.
        self._absent: dict[int, list[Device]] = {}
        self._openings: Openings | None = None
        self.lost: Bools = np.zeros(0, bool)
        #: Nodes that jobs shall leave; replaced, never written to.
        self.draining: frozenset[int] = frozenset()
        for column in _NODE_COLUMNS:
            setattr(self, column, np.zeros(0, np.int64))
        for column in _DEVICE_COLUMNS:
            setattr(self, column, np.zeros(0, np.int64))
        self._lay_out()
        if cluster.nodes:
            self.put(cluster.nodes)

    # Declared for readers and type checkers; `_lay_out` and `put` fill them.
    #: Per node. Allocatable, and what others hold of it.
    cpu: Ints
    memory: Ints
    foreign_cpu: Ints
    foreign_memory: Ints
    reserved_cpu: Ints
    reserved_memory: Ints
    cordoned: Bools
    rack: Ints
    zone: Ints
    #: Per device.
    node_of: Ints
    type_of: Ints
    gpu_memory: Ints
    healthy: Bools
    absent: Bools
    foreign: Ints
    foreign_gpu_memory: Ints
    reserved: Ints
    reserved_gpu_memory: Ints
    #: Per pool: devices start <= d < stop.
    pool_start: Ints
    pool_stop: Ints
    pool_node: Ints
    pool_type: Ints

    def put(self, nodes: tuple[Node, ...], held: Bools | None = None) -> Ints:
        """Adds or replaces *nodes*; the new number of every device that there was, -1 where it is gone.

        Devices under *held* do not go: they are absent while no node has them. Who is cordoned stays so.
        """
        old_keys = self.device_keys()
        old = {column: getattr(self, column) for column in _DEVICE_COLUMNS}
        for node in nodes:
            if (number := self.nodes.find(node.name)) >= 0:
                cordoned = node.cordoned or self.node_values[number].cordoned
                self.node_values[number] = msgspec.structs.replace(node, cordoned=cordoned)
                self.lost[number] = False
            else:
                self.nodes.add(node.name)
                self.node_values.append(node)
                self.lost = np.append(self.lost, False)
                for column in _NODE_COLUMNS:
                    setattr(self, column, np.append(getattr(self, column), 0))
        self._absent = self._now_absent(nodes, held) if held is not None else {}
        self._lay_out()
        new_number = {key: number for number, key in enumerate(self.device_keys())}
        moved = np.array([new_number.get(key, -1) for key in old_keys], np.int64)
        stayed = moved >= 0
        for column in _DEVICE_COLUMNS:
            fresh = np.zeros(len(self.node_of), np.int64)
            fresh[moved[stayed]] = old[column][stayed]
            setattr(self, column, fresh)
        self.changed()
        return moved

    def _now_absent(self, nodes: tuple[Node, ...], held: Bools) -> dict[int, list[Device]]:
        """Devices under *held* that *nodes*, which are in place already, do not have; or nobody has, still."""
        changed = np.zeros(len(self.nodes), bool)
        changed[[self.nodes.find(node.name) for node in nodes]] = True
        found: dict[int, list[Device]] = {}
        for device in (held & (changed[self.node_of] | self.absent)).nonzero()[0]:
            node, known = int(self.node_of[device]), self._devices[device]
            if all(known.id != there.id for there in self.node_values[node].devices):
                found.setdefault(node, []).append(known)
        return found

    def _lay_out(self) -> None:
        racks, zones = Names(), Names()
        devices: list[tuple[int, int, Device]] = []
        for number, node in enumerate(self.node_values):
            self.cpu[number] = UNLIMITED if node.cpu is None else node.cpu
            self.memory[number] = UNLIMITED if node.memory is None else node.memory
            known = [*node.devices, *self._absent.get(number, ())]
            devices += sorted(((number, self.types.add(device.type), device) for device in known), key=_pool)
        self.cordoned = np.array([node.cordoned for node in self.node_values], bool)
        # A node without a label is in the one nameless rack or zone; racks of different zones are different racks.
        self.zone = np.array([zones.add(_domain(node, "zone")) for node in self.node_values], np.int64)
        labels = [f"{_domain(node, 'zone')}/{_domain(node, 'rack')}" for node in self.node_values]
        self.rack = np.array([racks.add(label) for label in labels], np.int64)
        self._devices = [device for _, _, device in devices]
        self.node_of = np.array([node for node, _, _ in devices], np.int64)
        self.type_of = np.array([gpu_type for _, gpu_type, _ in devices], np.int64)
        self.gpu_memory = np.array([device.memory or UNLIMITED for device in self._devices], np.int64)
        absent = {(node, device.id) for node, its in self._absent.items() for device in its}
        self.absent = np.array([(node, device.id) in absent for node, _, device in devices], bool)
        self.healthy = np.array([device.healthy for device in self._devices], bool) & ~self.absent
        border = np.ones(len(devices), bool)
        border[1:] = (self.node_of[1:] != self.node_of[:-1]) | (self.type_of[1:] != self.type_of[:-1])
        self.pool_start = border.nonzero()[0].astype(np.int64)
        self.pool_stop = np.append(self.pool_start[1:], len(devices)).astype(np.int64)[: len(self.pool_start)]
        self.pool_node = self.node_of[self.pool_start]
        self.pool_type = self.type_of[self.pool_start]

    @property
    def openings(self) -> Openings:
        """What may be given away at all; whoever writes to a column says `changed`."""
        if self._openings is None or self._openings.supply.shape[1] != len(self.types):
            self._openings = Openings.of(self)
        return self._openings

    def changed(self) -> None:
        """Some column has other values."""
        self._openings = None

    def set_lost(self, node: int) -> None:
        """The node is gone until it is `put` again."""
        self.lost[node] = True
        self.changed()

    def set_cordoned(self, node: int, cordoned: bool) -> None:
        """No new grants on the node, or again; then nobody need leave it either."""
        self.cordoned[node] = cordoned
        if not cordoned:
            self.draining -= {node}
        self.node_values[node] = msgspec.structs.replace(self.node_values[node], cordoned=cordoned)
        self.changed()

    @property
    def absent_devices(self) -> dict[int, tuple[Device, ...]]:
        """Held devices that no node reports, by node."""
        return {node: tuple(devices) for node, devices in self._absent.items()}

    def add_absent(self, devices: Mapping[int, tuple[Device, ...]]) -> None:
        """Add devices as `absent_devices` returned them; the caller then fills the device columns again."""
        self._absent = {node: list(its) for node, its in devices.items()}
        self._lay_out()

    def device_keys(self) -> list[tuple[int, str]]:
        """(node, device id) of every device: what names it to a backend."""
        return [(int(node), device.id) for node, device in zip(self.node_of, self._devices, strict=True)]

    def device_id(self, device: int) -> str:
        """The name of a device on its node."""
        return self._devices[device].id

    def devices_of(self, node: int) -> Ints:
        """The numbers of a node's devices."""
        return (self.node_of == node).nonzero()[0]

    @property
    def removed(self) -> Bools:
        """Nodes of which nothing is left but their number: they are lost, and have no devices, cores or memory."""
        empty = (self.cpu == 0) & (self.memory == 0)
        empty[self.node_of] = False
        return self.lost & empty

    @property
    def present(self) -> Bools:
        """Devices that exist now, in whatever health."""
        return ~(self.lost[self.node_of] | self.absent) if len(self.node_of) else np.zeros(0, bool)

    @property
    def usable(self) -> Bools:
        """Devices that a new grant may touch."""
        if not len(self.node_of):
            return np.zeros(0, bool)
        closed = self.lost | self.cordoned
        return self.healthy & ~closed[self.node_of]

    @property
    def usable_nodes(self) -> Bools:
        """Nodes that a new grant may touch."""
        return ~(self.lost | self.cordoned)

    def free_milli(self) -> Ints:
        """Per device what others leave to us, in 1/1000ths; 0 where no grant may go."""
        left = np.maximum(WHOLE - self.foreign - self.reserved, 0)
        left[~self.usable] = 0
        return left

    def free_cpu(self) -> Ints:
        """Per node the cores that others leave to us, 0 where no grant may go; may be negative where others overuse."""
        return np.where(self.usable_nodes, self.cpu - self.foreign_cpu - self.reserved_cpu, 0)

    def free_memory(self) -> Ints:
        """Per node the memory that others leave to us, as `free_cpu`."""
        return np.where(self.usable_nodes, self.memory - self.foreign_memory - self.reserved_memory, 0)

    def capacity(self) -> Ints:
        """Per type what others leave to us: 1/1000ths of GPUs, and of cores for the type of workers without one."""
        total = np.zeros(len(self.types), np.int64)
        np.add.at(total, self.type_of, self.free_milli())
        total[CPU_TYPE] = total_of(self.free_cpu())
        return total

    def copy(self) -> Inventory:
        """An independent copy; objects of nodes and devices are shared, for they never change."""
        twin = Inventory.__new__(Inventory)
        twin.__dict__.update(
            {
                key: value.copy() if isinstance(value, np.ndarray | Names | list) else value
                for key, value in self.__dict__.items()
            }
        )
        return twin


def _pool(row: tuple[int, int, Device]) -> tuple[int, int]:
    return row[:2]


def _domain(node: Node, level: str) -> str:
    return node.labels.get(level, node.labels.get(f"topology.kubernetes.io/{level}", ""))
