"""Nodes that jobs shall leave: who may be stopped leaves at once, and the others as soon as they may."""

from __future__ import annotations

import numpy as np

from levada.core.events import NodesCordoned, NodesDrained
from levada.core.reasons import Code
from levada.core.types import Ints
from levada.engine.nodes import cordoned
from levada.engine.operations import plan_operations
from levada.engine.state import Intent, State


def drained(state: State, event: NodesDrained) -> None:
    """No new work on these nodes, and none for long; with *force* whoever is there now leaves, protected or not."""
    inventory = state.world.inventory
    cordoned(state, NodesCordoned(at=event.at, names=event.names))
    nodes = {number for number in map(inventory.nodes.find, event.names) if number >= 0}
    inventory.draining |= nodes
    if event.force:
        _stop(state, state.world.meant_for(nodes))


def leave(state: State) -> None:
    """Jobs that may be stopped by now leave the nodes that are being drained.

    Guards do not count: they are for changes that policies make. Whoever is in the middle of an operation completes it.
    """
    table = state.world.table
    there = staying(state, state.world.inventory.draining)
    _stop(state, there[(table.issued[there] == 0) & ~state.protected()[there]])


def staying(state: State, nodes: frozenset[int]) -> Ints:
    """Slots of the jobs on these nodes that have not been told to leave."""
    slots = state.world.meant_for(nodes)
    return slots[state.world.table.intent[slots] == Intent.WAIT]


def _stop(state: State, slots: Ints) -> None:
    table = state.world.table
    slots = slots[table.intent[slots] == Intent.WAIT]
    if not len(slots):
        return
    state.wants_stop(slots, Intent.WAIT)
    state.say(slots, Code.DRAINED)
    # What was to happen after a pause happens now: they stop.
    table.retry_at[slots] = np.minimum(table.retry_at[slots], state.now)
    plan_operations(state, slots)
