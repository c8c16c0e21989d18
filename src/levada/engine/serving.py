"""Serving first, under any policy: a serving pod that waits gets room, and training gives way down to its minimum.

Policies that decide by node (DRAGON's) see to serving pods themselves, and this module stays out of it.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.cluster import Foreign
from levada.core.decision import Reservation
from levada.core.inventory import UNLIMITED
from levada.core.plane import DEVICE, FREE, INDEX, MILLI, SHARED, SLOT
from levada.core.types import WHOLE, Bools, Ints, distinct
from levada.engine.foreign import reserve
from levada.engine.holdings import drop_workers
from levada.engine.operations import plan_operations
from levada.engine.state import State
from levada.engine.surplus import Surplus


def make_room(state: State) -> None:
    """Keeps room for every serving pod that waits and fits somewhere; workers above their job's minimum make way."""
    waiting = [pod for pod in state.world.foreign.values() if pod.serving and pod.node is None]
    waiting.sort(key=lambda pod: (-pod.priority, pod.created, pod.id))
    expires = state.now + state.options.reservation_s
    surplus: Surplus | None = None
    for pod in waiting:
        kept = state.reservations.get(pod.id)
        if kept is not None and state.world.inventory.usable_nodes[kept.node]:
            reserve(state, (_until(kept, expires),))
            continue
        state.reservations.pop(pod.id, None)
        found = _free_room(state, pod)
        if found is None:
            surplus = surplus or Surplus(state)
            found = _room_by_shrinking(state, pod, surplus)
            if found is not None:
                surplus = None  # somebody has less to spare now
        if found is not None:
            reserve(state, (_until(found, expires),))


def _until(kept: Reservation, expires: float) -> Reservation:
    return msgspec.structs.replace(kept, expires=expires)


def _cores_left(state: State) -> tuple[Ints, Ints]:
    world = state.world
    return world.inventory.free_cpu() - world.target.cpu, world.inventory.free_memory() - world.target.memory


def _of_type(state: State, pod: Foreign) -> Bools:
    inventory = state.world.inventory
    if pod.gpu_type is None:
        return inventory.usable
    return inventory.usable & (inventory.type_of == inventory.types.find(pod.gpu_type))


def _free_room(state: State, pod: Foreign) -> Reservation | None:
    """Room that nobody has to give up, on the node with least to spare."""
    world, inventory = state.world, state.world.inventory
    cpu_left, memory_left = _cores_left(state)
    fits = inventory.usable_nodes & (cpu_left >= pod.cpu) & (memory_left >= pod.memory)
    if pod.milli == 0:
        node = _first(fits, cpu_left)
        return _kept(pod, node, ()) if node >= 0 else None
    free = _of_type(state, pod) & (inventory.foreign + inventory.reserved == 0) & (world.target.owner == FREE)
    if pod.milli >= WHOLE:
        count = np.bincount(inventory.node_of[free], minlength=len(inventory.nodes))
        need = _whole_devices(pod)
        node = _first(fits & (count >= need), count)
        if node < 0:
            return None
        devices = (free & (inventory.node_of == node)).nonzero()[0][:need]
        return _kept(pod, node, tuple((int(device), WHOLE, 0) for device in devices))
    open_to_parts = (world.target.owner == FREE) | (world.target.owner == SHARED)
    milli = WHOLE - inventory.foreign - inventory.reserved - world.target.shared_milli()
    memory = inventory.gpu_memory - inventory.foreign_gpu_memory - inventory.reserved_gpu_memory
    memory = memory - world.target.shared_gpu_memory()
    able = _of_type(state, pod) & open_to_parts & (milli >= pod.milli) & (memory >= pod.gpu_memory)
    able &= fits[inventory.node_of] if len(inventory.node_of) else False
    device = _first(able, milli)
    if device < 0:
        return None
    return _kept(pod, int(inventory.node_of[device]), ((device, pod.milli, pod.gpu_memory),))


def _room_by_shrinking(state: State, pod: Foreign, surplus: Surplus) -> Reservation | None:
    """Room on the node where fewest workers have to go: whole GPUs and cores of jobs above their minimum."""
    world, inventory = state.world, state.world.inventory
    in_part = 0 < pod.milli < WHOLE
    open_devices = _of_type(state, pod) & (inventory.foreign + inventory.reserved == 0)
    if in_part:
        open_devices &= inventory.gpu_memory >= pod.gpu_memory
    free = open_devices & (world.target.owner == FREE)
    cpu_left, memory_left = _cores_left(state)
    node, victims = surplus.cheapest(
        open_devices,
        free=np.bincount(inventory.node_of[free], minlength=len(inventory.nodes)),
        devices=_whole_devices(pod),
        short_cpu=np.where(inventory.usable_nodes, pod.cpu - cpu_left, UNLIMITED),
        short_memory=pod.memory - memory_left,
    )
    if node < 0:
        return None
    gained = victims[DEVICE][(victims[DEVICE] >= 0) & (victims[MILLI] == WHOLE)]
    devices = np.append((free & (inventory.node_of == node)).nonzero()[0], gained[open_devices[gained]])
    _cut(state, victims)
    milli, memory = (pod.milli, pod.gpu_memory) if in_part else (WHOLE, 0)
    return _kept(pod, node, tuple((int(device), milli, memory) for device in devices[: _whole_devices(pod)]))


def _whole_devices(pod: Foreign) -> int:
    """Devices that a pod takes, or cuts a part from."""
    return -(-pod.milli // WHOLE)


def _cut(state: State, victims: Ints) -> None:
    """The workers at these places go."""
    table = state.world.table
    for slot in distinct(victims[SLOT]):
        gone = distinct(victims[INDEX][victims[SLOT] == slot])
        drop_workers(state, state.world.target, int(slot), gone)
        table.count[slot] -= len(gone)
        one = np.array([slot])
        state.touch(one)
        plan_operations(state, one)


def _kept(pod: Foreign, node: int, devices: tuple[tuple[int, int, int], ...]) -> Reservation:
    return Reservation(id=pod.id, node=node, cpu=pod.cpu, memory=pod.memory, devices=devices)


def _first(able: Bools, spare: Ints) -> int:
    """The able one with least to spare, or -1."""
    at = able.nonzero()[0]
    return int(at[spare[at].argmin()]) if len(at) else -1
