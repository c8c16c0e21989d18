"""What others use and want: serving pods, other people's pods and processes, and room that is kept for them."""

from __future__ import annotations

import math

import numpy as np

from levada.core.cluster import Foreign
from levada.core.decision import Reservation
from levada.core.events import ForeignAppeared, ForeignGone, InvalidEvent, ReservationExpired
from levada.core.inventory import UNLIMITED
from levada.core.plane import FREE, SHARED
from levada.core.types import WHOLE, Ints
from levada.engine.state import State
from levada.engine.withdraw import withdraw_targets


def appeared(state: State, event: ForeignAppeared) -> None:
    """Others use something, or a serving pod wants room; a known id is replaced."""
    for foreign in event.foreign:
        amounts = (foreign.milli, foreign.gpu_memory, foreign.cpu, foreign.memory)
        if not all(0 <= amount < UNLIMITED for amount in amounts):
            raise InvalidEvent(f"{foreign.id} uses an amount that cannot be")
    for foreign in event.foreign:
        _forget(state, foreign.id)
        state.world.foreign[foreign.id] = foreign
        if foreign.node is not None:
            state.reservations.pop(foreign.id, None)
    recount(state)
    withdraw_targets(state)
    state.dirty = True


def gone(state: State, event: ForeignGone) -> None:
    """They do not any more; room kept for them is free."""
    for name in event.ids:
        _forget(state, name)
        state.reservations.pop(name, None)
    recount(state)
    state.dirty = True


def expired(state: State, event: ReservationExpired) -> None:
    """Room is no longer kept."""
    for name in event.ids:
        state.reservations.pop(name, None)
    recount(state)
    state.dirty = True


def expire_overdue(state: State) -> None:
    """Drops reservations whose time is up."""
    over = tuple(name for name, kept in state.reservations.items() if kept.expires <= state.now)
    if over:
        expired(state, ReservationExpired(at=state.now, ids=over))


def next_expiry(state: State) -> float:
    """When the first reservation ends."""
    return min(kept.expires for kept in state.reservations.values()) if state.reservations else math.inf


def reserve(state: State, reservations: tuple[Reservation, ...]) -> None:
    """Keeps this room; reservations of the same id are replaced."""
    for kept in reservations:
        state.reservations[kept.id] = kept
    if reservations:
        recount(state)


def _forget(state: State, name: str) -> None:
    state.world.foreign.pop(name, None)


def recount(state: State) -> None:
    """Counts per node and device anew what others use and what is kept for them."""
    inventory = state.world.inventory
    state.may_issue = True
    for column in ("foreign_cpu", "foreign_memory", "reserved_cpu", "reserved_memory"):
        getattr(inventory, column)[:] = 0
    for column in ("foreign", "foreign_gpu_memory", "reserved", "reserved_gpu_memory"):
        getattr(inventory, column)[:] = 0
    for foreign in state.world.foreign.values():
        node = inventory.nodes.find(foreign.node) if foreign.node is not None else -1
        if node < 0:
            continue
        inventory.foreign_cpu[node] += foreign.cpu
        inventory.foreign_memory[node] += foreign.memory
        for device, milli, memory in _devices_of(state, foreign, node):
            inventory.foreign[device] += milli
            inventory.foreign_gpu_memory[device] += memory
    for kept in state.reservations.values():
        inventory.reserved_cpu[kept.node] += kept.cpu
        inventory.reserved_memory[kept.node] += kept.memory
        for device, milli, memory in kept.devices:
            inventory.reserved[device] += milli
            inventory.reserved_gpu_memory[device] += memory
    inventory.changed()


def _devices_of(state: State, foreign: Foreign, node: int) -> list[tuple[int, int, int]]:
    """The devices that somebody uses: those the backend names, otherwise free ones, the last first.

    Where a backend cannot tell, any device will do: the count per node is what matters.
    """
    inventory = state.world.inventory
    here = inventory.devices_of(node)
    if foreign.devices:
        named = [int(device) for device in here if inventory.device_id(int(device)) in foreign.devices]
        each = foreign.milli // max(len(named), 1) if foreign.milli else WHOLE
        return [(device, min(each, WHOLE), foreign.gpu_memory) for device in named]
    if foreign.milli == 0:
        return []
    here = here[~inventory.absent[here]]
    if foreign.gpu_type is not None:
        here = here[inventory.type_of[here] == inventory.types.find(foreign.gpu_type)]
    if foreign.milli < WHOLE:
        room = WHOLE - inventory.foreign[here]
        order = _least_in_the_way(state, here[room >= foreign.milli])
        return [(int(order[0]), foreign.milli, foreign.gpu_memory)] if len(order) else []
    order = _least_in_the_way(state, here[inventory.foreign[here] == 0])
    return [(int(device), WHOLE, 0) for device in order[: foreign.milli // WHOLE]]


def _least_in_the_way(state: State, devices: Ints) -> Ints:
    """Devices that nobody of us holds first, then those only meant for somebody; the last of each first."""
    held, target = state.world.held.owner[devices], state.world.target.owner[devices]
    weight = np.select([held != FREE, target != FREE], [2, 1], 0)
    partly = np.where((held == SHARED) | (target == SHARED), 1, 0)
    return devices[np.lexsort((-devices, partly, weight))]
