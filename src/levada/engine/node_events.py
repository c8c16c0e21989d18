"""Handlers of events about nodes: added, changed, cordoned, lost, removed."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.assignment import DEVICE, INDEX, NODE
from levada.core.cluster import Node
from levada.core.events import InvalidEvent, NodesAdded, NodesChanged, NodesCordoned, NodesLost, NodesRemoved
from levada.core.inventory import UNLIMITED
from levada.core.reasons import Code
from levada.core.types import Bools, Ints
from levada.engine.admission import update_feasibility
from levada.engine.foreign import recount
from levada.engine.revert import withdraw_from, withdraw_targets
from levada.engine.state import State
from levada.engine.worker_loss import lose_workers


def put(state: State, event: NodesAdded | NodesChanged) -> None:
    """Add or replace nodes. Workers on a missing or unhealthy device are lost; the others stay.

    Afterwards, only jobs with an operation in progress hold missing devices, until their stop is acknowledged.
    """
    inventory = state.world.inventory
    for node in event.nodes:
        amounts = [node.cpu or 0, node.memory or 0, *(device.memory for device in node.devices)]
        if not all(0 <= amount < UNLIMITED for amount in amounts):
            raise InvalidEvent(f"node {node.name}: cpu and memory must be 0 or more and below {UNLIMITED}")
        if len({device.id for device in node.devices}) < len(node.devices):
            raise InvalidEvent(f"node {node.name}: two devices have the same id")
    healthy = {(node.name, device.id, device.type) for node in event.nodes for device in node.devices if device.healthy}
    broken = np.zeros(len(inventory.node_of), bool)
    for node in event.nodes:
        for device in inventory.devices_of(inventory.nodes.find(node.name)):
            key = (node.name, inventory.device_id(int(device)), inventory.types[int(inventory.type_of[device])])
            broken[device] = key not in healthy
    _lose(state, broken, np.zeros(len(inventory.nodes), bool))
    withdraw_from(state, broken)
    _renumber(state, state.world.put_nodes(event.nodes))
    recount(state, {inventory.nodes.find(node.name) for node in event.nodes})
    _after_change(state)


def _renumber(state: State, moved: Ints) -> None:
    """Translate device numbers in reservations and claims; *moved* has the new number of each old device.

    Pending decisions that name devices become invalid.
    """
    state.renumbered = state.revision
    absent = state.world.inventory.absent
    for name, room in list(state.reservations.items()):
        devices = tuple((int(moved[device]), milli, memory) for device, milli, memory in room.devices)
        if any(device < 0 or absent[device] for device, _, _ in devices):
            del state.reservations[name]
        else:
            state.reservations[name] = msgspec.structs.replace(room, devices=devices)
    for number, rows in state.claimed_rows.items():
        rows = rows.copy()
        on_device = rows[DEVICE] >= 0
        rows[DEVICE, on_device] = moved[rows[DEVICE, on_device]]
        state.claimed_rows[number] = rows[:, ~on_device | (rows[DEVICE] >= 0)]


def cordoned(state: State, event: NodesCordoned) -> None:
    """Cordon or uncordon nodes: running jobs stay, new placements on cordoned nodes are withdrawn."""
    inventory = state.world.inventory
    for name in event.names:
        if (node := inventory.nodes.find(name)) >= 0:
            inventory.set_cordoned(node, event.cordoned)
    _after_change(state)


def lost(state: State, event: NodesLost) -> None:
    """Mark nodes as lost, with all workers on them."""
    inventory = state.world.inventory
    gone = np.zeros(len(inventory.nodes), bool)
    for name in event.names:
        if (node := inventory.nodes.find(name)) >= 0:
            gone[node] = True
    for number in gone.nonzero()[0]:
        inventory.set_lost(int(number))
    _lose(state, gone[inventory.node_of] if len(inventory.node_of) else np.zeros(0, bool), gone)
    _after_change(state)


def removed(state: State, event: NodesRemoved) -> None:
    """Remove nodes that are lost and of which no job holds anything.

    Node numbers are permanent, so an empty entry remains.
    """
    inventory = state.world.inventory
    known = [number for number in map(inventory.nodes.find, event.names) if number >= 0]
    gone = [number for number in known if inventory.lost[number] and not state.world.holders_on(number)]
    if gone:
        empty = tuple(Node(name=inventory.nodes[number], cpu=0, memory=0) for number in gone)
        put(state, NodesChanged(at=event.at, nodes=empty))
        for number in gone:
            inventory.set_lost(number)
            inventory.set_cordoned(number, False)
        _after_change(state)


def _lose(state: State, devices: Bools, nodes: Bools) -> None:
    """Handle the loss of workers on these devices, and of workers without a device on these nodes."""
    world = state.world
    held = world.held
    on_devices = held.owner[devices & (held.owner >= 0)]
    rows = held.rows
    lost_rows = nodes[rows[NODE]] | ((rows[DEVICE] >= 0) & _at(devices, rows[DEVICE]))
    for slot in np.unique(np.concatenate([on_devices, rows[0][lost_rows]])):
        places = world.places(held, int(slot))
        lost_places = nodes[places[NODE]] | ((places[DEVICE] >= 0) & _at(devices, places[DEVICE]))
        index, node = np.unique(places[[INDEX, NODE]][:, lost_places], axis=1)
        lose_workers(state, int(slot), index, node, Code.NODE_LOST)


def _at(flags: Bools, devices: Ints) -> Bools:
    return flags[np.maximum(devices, 0)] if len(flags) else np.zeros(len(devices), bool)


def _after_change(state: State) -> None:
    withdraw_targets(state)
    state.most_workers.clear()
    state.fits.clear()
    update_feasibility(state, state.living())
    state.reset_rejections()
