"""What machines do: come, change, are cordoned, get lost, and are removed."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.cluster import Node
from levada.core.events import InvalidEvent, NodesAdded, NodesChanged, NodesCordoned, NodesLost, NodesRemoved
from levada.core.inventory import UNLIMITED
from levada.core.plane import DEVICE, INDEX, NODE
from levada.core.reasons import Code
from levada.core.types import Bools, Ints
from levada.engine.admit import judge_feasibility
from levada.engine.foreign import recount
from levada.engine.losses import lose_workers
from levada.engine.state import State
from levada.engine.withdraw import withdraw_from, withdraw_targets


def put(state: State, event: NodesAdded | NodesChanged) -> None:
    """Machines joined or changed. Workers on a device that is gone or broken are lost; the others stay.

    After that only jobs with an operation on its way hold devices that are gone, and they do until a stop is seen.
    """
    inventory = state.world.inventory
    for machine in event.nodes:
        amounts = [machine.cpu or 0, machine.memory or 0, *(device.memory for device in machine.devices)]
        if not all(0 <= amount < UNLIMITED for amount in amounts):
            raise InvalidEvent(f"{machine.name} has an amount that cannot be")
        if len({device.id for device in machine.devices}) < len(machine.devices):
            raise InvalidEvent(f"{machine.name} has two devices of one id")
    healthy = {(node.name, device.id, device.type) for node in event.nodes for device in node.devices if device.healthy}
    broken = np.zeros(len(inventory.node_of), bool)
    for node in event.nodes:
        for device in inventory.devices_of(inventory.nodes.find(node.name)):
            key = (node.name, inventory.device_id(int(device)), inventory.types[int(inventory.type_of[device])])
            broken[device] = key not in healthy
    _lose(state, broken, np.zeros(len(inventory.nodes), bool))
    withdraw_from(state, broken)
    _renumber(state, state.world.put_nodes(event.nodes))
    recount(state)  # devices were numbered anew
    _after(state)


def _renumber(state: State, moved: Ints) -> None:
    """What the engine remembers by device number follows the new numbers; older answers by node do not count."""
    state.renumbered = state.revision
    absent = state.world.inventory.absent
    for name, kept in list(state.reservations.items()):
        devices = tuple((int(moved[device]), milli, memory) for device, milli, memory in kept.devices)
        if any(device < 0 or absent[device] for device, _, _ in devices):
            del state.reservations[name]
        else:
            state.reservations[name] = msgspec.structs.replace(kept, devices=devices)
    for number, rows in state.claimed_rows.items():
        rows = rows.copy()
        on_device = rows[DEVICE] >= 0
        rows[DEVICE, on_device] = moved[rows[DEVICE, on_device]]
        state.claimed_rows[number] = rows[:, ~on_device | (rows[DEVICE] >= 0)]


def cordoned(state: State, event: NodesCordoned) -> None:
    """Running jobs stay; what was about to go there goes elsewhere."""
    inventory = state.world.inventory
    for name in event.names:
        if (node := inventory.nodes.find(name)) >= 0:
            inventory.set_cordoned(node, event.cordoned)
    _after(state)


def lost(state: State, event: NodesLost) -> None:
    """Machines are gone with all that ran on them."""
    inventory = state.world.inventory
    gone = np.zeros(len(inventory.nodes), bool)
    for name in event.names:
        if (node := inventory.nodes.find(name)) >= 0:
            gone[node] = True
    for number in gone.nonzero()[0]:
        inventory.set_lost(int(number))
    _lose(state, gone[inventory.node_of] if len(inventory.node_of) else np.zeros(0, bool), gone)
    _after(state)


def removed(state: State, event: NodesRemoved) -> None:
    """Machines that are lost, and that nobody holds anything of, are as if they had never been.

    Numbers of nodes are for ever, so a husk stays that has nothing.
    """
    inventory = state.world.inventory
    known = [number for number in map(inventory.nodes.find, event.names) if number >= 0]
    gone = [number for number in known if inventory.lost[number] and not state.world.holders_on(number)]
    if gone:
        husks = tuple(Node(name=inventory.nodes[number], cpu=0, memory=0) for number in gone)
        put(state, NodesChanged(at=event.at, nodes=husks))
        for number in gone:
            inventory.set_lost(number)
            inventory.set_cordoned(number, False)
        _after(state)


def _lose(state: State, devices: Bools, nodes: Bools) -> None:
    """Workers on these devices, or without a device on these nodes, are lost."""
    world = state.world
    held = world.held
    on_devices = held.owner[devices & (held.owner >= 0)]
    rows = held.rows
    hit = nodes[rows[NODE]] | ((rows[DEVICE] >= 0) & _at(devices, rows[DEVICE]))
    for slot in np.unique(np.concatenate([on_devices, rows[0][hit]])):
        places = world.places(held, int(slot))
        astray = nodes[places[NODE]] | ((places[DEVICE] >= 0) & _at(devices, places[DEVICE]))
        index, node = np.unique(places[[INDEX, NODE]][:, astray], axis=1)
        lose_workers(state, int(slot), index, node, Code.NODE_LOST)


def _at(flags: Bools, where: Ints) -> Bools:
    return flags[np.maximum(where, 0)] if len(flags) else np.zeros(len(where), bool)


def _after(state: State) -> None:
    withdraw_targets(state)
    state.most_workers.clear()
    state.fits.clear()
    judge_feasibility(state, state.living())
    state.give_another_chance()
