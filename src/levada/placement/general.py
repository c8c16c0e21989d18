"""Placement of jobs with parameter servers, GPU fractions, or no GPU.

Special jobs are placed one by one; `kernels.place` places all other jobs in one call.
"""

from __future__ import annotations

import numpy as np

from levada.core.assignment import INDEX, NODE, Assignment, server_index
from levada.core.types import Bools, Ints
from levada.kernels import spread
from levada.placement.indices import new_indices
from levada.placement.room import NodeRoom
from levada.tables.cluster_state import ClusterState


def is_general(world: ClusterState, slots: Ints) -> Bools:
    """Which jobs are special."""
    return world.table.has_rows[slots] > 0


def grow(world: ClusterState, plane: Assignment, slot: int, gpu_type: int, want: int) -> int:
    """Grow a job to *want* workers on *plane*, or as many as fit; returns its new size.

    The new size is the old one or one within the range of the job. No worker is moved.
    """
    places = world.places(plane, slot)
    used = np.unique(places[INDEX])
    have = int((used >= 0).sum())
    size = _allowed(world, slot, want)
    if size <= have:
        return have
    room = NodeRoom(world, plane, slot, gpu_type)
    replicas = [server_index(replica) for replica in range(int(world.table.servers[slot]))]
    missing = [replica for replica in replicas if replica not in used]
    if missing and not room.place_servers(missing, size - have):
        return have
    size = min(size, _allowed(world, slot, have + int(room.workers().sum())))
    if size > have:
        _restore_places(room, used, size - have)
        _place_workers(room, size)
        return size
    if have == 0:
        world.clear_workers(plane, slot)  # parameter servers without workers
    return have


def shrink(
    world: ClusterState, plane: Assignment, slot: int, keep: int, *, highest_first: bool, wanted: Bools | None = None
) -> None:
    """Shrink a job to *keep* workers.

    Workers on nodes in the mask *wanted* are removed first, then those that do not run yet, then those with few others
    on their node; worker 0 and parameter servers only if *keep* is 0.
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
        keys = [-indices, -nodes, companions, nodes == home, runs]
        order = np.lexsort(keys if wanted is None else [*keys, ~wanted[nodes]])
    gone = indices[order][indices[order] > 0][: len(indices) - keep]
    left = rows[:, ~np.isin(rows[INDEX], gone)]
    world.clear_workers(plane, slot)
    world.put_workers(plane, slot, left)


def _restore_places(room: NodeRoom, used: Ints, need: int) -> None:
    """Give up to *need* workers that still run outside the target their places back, by index."""
    held = room.world.places(room.world.held, room.slot)
    for index in np.setdiff1d(held[INDEX][held[INDEX] >= 0], used):
        if need > 0 and room.restore(held[:, held[INDEX] == index]):
            need -= 1


def _place_workers(room: NodeRoom, size: int) -> None:
    """Place workers up to *size*: near the parameter servers, then on the job's nodes, then by `kernels.spread`."""
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
        # Use nodes without GPUs if they suffice: GPU workers need the CPUs of the other nodes.
        without_gpus = np.bincount(inventory.node_of, minlength=len(free)) == 0
        if free[without_gpus].sum() >= need:
            free = np.where(without_gpus, free, 0)
    if not near and room.in_parts and (free >= need).any():
        near = [room.best_part(free >= need)]
    at_once = np.minimum(room.workers(at_once=True), free)
    new = new_indices(indices, need)
    for node, take in zip(*spread.spread(free, at_once, need, near, inventory.rack, inventory.zone, home), strict=True):
        room.place(node, new[:take])
        new = new[take:]


def _workers(rows: Ints) -> tuple[Ints, Ints]:
    """Indices of the workers in *rows*, ascending, and their nodes."""
    workers = rows[:, rows[INDEX] >= 0]
    indices, first = np.unique(workers[INDEX], return_index=True)
    return indices, workers[NODE][first]


def _anchor(rows: Ints) -> int:
    """The node of the first parameter server, or -1."""
    servers = rows[NODE][rows[INDEX] == server_index(0)]
    return int(servers[0]) if len(servers) else -1


def _allowed(world: ClusterState, slot: int, size: int) -> int:
    """The largest allowed size up to *size*; 0 if there is none."""
    least, step = int(world.table.min[slot]), int(world.table.step[slot])
    return least + (size - least) // step * step if size >= least else 0
