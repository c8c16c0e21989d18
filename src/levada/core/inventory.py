"""The cluster as columns: nodes, devices and pools.

A pool is the adjacent devices of one type in one node. The inventory has all nodes and devices with their health,
foreign use and reservations. `Assignment` has the devices of jobs. Node numbers are permanent; devices are renumbered
when a node is added or changed, and `put` returns the new numbers.

A device that disappears from its node while a job holds it stays as an *absent* device: an operation in progress may
name it, and would be carried out if the device came back. Absent devices are not granted and do not count as capacity;
the first `put` after their release removes them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from levada.core.allocatable import Allocatable, total_of
from levada.core.cluster import Cluster, Device, Node
from levada.core.layout import UNLIMITED
from levada.core.names import Names
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
        #: By class.
        self._allocatable: dict[int, Allocatable] = {}
        self.lost: Bools = np.zeros(0, bool)
        #: Nodes that the operator cordoned, and those being drained; replaced, never written to.
        self.cordoned_by_operator: frozenset[int] = frozenset()
        self.draining: frozenset[int] = frozenset()
        #: Classes of jobs; number 0 is no class.
        self.classes = Names([""])
        for column in _NODE_COLUMNS:
            setattr(self, column, np.zeros(0, np.int64))
        for column in _DEVICE_COLUMNS:
            setattr(self, column, np.zeros(0, np.int64))
        self._lay_out()
        if cluster.nodes:
            self.put(cluster.nodes)

    # Declared for readers and type checkers; `_lay_out` and `put` assign them.
    #: Per node: allocatable CPU and memory, and foreign and reserved parts of them.
    cpu: Ints
    memory: Ints
    foreign_cpu: Ints
    foreign_memory: Ints
    reserved_cpu: Ints
    reserved_memory: Ints
    #: By the backend or by the operator.
    cordoned: Bools
    #: By class and node: whether jobs of the class may use the node.
    eligible: Bools
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
        """Add or replace *nodes*; returns the new number of every old device, -1 for removed ones.

        Missing devices in the mask *held* become absent instead. Cordons of the operator stay.
        """
        old_keys = self.device_keys()
        old = {column: getattr(self, column) for column in _DEVICE_COLUMNS}
        for node in nodes:
            if (number := self.nodes.find(node.name)) >= 0:
                self.node_values[number] = node
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
            values = np.zeros(len(self.node_of), np.int64)
            values[moved[stayed]] = old[column][stayed]
            setattr(self, column, values)
        self.changed()
        return moved

    def _now_absent(self, nodes: tuple[Node, ...], held: Bools) -> dict[int, list[Device]]:
        """Devices in the mask *held* that the changed *nodes* no longer have, or that are still absent."""
        changed = np.zeros(len(self.nodes), bool)
        changed[[self.nodes.find(node.name) for node in nodes]] = True
        absent: dict[int, list[Device]] = {}
        for number in (held & (changed[self.node_of] | self.absent)).nonzero()[0]:
            node, device = int(self.node_of[number]), self._devices[number]
            if all(device.id != present.id for present in self.node_values[node].devices):
                absent.setdefault(node, []).append(device)
        return absent

    def _lay_out(self) -> None:
        racks, zones = Names(), Names()
        devices: list[tuple[int, int, Device]] = []
        for number, node in enumerate(self.node_values):
            self.cpu[number] = UNLIMITED if node.cpu is None else node.cpu
            self.memory[number] = UNLIMITED if node.memory is None else node.memory
            known = [*node.devices, *self._absent.get(number, ())]
            devices += sorted(((number, self.types.add(device.type), device) for device in known), key=_pool)
            for name in node.open_to or ():
                self.classes.add(name)
        self._set_access()
        # Nodes without a label share one unnamed rack or zone; racks of different zones are different racks.
        self.zone = np.array([zones.add(_domain(node, "zone")) for node in self.node_values], np.int64)
        labels = [f"{_domain(node, 'zone')}/{_domain(node, 'rack')}" for node in self.node_values]
        self.rack = np.array([racks.add(label) for label in labels], np.int64)
        self._devices = [device for _, _, device in devices]
        self.node_of = np.array([node for node, _, _ in devices], np.int64)
        self._bounds: tuple[int, ...] = tuple(self.node_of.searchsorted(np.arange(len(self.node_values) + 1)).tolist())
        self.type_of = np.array([gpu_type for _, gpu_type, _ in devices], np.int64)
        self.gpu_memory = np.array([device.memory or UNLIMITED for device in self._devices], np.int64)
        absent = {(node, device.id) for node, missing in self._absent.items() for device in missing}
        self.absent = np.array([(node, device.id) in absent for node, _, device in devices], bool)
        self.healthy = np.array([device.healthy for device in self._devices], bool) & ~self.absent
        border = np.ones(len(devices), bool)
        border[1:] = (self.node_of[1:] != self.node_of[:-1]) | (self.type_of[1:] != self.type_of[:-1])
        self.pool_start = border.nonzero()[0].astype(np.int64)
        self.pool_stop = np.append(self.pool_start[1:], len(devices)).astype(np.int64)[: len(self.pool_start)]
        self.pool_node = self.node_of[self.pool_start]
        self.pool_type = self.type_of[self.pool_start]

    def _set_access(self) -> None:
        """Compute which nodes are cordoned, and which are open to each class."""
        self.cordoned = np.array([node.cordoned for node in self.node_values], bool)
        self.cordoned[sorted(self.cordoned_by_operator)] = True
        self.eligible = np.ones((len(self.classes), len(self.node_values)), bool)
        for number, node in enumerate(self.node_values):
            if node.open_to is not None:
                self.eligible[1:, number] = [name in node.open_to for name in self.classes[1:]]

    def add_class(self, name: str) -> int:
        """The number of a class of jobs, which is added if it is new."""
        known = len(self.classes)
        number = self.classes.add(name)
        if number == known:
            self._set_access()
        return number

    @property
    def allocatable(self) -> Allocatable:
        """Allocatable capacity, cached; code that writes to a column must call `changed`."""
        return self.allocatable_for(0)

    def allocatable_for(self, node_class: int) -> Allocatable:
        """Allocatable capacity for jobs of a class, cached."""
        allocatable = self._allocatable.get(node_class)
        if allocatable is None or allocatable.supply.shape[1] != len(self.types):
            allocatable = self._allocatable[node_class] = Allocatable.of(self, self.eligible[node_class])
        return allocatable

    def changed(self) -> None:
        """Invalidate the cache after a change of columns."""
        self._allocatable = {}

    def set_lost(self, node: int) -> None:
        """Mark a node as lost until it is `put` again."""
        self.lost[node] = True
        self.changed()

    def set_cordoned(self, node: int, cordoned: bool) -> None:
        """Cordon or uncordon a node for the operator; the latter also ends a drain.

        A node that the backend cordoned stays so until the backend reports otherwise.
        """
        if cordoned:
            self.cordoned_by_operator |= {node}
        else:
            self.cordoned_by_operator -= {node}
            self.draining -= {node}
        self.cordoned[node] = cordoned or self.node_values[node].cordoned
        self.changed()

    @property
    def absent_devices(self) -> dict[int, tuple[Device, ...]]:
        """Held devices that no node reports, by node."""
        return {node: tuple(devices) for node, devices in self._absent.items()}

    def add_absent(self, devices: Mapping[int, tuple[Device, ...]]) -> None:
        """Restore `absent_devices`; the caller must then assign the device columns."""
        self._absent = {node: list(missing) for node, missing in devices.items()}
        self._lay_out()

    def device_keys(self) -> list[tuple[int, str]]:
        """(node, device id) of every device."""
        return [(int(node), device.id) for node, device in zip(self.node_of, self._devices, strict=True)]

    def device_id(self, device: int) -> str:
        """The name of a device on its node."""
        return self._devices[device].id

    def devices_of(self, node: int) -> Ints:
        """The numbers of a node's devices."""
        return np.arange(self._bounds[node], self._bounds[node + 1]) if node >= 0 else np.zeros(0, np.int64)

    @property
    def removed(self) -> Bools:
        """Removed nodes, per node: they are lost and have no devices, CPU or memory."""
        empty = (self.cpu == 0) & (self.memory == 0)
        empty[self.node_of] = False
        return self.lost & empty

    @property
    def present(self) -> Bools:
        """Devices that exist, healthy or not."""
        return ~(self.lost[self.node_of] | self.absent) if len(self.node_of) else np.zeros(0, bool)

    @property
    def usable(self) -> Bools:
        """Devices that new grants may use."""
        if not len(self.node_of):
            return np.zeros(0, bool)
        closed = self.lost | self.cordoned
        return self.healthy & ~closed[self.node_of]

    @property
    def usable_nodes(self) -> Bools:
        """Nodes that new grants may use."""
        return ~(self.lost | self.cordoned)

    def free_milli(self) -> Ints:
        """1/1000ths without foreign use and reservations, per device; 0 for unusable devices."""
        left = np.maximum(WHOLE - self.foreign - self.reserved, 0)
        left[~self.usable] = 0
        return left

    def free_cpu(self) -> Ints:
        """1/1000ths of cores without foreign use and reservations, per node; 0 if unusable, negative if overused."""
        return np.where(self.usable_nodes, self.cpu - self.foreign_cpu - self.reserved_cpu, 0)

    def free_memory(self) -> Ints:
        """MiB of memory without foreign use and reservations, per node; like `free_cpu`."""
        return np.where(self.usable_nodes, self.memory - self.foreign_memory - self.reserved_memory, 0)

    def capacity(self) -> Ints:
        """Units without foreign use and reservations, per type: 1/1000ths of GPUs, or of cores for `cpu`."""
        total = np.zeros(len(self.types), np.int64)
        np.add.at(total, self.type_of, self.free_milli())
        total[CPU_TYPE] = total_of(self.free_cpu())
        return total

    def copy(self) -> Inventory:
        """An independent copy; node and device objects are shared, because they are immutable."""
        twin = Inventory.__new__(Inventory)
        twin.__dict__.update(
            {
                key: value.copy() if isinstance(value, np.ndarray | Names | list | dict) else value
                for key, value in self.__dict__.items()
            }
        )
        return twin


def _pool(row: tuple[int, int, Device]) -> tuple[int, int]:
    return row[:2]


def _domain(node: Node, level: str) -> str:
    return node.labels.get(level, node.labels.get(f"topology.kubernetes.io/{level}", ""))
