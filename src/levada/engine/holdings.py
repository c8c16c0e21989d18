"""What jobs hold: it grows when an operation goes out and shrinks when its release is seen."""

from __future__ import annotations

import numpy as np

from levada.core.plane import DEVICE, FREE, INDEX, MILLI, NODE, SLOT, Plane
from levada.core.types import WHOLE, Bools, Ints
from levada.engine.state import State
from levada.kernels.state import changes, claim, give_up


def with_rows(state: State, slots: Ints) -> Ints:
    """Those of these jobs that have rows in planes: parts of GPUs, workers without one, parameter servers."""
    table = state.world.table
    return slots[(table.servers[slots] > 0) | (table.milli[slots] == 0) | (table.milli[slots] % WHOLE != 0)]


def added_places(state: State, slot: int) -> Ints:
    """Places that a job should have and does not hold."""
    world = state.world
    wants, has = world.places(world.target, slot), world.places(world.held, slot)
    known = {tuple(row) for row in has.T.tolist()}
    return wants[:, [tuple(row) not in known for row in wants.T.tolist()]]


def differing(state: State, slots: Ints) -> Bools:
    """Which of these jobs have other places on the target plane than on the held one."""
    world = state.world
    adds, drops = changes(world.target.owner, world.held.owner, state.flags(slots))
    off = np.zeros(world.table.capacity, bool)
    off[world.target.owner[adds]] = True
    off[world.held.owner[drops]] = True
    for slot in with_rows(state, slots):
        ours, theirs = world.target.rows_of(int(slot)), world.held.rows_of(int(slot))
        off[slot] |= sorted(ours.T.tolist()) != sorted(theirs.T.tolist())
    return off[slots]


def take(state: State, slots: Ints) -> None:
    """These jobs hold what they should have, from now on, besides what they hold."""
    world, table = state.world, state.world.table
    plain = state.flags(slots)
    for slot in with_rows(state, slots):
        plain[slot] = False
        added = added_places(state, int(slot))
        if added.shape[1]:
            world.put_workers(world.held, int(slot), added)
        state.claimed_rows[int(table.number[slot])] = added
    adds, _ = changes(world.target.owner, world.held.owner, plain)
    _charge(state, world.held, whole_devices(state, world.target, adds), +1)
    claim(world.target.owner, world.target.index, world.held.owner, world.held.index, plain)
    world.held.claimed[adds] = True
    table.held_type[slots] = table.type[slots]
    table.held[slots] = np.maximum(table.held[slots], table.count[slots])


def release(state: State, slots: Ints, everything: bool) -> None:
    """These jobs no longer hold what they should not have; or, with *everything*, anything at all."""
    world, table = state.world, state.world.table
    chosen = state.flags(slots)
    special = with_rows(state, slots)
    for slot in special:
        chosen[slot] = False
        keeps = np.zeros((6, 0), np.int64)
        if not everything:
            wants = {tuple(row) for row in world.places(world.target, int(slot)).T.tolist()}
            has = world.places(world.held, int(slot))
            keeps = has[:, [tuple(row) in wants for row in has.T.tolist()]]
        world.clear_workers(world.held, int(slot))
        if keeps.shape[1]:
            world.put_workers(world.held, int(slot), keeps)
    held = world.held.owner
    mine = ((held >= 0) & chosen[held]).nonzero()[0]
    drops = mine if everything else mine[held[mine] != world.target.owner[mine]]
    _charge(state, world.held, whole_devices(state, world.held, drops), -1)
    all_of_them = chosen if everything else np.zeros_like(chosen)
    give_up(world.target.owner, held, chosen, all_of_them)
    table.held[slots] = 0 if everything else table.count[slots]
    if everything:
        table.held_type[slots] = -1


def confirm(state: State, slots: Ints) -> None:
    """What these jobs claimed they are seen to use."""
    world = state.world
    mine = (world.held.owner >= 0) & state.flags(slots)[world.held.owner]
    world.held.claimed[mine] = False
    for slot in with_rows(state, slots):
        state.claimed_rows.pop(int(world.table.number[slot]), None)


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
    world.clear_workers(world.held, slot)
    left = rows[:, keep]
    if left.shape[1]:
        world.put_workers(world.held, slot, left)
    table.held[slot] = len(np.unique(left[INDEX][left[INDEX] >= 0]))
    if not table.held[slot]:
        table.held_type[slot] = -1
    elif table.milli[slot] > 0:
        table.held_type[slot] = world.inventory.type_of[left[DEVICE][left[DEVICE] >= 0][0]]


def drop_workers(state: State, plane: Plane, slot: int, gone: Ints) -> None:
    """Takes the workers with these indices off *plane*."""
    world = state.world
    rows = world.places(plane, slot)
    left = rows[:, ~np.isin(rows[INDEX], gone)]
    world.clear_workers(plane, slot)
    if left.shape[1]:
        world.put_workers(plane, slot, left)


def replace(state: State, plane: Plane, slots: Ints, rows: Ints) -> None:
    """On *plane* these jobs have the places in *rows* and no others; columns as in `Plane.rows`, for all of them."""
    mine = state.flags(slots)
    devices = ((plane.owner >= 0) & mine[plane.owner]).nonzero()[0]
    parts = mine[plane.rows[SLOT]]
    _charge(state, plane, np.concatenate([whole_devices(state, plane, devices), plane.rows[:, parts]], axis=1), -1)
    plane.owner[devices] = FREE
    if parts.any():
        plane.drop_rows(parts)
    whole = rows[MILLI] == WHOLE
    plane.owner[rows[DEVICE][whole]] = rows[SLOT][whole]
    plane.index[rows[DEVICE][whole]] = rows[INDEX][whole]
    if not whole.all():
        plane.add_rows(rows[:, ~whole])
    _charge(state, plane, rows, +1)


def whole_devices(state: State, plane: Plane, devices: Ints) -> Ints:
    """Places on these devices that *plane* gives to somebody whole, as rows."""
    rows = np.zeros((6, len(devices)), np.int64)
    rows[SLOT], rows[INDEX] = plane.owner[devices], plane.index[devices]
    rows[NODE], rows[DEVICE], rows[MILLI] = state.world.inventory.node_of[devices], devices, WHOLE
    return rows


def _charge(state: State, plane: Plane, rows: Ints, sign: int) -> None:
    """Adds or takes away the cores and memory of what stands in these places."""
    table = state.world.table
    rows = rows[:, once_per_worker(rows[SLOT], rows[INDEX], rows[NODE])]
    slot, worker = rows[SLOT], rows[INDEX] >= 0
    np.add.at(plane.cpu, rows[NODE], sign * np.where(worker, table.cpu[slot], table.server_cpu[slot]))
    np.add.at(plane.memory, rows[NODE], sign * np.where(worker, table.memory[slot], table.server_memory[slot]))


def once_per_worker(slot: Ints, index: Ints, node: Ints) -> Ints:
    """One place of each worker on each node it is on: it takes its cores there once, however many devices it has."""
    if len(slot) < 2:
        return np.arange(len(slot))
    lowest = index.min()  # parameter servers are below zero
    # One number per worker and node: sorting those is ten times as fast as sorting columns.
    key = (slot * (node.max() + 1) + node) * (index.max() - lowest + 1) + (index - lowest)
    return np.unique(key, return_index=True)[1]
