"""Drain nodes: stop preemptible jobs at once, protected jobs when they may be."""

from __future__ import annotations

import numpy as np

from levada.core.events import NodesCordoned, NodesDrained
from levada.core.reasons import Code
from levada.core.types import Ints
from levada.engine.node_events import cordoned
from levada.engine.operations import plan_operations
from levada.engine.state import Intent, State


def drained(state: State, event: NodesDrained) -> None:
    """Cordon nodes and mark them as draining; with *force*, stop protected jobs on them as well."""
    inventory = state.world.inventory
    cordoned(state, NodesCordoned(at=event.at, names=event.names))
    nodes = {number for number in map(inventory.nodes.find, event.names) if number >= 0}
    inventory.draining |= nodes
    if event.force:
        _stop(state, state.world.meant_for(nodes))


def leave(state: State) -> None:
    """Stop all jobs on draining nodes that are neither protected nor in an operation.

    Guards do not apply: they limit changes by policies.
    """
    table = state.world.table
    slots = staying(state, state.world.inventory.draining)
    _stop(state, slots[(table.issued[slots] == 0) & ~state.protected()[slots]])


def staying(state: State, nodes: frozenset[int]) -> Ints:
    """Slots of jobs on these nodes that are not being stopped for another reason."""
    slots = state.world.meant_for(nodes)
    return slots[state.world.table.intent[slots] == Intent.WAIT]


def _stop(state: State, slots: Ints) -> None:
    table = state.world.table
    slots = slots[table.intent[slots] == Intent.WAIT]
    if not len(slots):
        return
    state.clear_targets(slots, Intent.WAIT)
    state.set_reason(slots, Code.DRAINED)
    # A backoff must not delay the stop.
    table.retry_at[slots] = np.minimum(table.retry_at[slots], state.now)
    plan_operations(state, slots)
