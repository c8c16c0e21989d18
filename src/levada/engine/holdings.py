"""What jobs hold: it grows when an operation goes out and shrinks when its release is seen."""

from __future__ import annotations

import numpy as np

from levada.core.plane import DEVICE, INDEX, SLOT, Plane
from levada.core.types import Ints
from levada.engine.state import State
from levada.kernels import assignment
from levada.tables.places import free, put, whole_devices


def with_rows(state: State, slots: Ints) -> Ints:
    """Those of these jobs that have rows in planes: parts of GPUs, workers without one, parameter servers."""
    return slots[state.world.table.has_rows[slots] > 0]


def added_places(state: State, slot: int) -> Ints:
    """Places that a job should have and does not hold."""
    world = state.world
    wants, has = world.places(world.target, slot), world.places(world.held, slot)
    known = {tuple(row) for row in has.T.tolist()}
    return wants[:, [tuple(row) not in known for row in wants.T.tolist()]]


def added_by(state: State, slots: Ints) -> Ints:
    """Places that these jobs should have and do not hold, of all of them."""
    world, chosen = state.world, state.flags(slots)
    target, held = world.target, world.held
    devices, _ = assignment.changes(target.owner, held.owner, chosen)
    rows = np.ascontiguousarray(target.rows[:, chosen[target.rows[SLOT]]])
    return np.concatenate(
        [whole_devices(world.inventory, target, devices), rows[:, assignment.fresh_rows(held.rows, rows)]], axis=1
    )


def held_by(state: State, slots: Ints) -> Ints:
    """Places that these jobs hold, of all of them."""
    world, held = state.world, state.world.held
    whole = whole_devices(world.inventory, held, held.devices_of(slots))
    return np.concatenate([whole, held.rows[:, state.flags(slots)[held.rows[SLOT]]]], axis=1)


def take(state: State, slots: Ints, devices: Ints, *, first: bool) -> None:
    """Let these jobs hold their targets besides what they hold: these whole devices, and rows.

    *first*: none of them held anything before.
    """
    world, table = state.world, state.world.table
    special = with_rows(state, slots)
    for slot in special:
        added = added_places(state, int(slot))
        world.put_workers(world.held, int(slot), added)
        state.claimed_rows[int(table.number[slot])] = added
    if len(special):
        devices = devices[~state.flags(special)[world.target.owner[devices]]]
    added = whole_devices(world.inventory, world.target, devices)
    put(table, world.inventory, world.held, added, first=first)
    world.held.claimed[devices] = True


def release(state: State, slots: Ints, everything: bool) -> None:
    """These jobs no longer hold what they should not have; or, with *everything*, anything at all."""
    world, table = state.world, state.world.table
    held = world.held
    special = with_rows(state, slots)
    for slot in special:
        keeps = np.zeros((6, 0), np.int64)
        if not everything:
            wants = {tuple(row) for row in world.places(world.target, int(slot)).T.tolist()}
            has = world.places(held, int(slot))
            keeps = has[:, [tuple(row) in wants for row in has.T.tolist()]]
        world.replace_workers(held, np.array([slot]), keeps)
    plain = slots if not len(special) else np.setdiff1d(slots, special)
    state.freed()
    if everything:
        world.clear_workers(held, plain)
        table.held[slots], table.held_type[slots] = 0, -1
        return
    mine = held.devices_of(plain)
    free(table, world.inventory, held, mine[held.owner[mine] != world.target.owner[mine]])
    table.held[slots] = table.count[slots]


def confirm(state: State, slots: Ints) -> None:
    """What these jobs claimed they are seen to use."""
    world = state.world
    world.held.claimed[world.held.devices_of(slots)] = False
    forget_claims(state, slots)


def forget_claims(state: State, slots: Ints) -> None:
    """What these jobs claimed, besides whole devices, is nobody's any more, or is seen to be theirs."""
    for slot in with_rows(state, slots):
        state.claimed_rows.pop(int(state.world.table.number[slot]), None)


def unclaim(state: State, slot: int) -> None:
    """The job does not hold what it claimed: the operation was not done."""
    world, table = state.world, state.world.table
    rows = world.places(world.held, slot)
    claims = {tuple(row) for row in state.claimed_rows.pop(int(table.number[slot]), np.zeros((6, 0))).T.tolist()}
    keep = [
        tuple(row) not in claims and not (row[DEVICE] >= 0 and world.held.claimed[row[DEVICE]])
        for row in rows.T.tolist()
    ]
    world.held.claimed[world.held.owner == slot] = False
    left = rows[:, keep]
    world.replace_workers(world.held, np.array([slot]), left)
    table.held[slot] = len(np.unique(left[INDEX][left[INDEX] >= 0]))
    if not table.held[slot]:
        table.held_type[slot] = -1
    elif table.milli[slot] > 0:
        table.held_type[slot] = world.inventory.type_of[left[DEVICE][left[DEVICE] >= 0][0]]


def drop_workers(state: State, plane: Plane, slot: int, gone: Ints) -> None:
    """Takes the workers with these indices off *plane*."""
    world = state.world
    rows = world.places(plane, slot)
    world.replace_workers(plane, np.array([slot]), rows[:, ~np.isin(rows[INDEX], gone)])
