"""Feasibility: whether an empty cluster could hold the minimum of a job.

A healthy cluster, within the limits of its queue.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from levada.core.inventory import UNLIMITED, total_of
from levada.core.job import Phase
from levada.core.layout import INT_COLUMNS, NOT_ALLOWED
from levada.core.names import Names
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE, WHOLE, Bools, Ints
from levada.engine.state import State
from levada.tables.cluster_state import ClusterState

#: Resources of one worker and of the parameter servers, and the class of nodes that may hold them.
_RESOURCES = ("milli", "cpu", "memory", "gpu_memory", "servers", "server_cpu", "server_memory", "node_class")
_SHAPE = np.array([INT_COLUMNS.index(name) for name in _RESOURCES])
_REQUEST = np.append(_SHAPE, INT_COLUMNS.index("min"))
_INFEASIBLE = np.zeros(max(Code.numbers()) + 1, bool)
_INFEASIBLE[[Code.UNKNOWN_TYPE, Code.TOO_LARGE, Code.QUEUE_LIMIT, Code.USER_LIMIT]] = True


def update_feasibility(state: State, slots: Ints) -> None:
    """Set the `feasible` column of these jobs, and the reason of pending jobs that are infeasible."""
    world, table = state.world, state.world.table
    if not len(slots):
        return
    request = _unless_known_to_fit(state, slots.item(0)) if len(slots) == 1 else b""
    if request is None:
        return
    room, exists = most_by_type(state, slots)
    most = room.max(axis=0)
    by_queue, by_user = _within_limits(world, slots, room)
    _widen(state, slots, by_user.max(axis=0))
    fits_queue, fits_user = (limit.max(axis=0) >= table.min[slots] for limit in (by_queue, by_user))
    fits = most >= table.min[slots]
    feasible = fits & exists & fits_user
    table.feasible[slots] = feasible
    if request and feasible[0] and world.queues.trivial:
        state.fits.add(request)
    waits = (table.phase[slots] == Phase.PENDING) & (table.aside[slots] == 0)
    if not feasible.all():
        for infeasible, code, evidence in (
            (~exists, Code.UNKNOWN_TYPE, np.zeros_like(most)),
            (exists & ~fits, Code.TOO_LARGE, most),
            (exists & fits & ~fits_queue, Code.QUEUE_LIMIT, by_queue.max(axis=0)),
            (exists & fits_queue & ~fits_user, Code.USER_LIMIT, by_user.max(axis=0)),
        ):
            rows = infeasible & waits
            state.set_reason(slots[rows], code, evidence[rows])
    state.set_reason(slots[waits & feasible & _INFEASIBLE[table.reason[slots]]], Code.NEW)


def _widen(state: State, slots: Ints, most: Ints) -> None:
    """Use the original minimum of jobs whose fixed size is infeasible."""
    table = state.world.table
    too_large = slots[(table.fixed[slots] > 0) & (most < table.min[slots])]
    table.min[too_large] = table.own_min[too_large]
    table.below_fixed[too_large] = 1


def room_for(state: State, slot: int) -> tuple[int, bool, int, int]:
    """The most workers of a job on an empty cluster, and whether the cluster has an allowed type.

    Then the most workers within the limits of its queue, and within those of its user as well.
    """
    slots = np.array([slot])
    room, exists = most_by_type(state, slots)
    by_queue, by_user = _within_limits(state.world, slots, room)
    return int(room.max()), bool(exists[0]), int(by_queue.max()), int(by_user.max())


def most_workers(state: State, slot: int) -> int:
    """The most workers of a job on an empty cluster within all limits."""
    return room_for(state, slot)[3]


def most_by_type(state: State, slots: Ints) -> tuple[Ints, Bools]:
    """The most workers by type and job on an empty cluster, and per job whether the cluster has an allowed type."""
    world, table = state.world, state.world.table
    room = np.zeros((len(world.inventory.types), len(slots)), np.int64)
    shapes = table.ints[_SHAPE][:, slots]
    present = _present_types(world)
    for rows in _equal_columns(shapes):
        shape = shapes[:, rows[0]]
        key = tuple(shape.tolist())
        workers = state.most_workers.get(key)
        if workers is None or len(workers) != len(present):
            workers = state.most_workers[key] = _most_workers(world, shape)
        room[:, rows] = workers[:, None]
    allowed = table.preference[:, slots] != NOT_ALLOWED
    room[~allowed] = 0
    return room, (allowed & present[:, None]).any(axis=0)


def _within_limits(world: ClusterState, slots: Ints, room: Ints) -> tuple[Ints, Ints]:
    """*room* within the limits of queues, and within those of users as well."""
    by_queue = np.minimum(room, _limit(world, slots, world.queues.limits))
    return by_queue, np.minimum(by_queue, _limit(world, slots, world.queues.user_limits))


def _unless_known_to_fit(state: State, slot: int) -> bytes | None:
    """The request of a job; None if an equal request was feasible and the columns of this job already say so."""
    world, table = state.world, state.world.table
    request = table.ints[:, slot].take(_REQUEST).tobytes() + table.preference[:, slot].tobytes()
    plain = world.queues.trivial and table.feasible.item(slot) > 0 and not _INFEASIBLE.item(table.reason.item(slot))
    return None if plain and request in state.fits else request


def _equal_columns(shapes: Ints) -> list[Ints]:
    """Indices of equal columns, one array per distinct column."""
    if shapes.shape[1] == 1:
        return [np.zeros(1, np.int64)]  # the usual case on a server
    by_shape = np.lexsort(shapes)  # several times as fast as `np.unique` of columns
    ordered = shapes[:, by_shape]
    begins = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0).nonzero()[0] + 1
    return np.split(by_shape, begins)


def _present_types(world: ClusterState) -> Bools:
    present = np.zeros(len(world.inventory.types), bool)
    present[CPU_TYPE] = bool((~world.inventory.lost).any())
    present[world.inventory.type_of[world.inventory.present]] = True
    return present


def _most_workers(world: ClusterState, shape: Ints) -> Ints:
    """The most workers of a shape on an empty, healthy cluster, per type."""
    milli, cpu, memory, gpu_memory, servers, server_cpu, server_memory, node_class = (int(value) for value in shape)
    inventory = world.inventory
    closed = inventory.lost | ~inventory.eligible[node_class]
    node_cap = np.full(len(inventory.nodes), UNLIMITED, np.int64)
    if cpu:
        node_cap = np.minimum(node_cap, inventory.cpu // cpu)
    if memory:
        node_cap = np.minimum(node_cap, inventory.memory // memory)
    node_cap[closed] = 0
    total = np.zeros(len(inventory.types), np.int64)
    if servers and not _servers_fit(world, ~closed, servers, server_cpu, server_memory):
        return total
    if milli == 0:
        total[CPU_TYPE] = total_of(node_cap)
        return total
    per_device = inventory.present.astype(np.int64)
    if milli < WHOLE:
        per_device *= WHOLE // milli
        if gpu_memory:
            per_device = np.minimum(per_device, inventory.gpu_memory // gpu_memory)
    per_pool = np.add.reduceat(per_device, inventory.pool_start) if len(per_device) else per_device
    per_pool = per_pool // max(milli // WHOLE, 1)
    np.add.at(total, inventory.pool_type, np.minimum(per_pool, node_cap[inventory.pool_node]))
    return total


def _servers_fit(world: ClusterState, nodes: Bools, servers: int, cpu: int, memory: int) -> bool:
    inventory = world.inventory
    per_node = np.full(len(inventory.nodes), servers, np.int64)
    if cpu:
        per_node = np.minimum(per_node, inventory.cpu // cpu)
    if memory:
        per_node = np.minimum(per_node, inventory.memory // memory)
    return int(per_node[nodes].sum()) >= servers


def _limit(world: ClusterState, slots: Ints, limits_of: Callable[[Names], Ints]) -> Ints:
    """The most workers by type and job that *limits_of* its queue and the queue's ancestors allow."""
    table, queues = world.table, world.queues
    limits = limits_of(world.inventory.types)
    if (limits >= UNLIMITED).all():
        return np.full(1, UNLIMITED, np.int64)
    tightest = np.stack([limits[queues.lineage(number)].min(axis=0) for number in range(len(queues.values))])
    unit = np.maximum(table.units()[slots], 1)
    return np.asarray(tightest[table.queue[slots]].T // unit)
