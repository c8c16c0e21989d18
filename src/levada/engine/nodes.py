"""What machines do: come, change, are cordoned, get lost."""

from __future__ import annotations

import numpy as np

from levada.core.events import NodesAdded, NodesChanged, NodesCordoned, NodesLost
from levada.core.plane import DEVICE, INDEX, NODE
from levada.core.reasons import Code
from levada.core.types import Bools, Ints
from levada.engine.admit import judge_feasibility
from levada.engine.foreign import recount
from levada.engine.losses import lose_workers
from levada.engine.state import State
from levada.engine.withdraw import withdraw_from, withdraw_targets


def put(state: State, event: NodesAdded | NodesChanged) -> None:
    """Machines joined or changed. Workers on a device that is gone or broken are lost; the others stay."""
    inventory = state.world.inventory
    healthy = {(node.name, device.id, device.type) for node in event.nodes for device in node.devices if device.healthy}
    replaced = {node.name for node in event.nodes}
    broken = np.zeros(len(inventory.node_of), bool)
    for device, (node, name) in enumerate(inventory.device_keys()):
        key = (inventory.nodes[node], name, inventory.types[int(inventory.type_of[device])])
        broken[device] = key[0] in replaced and key not in healthy
    _lose(state, broken, np.zeros(len(inventory.nodes), bool))
    withdraw_from(state, broken)
    state.world.put_nodes(event.nodes)
    recount(state)  # devices were numbered anew
    _after(state)


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
    judge_feasibility(state, state.living())
    state.dirty = True
