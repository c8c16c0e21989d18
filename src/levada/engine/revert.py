"""Revert targets to held devices before an operation is issued."""

from __future__ import annotations

import numpy as np

from levada.core.assignment import DEVICE, MILLI, NODE, SLOT
from levada.core.plan import OpKind
from levada.core.reasons import Code
from levada.core.types import WHOLE, Bools, Ints, distinct
from levada.engine.held_devices import added_by, held_by
from levada.engine.operations import plan_operations
from levada.engine.state import State


def revert_targets(state: State, slots: Ints) -> None:
    """Make the held devices of these jobs their target.

    Their devices may be in targets of other jobs, for which no operation is issued yet. Those targets are reverted as
    well, until the next decision.
    """
    world, table = state.world, state.world.table
    slots = _with_dependents(state, slots)
    world.replace_workers(world.target, slots, held_by(state, slots))
    table.count[slots] = table.held[slots]
    table.type[slots] = table.held_type[slots]
    state.set_reason(slots[table.held[slots] == 0], Code.NEW)
    state.touch(slots)
    plan_operations(state, slots)


def _with_dependents(state: State, slots: Ints) -> Ints:
    """*slots* and all jobs whose planned devices are on nodes of reverted jobs."""
    planned = added_by(state, _planned(state))
    chosen = state.flags(slots)
    new = slots
    affected = np.zeros(len(state.world.inventory.nodes), bool)
    while planned.shape[1] and len(new):
        affected[held_by(state, new)[NODE]] = True
        dependents = planned[SLOT][affected[planned[NODE]]]
        new = distinct(dependents[~chosen[dependents]])
        chosen[new] = True
    return chosen.nonzero()[0]


def _planned(state: State) -> Ints:
    """Jobs with a target and an operation that is not issued yet."""
    table = state.world.table
    slots = state.living()
    return slots[(table.op[slots] != OpKind.NONE) & (table.issued[slots] == 0) & (table.count[slots] > 0)]


def withdraw_targets(state: State) -> None:
    """Revert planned targets on devices or nodes that are no longer available to their jobs."""
    inventory, slots = state.world.inventory, _planned(state)
    if len(slots):
        _withdraw(state, slots, inventory.free_milli(), ~inventory.usable_nodes)


def withdraw_from(state: State, devices: Bools) -> None:
    """Revert planned targets on these devices, which are going away."""
    no_nodes = np.zeros(len(state.world.inventory.nodes), bool)
    _withdraw(state, _planned(state), np.where(devices, 0, WHOLE), no_nodes)


def _withdraw(state: State, slots: Ints, free: Ints, closed: Bools) -> None:
    rows = added_by(state, slots)
    inventory, table = state.world.inventory, state.world.table
    unavailable = closed[rows[NODE]] | ~inventory.eligible[table.node_class[rows[SLOT]], rows[NODE]]
    on_device = (rows[DEVICE] >= 0).nonzero()[0]
    unavailable[on_device] |= free[rows[DEVICE, on_device]] < rows[MILLI, on_device]
    if unavailable.any():
        revert_targets(state, distinct(rows[SLOT][unavailable]))
