"""Taking targets back to what is held, before anything was asked of a backend."""

from __future__ import annotations

import numpy as np

from levada.core.plan import OpKind
from levada.core.plane import DEVICE, MILLI, NODE, SLOT
from levada.core.reasons import Code
from levada.core.types import WHOLE, Bools, Ints, distinct
from levada.engine.holdings import added_by, held_by
from levada.engine.operations import plan_operations
from levada.engine.state import State


def revert_targets(state: State, slots: Ints) -> None:
    """These jobs shall have what they hold, and nothing else.

    Others may have been promised what these jobs hold and were to give up. Nothing of that has gone out, so those
    promises are taken back too; the next decision sees to all of them.
    """
    world, table = state.world, state.world.table
    slots = _with_those_in_the_way(state, slots)
    world.replace_workers(world.target, slots, held_by(state, slots))
    table.count[slots] = table.held[slots]
    table.type[slots] = table.held_type[slots]
    state.say(slots[table.held[slots] == 0], Code.NEW)
    state.touch(slots)
    plan_operations(state, slots)


def _with_those_in_the_way(state: State, slots: Ints) -> Ints:
    promised = added_by(state, _promised(state))
    chosen = state.flags(slots)
    fresh = slots
    near = np.zeros(len(state.world.inventory.nodes), bool)
    while promised.shape[1] and len(fresh):
        near[held_by(state, fresh)[NODE]] = True
        asking = promised[SLOT][near[promised[NODE]]]
        fresh = distinct(asking[~chosen[asking]])
        chosen[fresh] = True
    return chosen.nonzero()[0]


def _promised(state: State) -> Ints:
    """Jobs that are to get something and have not been told."""
    table = state.world.table
    slots = state.living()
    return slots[(table.op[slots] != OpKind.NONE) & (table.issued[slots] == 0) & (table.count[slots] > 0)]


def withdraw_targets(state: State) -> None:
    """Jobs that were about to get what may no longer be given keep what they hold."""
    inventory = state.world.inventory
    _withdraw(state, inventory.free_milli(), ~inventory.usable_nodes)


def withdraw_from(state: State, devices: Bools) -> None:
    """Jobs that were about to get one of these devices, which are going away, keep what they hold."""
    nowhere = np.zeros(len(state.world.inventory.nodes), bool)
    _withdraw(state, np.where(devices, 0, WHOLE), nowhere)


def _withdraw(state: State, free: Ints, closed: Bools) -> None:
    rows = added_by(state, _promised(state))
    astray = closed[rows[NODE]]
    on_device = (rows[DEVICE] >= 0).nonzero()[0]
    astray[on_device] |= free[rows[DEVICE, on_device]] < rows[MILLI, on_device]
    if astray.any():
        revert_targets(state, distinct(rows[SLOT][astray]))
