"""Who may be considered at all: dependencies, backoff, jobs set aside, jobs that no state of the cluster could hold."""

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
from levada.tables.world import World

#: What one worker, and the parameter servers, take.
_TAKEN = ("milli", "cpu", "memory", "gpu_memory", "servers", "server_cpu", "server_memory")
_SHAPE = np.array([INT_COLUMNS.index(name) for name in _TAKEN])
_WISHES = np.append(_SHAPE, INT_COLUMNS.index("min"))
_INFEASIBLE = np.zeros(max(Code.numbers()) + 1, bool)
_INFEASIBLE[[Code.UNKNOWN_TYPE, Code.TOO_LARGE, Code.QUEUE_LIMIT, Code.USER_LIMIT]] = True


def judge_feasibility(state: State, slots: Ints) -> None:
    """Notes for each of these jobs whether some state of the cluster could hold its minimum, and says why not."""
    world, table = state.world, state.world.table
    if not len(slots):
        return
    wishes = _known_to_fit(state, slots.item(0)) if len(slots) == 1 else b""
    if wishes is None:
        return
    room, exists = _room(state, slots)
    most = room.max(axis=0)
    by_queue, by_user = _within_limits(world, slots, room)
    _widen(state, slots, by_user.max(axis=0))
    fits_queue, fits_user = (limit.max(axis=0) >= table.min[slots] for limit in (by_queue, by_user))
    fits = most >= table.min[slots]
    feasible = fits & exists & fits_user
    table.feasible[slots] = feasible
    if wishes and feasible[0] and world.queues.trivial:
        state.fits.add(wishes)
    waits = (table.phase[slots] == Phase.PENDING) & (table.aside[slots] == 0)
    if not feasible.all():
        for bad, code, evidence in (
            (~exists, Code.UNKNOWN_TYPE, np.zeros_like(most)),
            (exists & ~fits, Code.TOO_LARGE, most),
            (exists & fits & ~fits_queue, Code.QUEUE_LIMIT, by_queue.max(axis=0)),
            (exists & fits_queue & ~fits_user, Code.USER_LIMIT, by_user.max(axis=0)),
        ):
            hit = bad & waits
            state.say(slots[hit], code, evidence[hit])
    state.say(slots[waits & feasible & _INFEASIBLE[table.reason[slots]]], Code.NEW)


def _widen(state: State, slots: Ints, most: Ints) -> None:
    """A size that a user fixed and that can never be had is no minimum: these jobs may be smaller."""
    table = state.world.table
    wide = slots[(table.fixed[slots] > 0) & (most < table.min[slots])]
    table.min[wide] = table.own_min[wide]
    table.below_fixed[wide] = 1


def room_for(state: State, slot: int) -> tuple[int, bool, int, int]:
    """The workers of a job that an empty cluster could hold, and whether one of its types is there.

    Then the same within the limits of its queue, and of its user, too.
    """
    slots = np.array([slot])
    room, exists = _room(state, slots)
    by_queue, by_user = _within_limits(state.world, slots, room)
    return int(room.max()), bool(exists[0]), int(by_queue.max()), int(by_user.max())


def most_workers(state: State, slot: int) -> int:
    """How many workers of a job its types, its queue and its user's limit could hold at the very most."""
    return room_for(state, slot)[3]


def _room(state: State, slots: Ints) -> tuple[Ints, Bools]:
    """Per type and job the workers that an empty cluster could hold, and per job whether one of its types is there."""
    world, table = state.world, state.world.table
    room = np.zeros((len(world.inventory.types), len(slots)), np.int64)
    shapes = table.ints[_SHAPE][:, slots]
    present = _present_types(world)
    for mine in _alike(shapes):
        shape = shapes[:, mine[0]]
        key = tuple(shape.tolist())
        workers = state.most_workers.get(key)
        if workers is None or len(workers) != len(present):
            workers = state.most_workers[key] = _most_workers(world, shape)
        room[:, mine] = workers[:, None]
    allowed = table.preference[:, slots] != NOT_ALLOWED
    room[~allowed] = 0
    return room, (allowed & present[:, None]).any(axis=0)


def _within_limits(world: World, slots: Ints, room: Ints) -> tuple[Ints, Ints]:
    """The same within the limits of queues, and of their users too: a type must both be there and be within them."""
    by_queue = np.minimum(room, _limit(world, slots, world.queues.limits))
    return by_queue, np.minimum(by_queue, _limit(world, slots, world.queues.user_limits))


def _known_to_fit(state: State, slot: int) -> bytes | None:
    """None where a job with the same wishes was feasible, and nothing has to be said of this one; else its wishes."""
    world, table = state.world, state.world.table
    wishes = table.ints[:, slot].take(_WISHES).tobytes() + table.preference[:, slot].tobytes()
    plain = world.queues.trivial and table.feasible.item(slot) > 0 and not _INFEASIBLE.item(table.reason.item(slot))
    return None if plain and wishes in state.fits else wishes


def _alike(shapes: Ints) -> list[Ints]:
    """Columns that are equal, together."""
    if shapes.shape[1] == 1:
        return [np.zeros(1, np.int64)]  # a live event speaks of one job
    by_shape = np.lexsort(shapes)  # several times as fast as `np.unique` of columns
    ordered = shapes[:, by_shape]
    begins = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0).nonzero()[0] + 1
    return np.split(by_shape, begins)


def _present_types(world: World) -> Bools:
    present = np.zeros(len(world.inventory.types), bool)
    present[CPU_TYPE] = bool((~world.inventory.lost).any())
    present[world.inventory.type_of[world.inventory.present]] = True
    return present


def _most_workers(world: World, shape: Ints) -> Ints:
    """Per type how many workers of that shape an empty, healthy cluster could hold."""
    milli, cpu, memory, gpu_memory, servers, server_cpu, server_memory = (int(value) for value in shape)
    inventory = world.inventory
    node_cap = np.full(len(inventory.nodes), UNLIMITED, np.int64)
    if cpu:
        node_cap = np.minimum(node_cap, inventory.cpu // cpu)
    if memory:
        node_cap = np.minimum(node_cap, inventory.memory // memory)
    node_cap[inventory.lost] = 0
    total = np.zeros(len(inventory.types), np.int64)
    if servers and not _servers_fit(world, servers, server_cpu, server_memory):
        return total
    if milli == 0:
        total[CPU_TYPE] = total_of(node_cap)
        return total
    per_device = inventory.present.astype(np.int64)
    if milli < WHOLE:
        per_device *= WHOLE // milli
        if gpu_memory:
            per_device = np.minimum(per_device, inventory.gpu_memory // gpu_memory)
    each = np.add.reduceat(per_device, inventory.pool_start) if len(per_device) else per_device
    each = each // max(milli // WHOLE, 1)
    np.add.at(total, inventory.pool_type, np.minimum(each, node_cap[inventory.pool_node]))
    return total


def _servers_fit(world: World, servers: int, cpu: int, memory: int) -> bool:
    inventory = world.inventory
    each = np.full(len(inventory.nodes), servers, np.int64)
    if cpu:
        each = np.minimum(each, inventory.cpu // cpu)
    if memory:
        each = np.minimum(each, inventory.memory // memory)
    return int(each[~inventory.lost].sum()) >= servers


def _limit(world: World, slots: Ints, limits_of: Callable[[Names], Ints]) -> Ints:
    """Per type and job the most workers that *limits_of* its queue and those above allow."""
    table, queues = world.table, world.queues
    limits = limits_of(world.inventory.types)
    if (limits >= UNLIMITED).all():
        return np.full(1, UNLIMITED, np.int64)
    tightest = np.stack([limits[queues.lineage(number)].min(axis=0) for number in range(len(queues.values))])
    unit = np.maximum(table.units()[slots], 1)
    return np.asarray(tightest[table.queue[slots]].T // unit)
