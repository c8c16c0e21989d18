"""Serving first, under any policy: a serving pod that waits gets room, and training gives way down to its minimum.

Policies that decide by node (DRAGON's) see to serving pods themselves, and this module stays out of it.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.cluster import Foreign
from levada.core.decision import Reservation
from levada.core.plane import DEVICE, FREE, INDEX, MILLI, NODE, SHARED
from levada.core.types import WHOLE, Bools, Ints
from levada.engine.foreign import reserve
from levada.engine.holdings import drop_workers
from levada.engine.operations import plan_operations
from levada.engine.state import State


def make_room(state: State) -> None:
    """Keeps room for every serving pod that waits and fits somewhere; workers above their job's minimum make way."""
    waiting = [pod for pod in state.world.foreign.values() if pod.serving and pod.node is None]
    waiting.sort(key=lambda pod: (-pod.priority, pod.created, pod.id))
    expires = state.now + state.options.reservation_s
    for pod in waiting:
        kept = state.reservations.get(pod.id)
        if kept is not None and state.world.inventory.usable_nodes[kept.node]:
            reserve(state, (_until(kept, expires),))
            continue
        state.reservations.pop(pod.id, None)
        found = _free_room(state, pod) or _room_by_shrinking(state, pod)
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
    if pod.milli % WHOLE == 0:
        count = np.bincount(inventory.node_of[free], minlength=len(inventory.nodes))
        need = pod.milli // WHOLE
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


def _room_by_shrinking(state: State, pod: Foreign) -> Reservation | None:
    """Room on the node where fewest workers have to go: whole GPUs and cores of jobs above their minimum."""
    world, inventory = state.world, state.world.inventory
    if 0 < pod.milli < WHOLE:
        pod_devices = 1
    else:
        pod_devices = pod.milli // WHOLE
    best: tuple[int, int, list[tuple[int, int]], list[int]] | None = None
    cpu_left, memory_left = _cores_left(state)
    free = _of_type(state, pod) & (inventory.foreign + inventory.reserved == 0) & (world.target.owner == FREE)
    for node in inventory.usable_nodes.nonzero()[0]:
        here = (free & (inventory.node_of == node)).nonzero()[0].tolist()
        devices, cpu, memory = list(here), int(cpu_left[node]), int(memory_left[node])
        victims: list[tuple[int, int]] = []
        for slot, index, own in _removable(state, int(node)):
            if len(devices) >= pod_devices and cpu >= pod.cpu and memory >= pod.memory:
                break
            victims.append((slot, index))
            devices += [device for device in own if _of_type(state, pod)[device]]
            cpu += int(world.table.cpu[slot])
            memory += int(world.table.memory[slot])
        enough = len(devices) >= pod_devices and cpu >= pod.cpu and memory >= pod.memory
        if enough and (best is None or len(victims) < best[0]):
            best = (len(victims), int(node), victims, devices[:pod_devices])
    if best is None:
        return None
    _, where, victims, devices = best
    _cut(state, victims)
    milli, memory = (pod.milli, pod.gpu_memory) if 0 < pod.milli < WHOLE else (WHOLE, 0)
    return _kept(pod, where, tuple((device, milli, memory) for device in devices))


def _removable(state: State, node: int) -> list[tuple[int, int, list[int]]]:
    """(slot, worker index, devices) of workers on *node* that may go, the youngest job's highest index first."""
    world, table = state.world, state.world.table
    protected = state.protected()
    found: list[tuple[int, int, list[int]]] = []
    on_node = world.inventory.node_of == node
    owners = world.target.owner[on_node]
    slots = np.unique(np.concatenate([owners[owners >= 0], world.target.rows[0][world.target.rows[NODE] == node]]))
    for slot in sorted(slots.tolist(), key=lambda s: -table.number[s]):
        # Removing one worker must leave a size that the job allows.
        surplus = int(table.count[slot] - table.min[slot]) if table.step[slot] == 1 else 0
        if surplus <= 0 or protected[slot] or table.issued[slot]:
            continue
        places = world.places(world.target, slot)
        mine = places[:, (places[NODE] == node) & (places[INDEX] > 0)]
        for index in sorted(np.unique(mine[INDEX]).tolist(), reverse=True)[:surplus]:
            own = mine[:, mine[INDEX] == index]
            found.append((slot, index, own[DEVICE][(own[DEVICE] >= 0) & (own[MILLI] == WHOLE)].tolist()))
    return found


def _cut(state: State, victims: list[tuple[int, int]]) -> None:
    table = state.world.table
    for slot in sorted({slot for slot, _ in victims}):
        gone = np.array([index for owner, index in victims if owner == slot])
        drop_workers(state, state.world.target, slot, gone)
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
