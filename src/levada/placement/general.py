"""Places for jobs that are not just whole GPUs: with parameter servers, parts of a GPU, or no GPU at all.

One such job at a time; the plain ones go through `kernels.place`, many in one call.
"""

from __future__ import annotations

import numpy as np

from levada.core.plane import INDEX, NODE, Plane, server_index
from levada.core.types import Bools, Ints
from levada.kernels import spread
from levada.placement.indices import new_indices
from levada.placement.room import Room
from levada.tables.world import World


def is_general(world: World, slots: Ints) -> Bools:
    """Which jobs need this module."""
    return world.table.has_rows[slots] > 0


def grow(world: World, plane: Plane, slot: int, gpu_type: int, want: int) -> int:
    """Brings one job to *want* workers on *plane*, or as near as it can; the size it has then.

    That is the size it had, or one that its range allows. Nobody who has a place leaves it.
    """
    places = world.places(plane, slot)
    used = np.unique(places[INDEX])
    have = int((used >= 0).sum())
    size = _allowed(world, slot, want)
    if size <= have:
        return have
    room = Room(world, plane, slot, gpu_type)
    replicas = [server_index(replica) for replica in range(int(world.table.servers[slot]))]
    missing = [replica for replica in replicas if replica not in used]
    if missing and not room.seat_servers(missing, size - have):
        return have
    size = min(size, _allowed(world, slot, have + int(room.workers().sum())))
    if size > have:
        _take_back(room, used, size - have)
        _seat_workers(room, size)
        return size
    if have == 0:
        world.clear_workers(plane, slot)  # parameter servers without workers
    return have


def shrink(world: World, plane: Plane, slot: int, keep: int, *, highest_first: bool) -> None:
    """Cuts one job down to *keep* workers.

    Those that do not run yet go first, then lonely ones; worker 0 and parameter servers never (but with all).
    """
    if keep == 0:
        world.clear_workers(plane, slot)
        return
    rows = world.places(plane, slot)
    indices, nodes = _workers(rows)
    held_indices, held_nodes = _workers(world.places(world.held, slot))
    order = np.arange(len(indices))[::-1]
    if not highest_first:
        anchor = _anchor(rows)
        home = anchor if anchor >= 0 else int(nodes[0])
        companions = np.bincount(nodes)[nodes]
        running = set(zip(held_indices.tolist(), held_nodes.tolist(), strict=True))
        runs = np.array([worker in running for worker in zip(indices.tolist(), nodes.tolist(), strict=True)])
        order = np.lexsort((-indices, -nodes, companions, nodes == home, runs))
    gone = indices[order][indices[order] > 0][: len(indices) - keep]
    left = rows[:, ~np.isin(rows[INDEX], gone)]
    world.clear_workers(plane, slot)
    world.put_workers(plane, slot, left)


def _take_back(room: Room, used: Ints, need: int) -> None:
    """Up to *need* workers that still run where the job has no place any more get that place again, by index."""
    held = room.world.places(room.world.held, room.slot)
    for index in np.setdiff1d(held[INDEX][held[INDEX] >= 0], used):
        if need > 0 and room.seat_again(held[:, held[INDEX] == index]):
            need -= 1


def _seat_workers(room: Room, size: int) -> None:
    """Seats workers up to *size*: beside the parameter servers, where the job is, and then as `spread` has it."""
    inventory = room.world.inventory
    places = room.world.places(room.plane, room.slot)
    indices, nodes = _workers(places)
    need = size - len(indices)
    own = np.bincount(nodes, minlength=len(inventory.nodes))
    near: list[int] = np.argsort(-own, kind="stable")[: np.count_nonzero(own)].tolist()
    if (anchor := _anchor(places)) >= 0:
        near = [anchor, *(node for node in near if node != anchor)]
    home = (int(inventory.rack[near[0]]), int(inventory.zone[near[0]])) if near else (-1, -1)
    free = room.workers()
    if not near and room.milli == 0:
        # Cores beside GPUs are for those who use the GPUs, as long as others will do.
        without = np.bincount(inventory.node_of, minlength=len(free)) == 0
        if free[without].sum() >= need:
            free = np.where(without, free, 0)
    if not near and room.in_parts and (free >= need).any():
        near = [room.best_part(free >= need)]
    at_once = np.minimum(room.workers(at_once=True), free)
    fresh = new_indices(indices, need)
    for node, take in zip(*spread.spread(free, at_once, need, near, inventory.rack, inventory.zone, home), strict=True):
        room.seat(node, fresh[:take])
        fresh = fresh[take:]


def _workers(rows: Ints) -> tuple[Ints, Ints]:
    """Indices of the workers in *rows*, ascending, and the node of each."""
    workers = rows[:, rows[INDEX] >= 0]
    indices, first = np.unique(workers[INDEX], return_index=True)
    return indices, workers[NODE][first]


def _anchor(rows: Ints) -> int:
    """The node of the first parameter server, or -1."""
    servers = rows[NODE][rows[INDEX] == server_index(0)]
    return int(servers[0]) if len(servers) else -1


def _allowed(world: World, slot: int, size: int) -> int:
    """The largest size up to *size* that the job may have; 0 if none."""
    least, step = int(world.table.min[slot]), int(world.table.step[slot])
    return least + (size - least) // step * step if size >= least else 0
