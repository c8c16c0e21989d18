"""Free capacity now, and once everything on its way out has left."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from levada.core.assignment import DEVICE, GPU_MEMORY, INDEX, MILLI, NODE, SLOT, Assignment
from levada.core.cluster import Foreign
from levada.core.decision import Reservation
from levada.core.inventory import UNLIMITED
from levada.core.types import WHOLE, Ints
from levada.policies.dragon.capacity import FreeCapacity
from levada.tables.snapshot import Snapshot

_BITS = 20


class Free(NamedTuple):
    """Two capacities; the same object if nothing is on its way out."""

    #: Neither assigned nor in use.
    now: FreeCapacity
    #: Not assigned to anything that stays.
    soon: FreeCapacity


def free(snap: Snapshot, kept: Iterable[Reservation] = ()) -> Free:
    """The capacity for jobs; reservations in *kept* count as free."""
    inventory, target = snap.inventory, snap.target
    milli = inventory.free_milli()
    milli[target.owner >= 0] = 0
    milli -= target.shared_milli()
    memory = np.where(inventory.gpu_memory >= UNLIMITED, 0, inventory.gpu_memory)
    memory = memory - inventory.foreign_gpu_memory - inventory.reserved_gpu_memory - target.shared_gpu_memory()
    cpu, node_memory = inventory.free_cpu() - target.cpu, inventory.free_memory() - target.memory
    for reservation in kept:
        node = reservation.node
        cpu[node] += min(reservation.cpu, inventory.reserved_cpu[node])
        node_memory[node] += min(reservation.memory, inventory.reserved_memory[node])
        for device, device_milli, device_memory in reservation.devices:
            if target.owner[device] < 0 and inventory.usable[device]:
                milli[device] += min(device_milli, inventory.reserved[device])
                memory[device] += min(device_memory, inventory.reserved_gpu_memory[device])
    soon = FreeCapacity(inventory, cpu, node_memory, milli, memory)
    _set_tags(soon, snap)
    now = _without_leaving(soon, snap)
    leaving = [pod for pod in snap.foreign.values() if pod.leaving and pod.node is not None]
    if leaving:
        now = soon.copy() if now is soon else now
        for pod in leaving:
            _release_pod(soon, pod)
    return Free(now, soon)


def _set_tags(capacity: FreeCapacity, snap: Snapshot) -> None:
    rows = snap.target.rows
    rows = rows[:, rows[DEVICE] >= 0]
    for column, tags in (
        (capacity.affinity, snap.table.affinity),
        (capacity.anti_affinity, snap.table.anti_affinity),
        (capacity.exclusion, snap.table.exclusion),
    ):
        np.maximum.at(column, rows[DEVICE], tags[rows[SLOT]])
        capacity.tagged = capacity.tagged or bool(column.any())


def _without_leaving(capacity: FreeCapacity, snap: Snapshot) -> FreeCapacity:
    """The capacity without what jobs still hold beyond their target.

    Returns the same object if there is no such job.
    """
    held, target, table = snap.held, snap.target, snap.table
    if held is target or (np.array_equal(held.owner, target.owner) and np.array_equal(held.rows, target.rows)):
        return capacity
    leaving = np.setdiff1d(_workers(held, snap), _workers(target, snap))
    still = (held.owner >= 0) & (held.owner != target.owner)
    if not len(leaving) and not still.any():
        return capacity
    left = capacity.copy()
    left.milli[still] = 0
    slot, index, node = leaving >> 2 * _BITS, (leaving >> _BITS) % (1 << _BITS), leaving % (1 << _BITS)
    is_worker = index >= 1 << (_BITS - 1)
    np.subtract.at(left.cpu, node, np.where(is_worker, table.cpu[slot], table.server_cpu[slot]))
    np.subtract.at(left.memory, node, np.where(is_worker, table.memory[slot], table.server_memory[slot]))
    rows = held.rows[:, np.isin(_keys(held.rows[SLOT], held.rows[INDEX], held.rows[NODE]), leaving)]
    rows = rows[:, rows[DEVICE] >= 0]
    np.subtract.at(left.milli, rows[DEVICE], rows[MILLI])
    np.subtract.at(left.gpu_memory, rows[DEVICE], rows[GPU_MEMORY])
    np.maximum(left.milli, 0, out=left.milli)
    left.rebuild()
    return left


def _workers(plane: Assignment, snap: Snapshot) -> Ints:
    """One key per worker or server and its node, ascending."""
    owned = (plane.owner >= 0).nonzero()[0]
    whole = _keys(plane.owner[owned].astype(np.int64), plane.index[owned], snap.inventory.node_of[owned])
    return np.unique(np.concatenate([whole, _keys(plane.rows[SLOT], plane.rows[INDEX], plane.rows[NODE])]))


def _keys(slot: Ints, index: Ints, node: Ints) -> Ints:
    return (((slot << _BITS) + index + (1 << (_BITS - 1))) << _BITS) + node


def _release_pod(capacity: FreeCapacity, pod: Foreign) -> None:
    """Release the capacity of a foreign pod."""
    inventory = capacity.inventory
    node = inventory.nodes.find(pod.node or "")
    if node < 0 or not inventory.usable_nodes[node]:
        return
    devices = np.arange(capacity.first[node], capacity.stop[node])
    if pod.devices:
        devices = devices[[inventory.device_id(device) in pod.devices for device in devices.tolist()]]
    devices = devices[(inventory.foreign[devices] > 0) & inventory.usable[devices]]
    part = pod.milli % WHOLE
    devices = devices[: 1 if part else pod.milli // WHOLE]
    milli = np.full(len(devices), part or WHOLE)
    memory = np.full(len(devices), pod.gpu_memory if part else 0)
    one = np.array([node])
    capacity.release(one, np.array([pod.cpu]), np.array([pod.memory]), devices, milli, memory)
