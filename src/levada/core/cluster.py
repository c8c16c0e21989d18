"""The machines as objects, for the edge; `Inventory` holds the same as columns."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU."""

    id: str
    type: str
    #: MiB; 0 = unknown.
    memory: int = 0
    healthy: bool = True


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One machine with its GPUs, which may be of several types."""

    name: str
    devices: tuple[Device, ...] = ()
    #: Allocatable cores in 1/1000ths and MiB; None = not limited.
    cpu: int | None = None
    memory: int | None = None
    #: `rack` and `zone` are topology; the rest is the backend's.
    labels: Mapping[str, str] = {}
    cordoned: bool = False

    @staticmethod
    def of(name: str, gpus: Mapping[str, int], *, gpu_memory: int = 0, **fields: object) -> Node:
        """A node with so many GPUs of each type, numbered from 0."""
        types = [gpu_type for gpu_type, count in gpus.items() for _ in range(count)]
        devices = tuple(Device(id=str(i), type=gpu_type, memory=gpu_memory) for i, gpu_type in enumerate(types))
        return msgspec.convert({"name": name, "devices": devices, **fields}, Node)


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """All machines."""

    nodes: tuple[Node, ...] = ()


def merged(cluster: Cluster) -> Cluster:
    """The cluster as one node without limits, for backends that place by themselves: then only sizes are decided."""
    devices = tuple(
        Device(id=f"{node.name}/{device.id}", type=device.type, memory=device.memory, healthy=device.healthy)
        for node in cluster.nodes
        if not node.cordoned
        for device in node.devices
    )
    return Cluster(nodes=(Node(name="*", devices=devices),))


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody else uses, or (a serving pod that waits) wants: training makes room for serving."""

    id: str
    #: Where it runs; None while it waits for room.
    node: str | None = None
    #: Device ids on that node, where the backend knows them; otherwise any free ones are counted.
    devices: tuple[str, ...] = ()
    milli: int = 0
    gpu_memory: int = 0
    gpu_type: str | None = None
    cpu: int = 0
    memory: int = 0
    serving: bool = False
    priority: int = 0
    created: float = 0.0
    #: It is on its way out; what it holds will be free soon.
    leaving: bool = False
