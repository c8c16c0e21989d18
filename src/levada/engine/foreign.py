"""Foreign use, serving pods and reservations.

Foreign use: pods and processes that Levada does not manage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import numpy as np

from levada.core.assignment import FREE, SHARED
from levada.core.cluster import Foreign
from levada.core.decision import Reservation
from levada.core.events import ForeignAppeared, ForeignGone, InvalidEvent, ReservationExpired
from levada.core.inventory import UNLIMITED
from levada.core.types import WHOLE, Ints
from levada.engine.revert import withdraw_targets
from levada.engine.state import State


def appeared(state: State, event: ForeignAppeared) -> None:
    """Add foreign use, or serving pods that wait for capacity; a known id is replaced."""
    for foreign in event.foreign:
        amounts = (foreign.milli, foreign.gpu_memory, foreign.cpu, foreign.memory)
        if not all(0 <= amount < UNLIMITED for amount in amounts):
            raise InvalidEvent(f"foreign pod {foreign.id}: amounts must be 0 or more and below {UNLIMITED}")
    world, touched = state.world, set()
    for foreign in event.foreign:
        before = world.foreign.get(foreign.id)
        world.foreign[foreign.id] = foreign
        world.inventory.add_class(foreign.node_class)
        touched |= {foreign.node, before.node if before is not None else None}
        if foreign != before:
            state.unclaimed = tuple(name for name in state.unclaimed if name != foreign.id)
    release_room(state, [foreign.id for foreign in event.foreign if foreign.node is not None])
    recount(state, {world.inventory.nodes.find(name) for name in touched if name is not None})
    withdraw_targets(state)
    state.dirty = True


def gone(state: State, event: ForeignGone) -> None:
    """Remove foreign use and its reservations."""
    removed = [foreign for foreign in map(state.world.foreign.remove, event.ids) if foreign is not None]
    state.unclaimed = tuple(name for name in state.unclaimed if name not in event.ids)
    release_room(state, event.ids)
    recount(state, {state.world.inventory.nodes.find(foreign.node) for foreign in removed if foreign.node is not None})
    state.dirty = True


def expired(state: State, event: ReservationExpired) -> None:
    """Remove reservations. Their pods get no other room until they change."""
    state.unclaimed = (*state.unclaimed, *(name for name in event.ids if name in state.reservations))
    release_room(state, event.ids)
    state.dirty = True


def expire_overdue(state: State) -> None:
    """Remove reservations that have expired, and start the time of those whose capacity has become free."""
    for room in state.reservations.values():
        if room.expires == math.inf and _is_free(state, room):
            expires = state.now + state.options.reservation_s
            state.reservations[room.id] = msgspec.structs.replace(room, expires=expires)
    overdue = tuple(name for name, room in state.reservations.items() if room.expires <= state.now)
    if overdue:
        expired(state, ReservationExpired(at=state.now, ids=overdue))


def _is_free(state: State, room: Reservation) -> bool:
    """Whether no job holds capacity of a reservation any more."""
    inventory, held, node = state.world.inventory, state.world.held, room.node
    cpu = int(inventory.cpu[node] - inventory.foreign_cpu[node] - held.cpu[node])
    memory = int(inventory.memory[node] - inventory.foreign_memory[node] - held.memory[node])
    if (room.cpu and cpu < room.cpu) or (room.memory and memory < room.memory):
        return False
    devices = np.array([device for device, _, _ in room.devices], np.int64)
    if (held.owner[devices] == FREE).all():
        return True
    left = WHOLE - inventory.foreign - held.shared_milli()
    shared = (held.owner[devices] == FREE) | (held.owner[devices] == SHARED)
    return bool((shared & (left[devices] >= [milli for _, milli, _ in room.devices])).all())


def next_expiry(state: State) -> float:
    """When the first reservation expires; none does while the backend is unreachable."""
    if state.away_since is not None:
        return math.inf
    return min((room.expires for room in state.reservations.values()), default=math.inf)


def reserve(state: State, reservations: tuple[Reservation, ...]) -> None:
    """Add reservations; those with the same id are replaced."""
    if reservations:
        release_room(state, [room.id for room in reservations])
        state.reservations.update((room.id, room) for room in reservations)
        recount(state, {room.node for room in reservations})


def release_room(state: State, ids: Iterable[str]) -> None:
    """Remove reservations, if they exist."""
    rooms = [state.reservations.pop(name) for name in ids if name in state.reservations]
    if rooms:
        recount(state, {room.node for room in rooms})


def recount_contested(state: State) -> None:
    """Count devices that jobs have released as foreign use, instead of those that jobs still hold."""
    inventory = state.world.inventory
    if contested := set(inventory.node_of[(inventory.foreign > 0) & (state.world.held.owner != FREE)].tolist()):
        recount(state, contested)


def recount(state: State, nodes: set[int]) -> None:
    """Recompute foreign use and reservations of these nodes (-1 = none)."""
    inventory = state.world.inventory
    state.may_issue = True
    for node in sorted(nodes - {-1}):
        devices = inventory.devices_of(node)
        for column in ("foreign_cpu", "foreign_memory", "reserved_cpu", "reserved_memory"):
            getattr(inventory, column)[node] = 0
        for column in ("foreign", "foreign_gpu_memory", "reserved", "reserved_gpu_memory"):
            getattr(inventory, column)[devices] = 0
        for foreign in state.world.foreign.on(inventory.nodes[node]):
            inventory.foreign_cpu[node] += foreign.cpu
            inventory.foreign_memory[node] += foreign.memory
            for device, milli, memory in _devices_of(state, foreign, node):
                inventory.foreign[device] += milli
                inventory.foreign_gpu_memory[device] += memory
        for room in state.reservations.values():
            if room.node == node:
                inventory.reserved_cpu[node] += room.cpu
                inventory.reserved_memory[node] += room.memory
                for device, milli, memory in room.devices:
                    inventory.reserved[device] += milli
                    inventory.reserved_gpu_memory[device] += memory
    inventory.changed()


def _devices_of(state: State, foreign: Foreign, node: int) -> list[tuple[int, int, int]]:
    """The devices of a foreign pod: those that the backend names, else free ones, highest number first.

    If the backend does not know the devices, the choice is arbitrary: the count per node matters.
    """
    inventory = state.world.inventory
    devices = inventory.devices_of(node)
    if foreign.devices:
        named = [int(device) for device in devices if inventory.device_id(int(device)) in foreign.devices]
        milli = foreign.milli // max(len(named), 1) if foreign.milli else WHOLE
        return [(device, min(milli, WHOLE), foreign.gpu_memory) for device in named]
    if foreign.milli == 0:
        return []
    devices = devices[~inventory.absent[devices]]
    if foreign.gpu_type is not None:
        devices = devices[inventory.type_of[devices] == inventory.types.find(foreign.gpu_type)]
    if foreign.milli < WHOLE:
        left = WHOLE - inventory.foreign[devices]
        order = _free_first(state, devices[left >= foreign.milli])
        return [(int(order[0]), foreign.milli, foreign.gpu_memory)] if len(order) else []
    order = _free_first(state, devices[inventory.foreign[devices] == 0])
    return [(int(device), WHOLE, 0) for device in order[: foreign.milli // WHOLE]]


def _free_first(state: State, devices: Ints) -> Ints:
    """Free devices, then those that are only targets, then held ones; each by descending number."""
    held, target = state.world.held.owner[devices], state.world.target.owner[devices]
    weight = np.select([held != FREE, target != FREE], [2, 1], 0)
    partly = np.where((held == SHARED) | (target == SHARED), 1, 0)
    return devices[np.lexsort((-devices, partly, weight))]
