"""Reserve capacity for waiting serving pods.

Training jobs shrink down to their minimum for them.

This applies under any policy, except for those that decide by node (DRAGON), which handle serving pods themselves.
"""

from __future__ import annotations

import numpy as np

from levada.core.assignment import DEVICE, FREE, INDEX, MILLI, SHARED, SLOT
from levada.core.cluster import Foreign
from levada.core.decision import Reservation
from levada.core.inventory import UNLIMITED
from levada.core.types import WHOLE, Bools, Ints, distinct
from levada.engine.foreign import release_room, reserve
from levada.engine.held_devices import drop_workers
from levada.engine.operations import plan_operations
from levada.engine.shrinkable import Surplus, spare_workers
from levada.engine.state import State


def make_room(state: State) -> None:
    """Reserve capacity for every waiting serving pod that fits, if necessary by shrinking jobs."""
    world = state.world
    surplus: Surplus | None = None
    for pod in world.foreign.waiting():
        room = state.reservations.get(pod.id)
        if pod.id in state.unclaimed or (room is not None and world.inventory.usable_nodes[room.node]):
            continue
        release_room(state, [pod.id])
        room = _free_room(state, pod)
        if room is None:
            surplus = surplus or Surplus(world, world.target, spare_workers(state))
            room = _room_by_shrinking(state, pod, surplus)
            if room is not None:
                surplus = None  # a job shrank
        if room is not None:
            reserve(state, (room,))


def _cores_left(state: State) -> tuple[Ints, Ints]:
    world = state.world
    return world.inventory.free_cpu() - world.target.cpu, world.inventory.free_memory() - world.target.memory


def _open_nodes(state: State, pod: Foreign) -> Bools:
    inventory = state.world.inventory
    return inventory.usable_nodes & inventory.eligible[inventory.classes.find(pod.node_class)]


def _of_type(state: State, pod: Foreign) -> Bools:
    inventory = state.world.inventory
    devices = inventory.usable & _open_nodes(state, pod)[inventory.node_of]
    if pod.gpu_type is None:
        return devices
    return devices & (inventory.type_of == inventory.types.find(pod.gpu_type))


def _free_room(state: State, pod: Foreign) -> Reservation | None:
    """Free capacity for a pod, on the node with the least left over."""
    world, inventory = state.world, state.world.inventory
    cpu_left, memory_left = _cores_left(state)
    fits = _open_nodes(state, pod) & (cpu_left >= pod.cpu) & (memory_left >= pod.memory)
    if pod.milli == 0:
        node = _tightest(fits, cpu_left)
        return _reservation(pod, node, ()) if node >= 0 else None
    free = _of_type(state, pod) & (inventory.foreign + inventory.reserved == 0) & (world.target.owner == FREE)
    if pod.milli >= WHOLE:
        count = np.bincount(inventory.node_of[free], minlength=len(inventory.nodes))
        need = _whole_devices(pod)
        node = _tightest(fits & (count >= need), count)
        if node < 0:
            return None
        devices = (free & (inventory.node_of == node)).nonzero()[0][:need]
        return _reservation(pod, node, tuple((int(device), WHOLE, 0) for device in devices))
    open_to_parts = (world.target.owner == FREE) | (world.target.owner == SHARED)
    milli = WHOLE - inventory.foreign - inventory.reserved - world.target.shared_milli()
    memory = inventory.gpu_memory - inventory.foreign_gpu_memory - inventory.reserved_gpu_memory
    memory = memory - world.target.shared_gpu_memory()
    able = _of_type(state, pod) & open_to_parts & (milli >= pod.milli) & (memory >= pod.gpu_memory)
    able &= fits[inventory.node_of] if len(inventory.node_of) else False
    device = _tightest(able, milli)
    if device < 0:
        return None
    return _reservation(pod, int(inventory.node_of[device]), ((device, pod.milli, pod.gpu_memory),))


def _room_by_shrinking(state: State, pod: Foreign, surplus: Surplus) -> Reservation | None:
    """Capacity on the node where the fewest workers must be removed from jobs above their minimum."""
    world, inventory = state.world, state.world.inventory
    in_part = 0 < pod.milli < WHOLE
    open_devices = _of_type(state, pod) & (inventory.foreign + inventory.reserved == 0)
    if in_part:
        open_devices &= inventory.gpu_memory >= pod.gpu_memory
    free = open_devices & (world.target.owner == FREE)
    cpu_left, memory_left = _cores_left(state)
    node, victims = surplus.cheapest(
        open_devices,
        short_devices=_whole_devices(pod) - np.bincount(inventory.node_of[free], minlength=len(inventory.nodes)),
        short_cpu=np.where(_open_nodes(state, pod), pod.cpu - cpu_left, UNLIMITED),
        short_memory=pod.memory - memory_left,
    )
    if node < 0:
        return None
    gained = victims[DEVICE][(victims[DEVICE] >= 0) & (victims[MILLI] == WHOLE)]
    devices = np.append((free & (inventory.node_of == node)).nonzero()[0], gained[open_devices[gained]])
    _cut(state, victims)
    milli, memory = (pod.milli, pod.gpu_memory) if in_part else (WHOLE, 0)
    return _reservation(pod, node, tuple((int(device), milli, memory) for device in devices[: _whole_devices(pod)]))


def _whole_devices(pod: Foreign) -> int:
    """The number of devices of which a pod uses all or a part."""
    return -(-pod.milli // WHOLE)


def _cut(state: State, victims: Ints) -> None:
    """Remove the workers at these places from the targets of their jobs."""
    table = state.world.table
    for slot in distinct(victims[SLOT]):
        gone = distinct(victims[INDEX][victims[SLOT] == slot])
        drop_workers(state, state.world.target, int(slot), gone)
        table.count[slot] -= len(gone)
        one = np.array([slot])
        state.touch(one)
        plan_operations(state, one)


def _reservation(pod: Foreign, node: int, devices: tuple[tuple[int, int, int], ...]) -> Reservation:
    return Reservation(id=pod.id, node=node, cpu=pod.cpu, memory=pod.memory, devices=devices)


def _tightest(able: Bools, spare: Ints) -> int:
    """The candidate with the least *spare*, or -1."""
    at = able.nonzero()[0]
    return int(at[spare[at].argmin()]) if len(at) else -1
