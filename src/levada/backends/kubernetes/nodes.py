"""Nodes of the cluster as the engine sees them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from levada.backends.kubernetes import names
from levada.backends.kubernetes.eligibility import NodeDemand, is_eligible
from levada.backends.kubernetes.objects import NodeObject, SliceSpec, unix_time
from levada.backends.kubernetes.resources import quantity
from levada.core.cluster import Device, Node

#: GPUs of a node without a type label.
UNKNOWN_TYPE = "gpu"
#: A kubelet that reports trouble may recover; after this time its node is lost.
_NOT_READY_S = 60.0
_MIB = 1024 * 1024
_TOPOLOGY = {"zone": (names.ZONE,), "rack": (names.PREFIX + "rack", "topology.kubernetes.io/rack")}


def gpu_type(labels: Mapping[str, str]) -> str | None:
    """The type of GPU in the labels of a node; None if they name none."""
    return next((labels[name] for name in names.ACCELERATORS if labels.get(name)), None)


def gpus_of(node: NodeObject, slices: Sequence[SliceSpec]) -> tuple[int, str, int]:
    """Count, type and memory (MiB; 0 = unknown) of the GPUs: as allocatable, else as DRA drivers publish them."""
    labelled = gpu_type(node.metadata.labels)
    allocatable = node.status.allocatable
    count = math.floor(sum(quantity(allocatable[name]) for name in names.GPUS if name in allocatable))
    devices = [] if count else [device for each in _newest(slices) for device in each.devices]
    if not devices:
        return count, labelled or UNKNOWN_TYPE, 0
    first = devices[0]
    attributes = first.get("attributes") or {}
    model = next(
        (attributes[name].get("string") for name in ("productName", "model", "type") if name in attributes), None
    )
    memory = ((first.get("capacity") or {}).get("memory") or {}).get("value", 0)
    return len(devices), labelled or model or UNKNOWN_TYPE, math.floor(quantity(memory) / _MIB)


def _newest(slices: Sequence[SliceSpec]) -> list[SliceSpec]:
    """Slices with GPUs, only those of the newest generation of their pool."""
    gpus = [each for each in slices if each.driver.startswith("gpu.")]
    newest: dict[tuple[str, str], int] = {}
    for each in gpus:
        pool = each.driver, each.pool.name
        newest[pool] = max(newest.get(pool, 0), each.pool.generation)
    return [each for each in gpus if each.pool.generation == newest[each.driver, each.pool.name]]


def device_ids(count: int, before: Sequence[str], used: AbstractSet[str]) -> tuple[str, ...]:
    """Ids for *count* GPUs. Ids in use stay, even if there are more of them than GPUs: no running worker ends.

    A broken GPU has no id on Kubernetes, so that free ids are dropped first, the highest first. New ids are the lowest.
    """
    known = sorted({*before, *used}, key=_by_number)
    free = [each for each in known if each not in used]
    kept = [*(each for each in known if each in used), *free[: max(0, count - len(used))]]
    fresh = (str(number) for number in range(count + len(known)) if str(number) not in known)
    while len(kept) < count:
        kept.append(next(fresh))
    return tuple(sorted(kept, key=_by_number))


def _by_number(identity: str) -> tuple[int, str]:
    return (int(identity), "") if identity.isdecimal() else (-1, identity)


def is_lost(node: NodeObject, now: float) -> bool:
    """Whether the workers of a node count as lost: its kubelet is silent, or has reported trouble for 60 s."""
    ready = node.ready
    if ready.status == "Unknown":
        return True
    return ready.status != "True" and now - unix_time(ready.last_transition_time) > _NOT_READY_S


def engine_node(
    node: NodeObject, gpus: tuple[int, str, int], ids: Sequence[str], classes: Iterable[NodeDemand]
) -> Node:
    """The node with its devices, resources, topology, cordon and classes; heartbeats change nothing of it."""
    _, type_, memory = gpus
    allocatable, labels = node.status.allocatable, node.metadata.labels
    topology = {
        name: next(labels[label] for label in keys if label in labels)
        for name, keys in _TOPOLOGY.items()
        if any(label in labels for label in keys)
    }
    return Node(
        name=node.metadata.name,
        devices=tuple(Device(id=each, type=type_, memory=memory) for each in ids),
        cpu=math.floor(quantity(allocatable["cpu"]) * 1000) if "cpu" in allocatable else None,
        memory=math.floor(quantity(allocatable["memory"]) / _MIB) if "memory" in allocatable else None,
        labels=topology,
        cordoned=node.spec.unschedulable or node.ready.status != "True",
        open_to=tuple(sorted(each.name for each in classes if is_eligible(each, node))),
    )
