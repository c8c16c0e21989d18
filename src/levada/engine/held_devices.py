"""Held devices: added by an issued operation, removed by an observed release."""

from __future__ import annotations

import numpy as np

from levada.core.assignment import DEVICE, INDEX, SLOT, Assignment
from levada.core.types import Ints
from levada.engine.state import State
from levada.kernels import assignment
from levada.tables.placement_rows import free, put, whole_devices


def with_rows(state: State, slots: Ints) -> Ints:
    """Those of these jobs with rows: fractions of GPUs, workers without a GPU, parameter servers."""
    return slots[state.world.table.has_rows[slots] > 0]


def added_places(state: State, slot: int) -> Ints:
    """Target places of a job that it does not hold."""
    world = state.world
    wants, has = world.places(world.target, slot), world.places(world.held, slot)
    known = {tuple(row) for row in has.T.tolist()}
    return wants[:, [tuple(row) not in known for row in wants.T.tolist()]]


def added_by(state: State, slots: Ints) -> Ints:
    """Target places of these jobs that they do not hold."""
    world, chosen = state.world, state.flags(slots)
    target, held = world.target, world.held
    devices, _ = assignment.changes(target.owner, held.owner, chosen)
    rows = np.ascontiguousarray(target.rows[:, chosen[target.rows[SLOT]]])
    return np.concatenate(
        [whole_devices(world.inventory, target, devices), rows[:, assignment.added_rows(held.rows, rows)]], axis=1
    )


def held_by(state: State, slots: Ints) -> Ints:
    """Places that these jobs hold."""
    world, held = state.world, state.world.held
    whole = whole_devices(world.inventory, held, held.devices_of(slots))
    return np.concatenate([whole, held.rows[:, state.flags(slots)[held.rows[SLOT]]]], axis=1)


def take(state: State, slots: Ints, devices: Ints, *, first: bool) -> None:
    """Add the targets of these jobs, whole *devices* and rows, to what they hold.

    *first*: none of them holds anything yet.
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
    """Release held places outside the target; with *everything*, all held places."""
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
    devices = held.devices_of(plain)
    free(table, world.inventory, held, devices[held.owner[devices] != world.target.owner[devices]])
    table.held[slots] = table.count[slots]


def confirm(state: State, slots: Ints) -> None:
    """Confirm the claims of these jobs: they are observed to use their devices."""
    world = state.world
    world.held.claimed[world.held.devices_of(slots)] = False
    forget_claims(state, slots)


def forget_claims(state: State, slots: Ints) -> None:
    """Forget the claimed rows of these jobs, because they are confirmed or released."""
    for slot in with_rows(state, slots):
        state.claimed_rows.pop(int(state.world.table.number[slot]), None)


def unclaim(state: State, slot: int) -> None:
    """Release the claims of a job whose operation was not carried out."""
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


def drop_workers(state: State, plane: Assignment, slot: int, gone: Ints) -> None:
    """Remove the workers with these indices from *plane*."""
    world = state.world
    rows = world.places(plane, slot)
    world.replace_workers(plane, np.array([slot]), rows[:, ~np.isin(rows[INDEX], gone)])
