"""The cluster as objects; `Inventory` has the same as columns."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU."""

    id: str
    type: str
    #: MiB; 0 = unknown.
    memory: int = 0
    healthy: bool = True


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with its GPUs, which may be of several types."""

    name: str
    devices: tuple[Device, ...] = ()
    #: Allocatable 1/1000ths of cores, and MiB; None = unlimited.
    cpu: int | None = None
    memory: int | None = None
    #: `rack` and `zone` define the topology; other labels belong to the backend.
    labels: Mapping[str, str] = {}
    #: By the backend. Cordons of the operator are separate; see `Inventory.set_cordoned`.
    cordoned: bool = False
    #: Classes of jobs that may use the node; None = all. Jobs without a class may use every node.
    open_to: tuple[str, ...] | None = None

    @staticmethod
    def of(name: str, gpus: Mapping[str, int], *, gpu_memory: int = 0, **fields: object) -> Node:
        """A node with *gpus* (count by type), with device ids from 0."""
        types = [gpu_type for gpu_type, count in gpus.items() for _ in range(count)]
        devices = tuple(Device(id=str(i), type=gpu_type, memory=gpu_memory) for i, gpu_type in enumerate(types))
        return msgspec.convert({"name": name, "devices": devices, **fields}, Node)


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """All machines."""

    nodes: tuple[Node, ...] = ()


def merged(cluster: Cluster) -> Cluster:
    """The cluster as one unlimited node, for backends that place workers themselves."""
    devices = tuple(
        Device(id=f"{node.name}/{device.id}", type=device.type, memory=device.memory, healthy=device.healthy)
        for node in cluster.nodes
        if not node.cordoned
        for device in node.devices
    )
    return Cluster(nodes=(Node(name="*", devices=devices),))


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """A foreign pod or process with the resources that it uses, or that a waiting serving pod needs."""

    id: str
    #: None while it waits for capacity.
    node: str | None = None
    #: Device ids on that node, if the backend knows them; otherwise arbitrary free ones are counted.
    devices: tuple[str, ...] = ()
    milli: int = 0
    gpu_memory: int = 0
    gpu_type: str | None = None
    #: The class of nodes that a serving pod may use; empty = all nodes.
    node_class: str = ""
    cpu: int = 0
    memory: int = 0
    serving: bool = False
    priority: int = 0
    created: float = 0.0
    #: It is terminating and will release its resources soon.
    leaving: bool = False
