"""Jobs with a node class: what a policy sees of them.

And what follows if their nodes cannot hold their grants.

Policies decide on sizes by GPU type and do not know nodes. So they see jobs with a class without the types, and without
the sizes, that no eligible node could ever hold. If a pending job nevertheless does not fit on its nodes, other jobs of
the decision that are above their minimum shrink there to let it start. If that is not enough while other jobs wait or
shrink for its grant, the policy decides again without the part of the grant that does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from levada.core.assignment import FREE, INDEX, SLOT, Assignment
from levada.core.inventory import UNLIMITED
from levada.core.layout import INT_COLUMNS, NOT_ALLOWED
from levada.core.reasons import Code
from levada.core.types import WHOLE, Ints, distinct
from levada.engine.admission import most_by_type
from levada.engine.held_devices import drop_workers
from levada.engine.shrinkable import Surplus
from levada.engine.state import State
from levada.placement import general
from levada.placement.room import NodeRoom
from levada.policies.protocol import gives_more
from levada.tables.job_table import JobTable

#: How often a policy decides again in a row; the last decision is accepted even if some grants do not fit.
_MOST_REDECISIONS = 3
#: Columns of a request, besides the minimum.
_SHAPE = [INT_COLUMNS.index(name) for name in ("node_class", "milli", "gpu_memory", "cpu", "memory", "servers")]


class Unplaced(Exception):
    """Grants do not fit on eligible nodes, and other jobs wait or shrink for them. It never leaves the engine."""

    def __init__(self, most: Mapping[int, int]) -> None:
        super().__init__()
        #: The most workers that fit, by job number; 0 = the job cannot start.
        self.most = most


def in_view(state: State, view: Ints, firm: Ints) -> tuple[Ints, Ints]:
    """*view* and *firm* (rows of *view*) without jobs that cannot start, according to the last decision."""
    number = state.world.table.number
    keep = np.array([state.most_placed.get(number.item(slot), 1) > 0 for slot in view.tolist()], bool)
    return view[keep], (np.cumsum(keep) - 1)[firm]


def shown_table(state: State, view: Ints) -> JobTable | None:
    """The job table for the policy, if jobs in *view* must not get all types and sizes that they ask for."""
    table = state.world.table
    slots = view[table.node_class[view] > 0]
    if not len(slots):
        return None
    room, _ = most_by_type(state, slots)
    own_type = np.arange(len(room))[:, None] == table.type[slots]
    allowed = table.preference[:, slots] != NOT_ALLOWED
    barred = allowed & (room < table.min[slots]) & ~own_type
    placed = [state.most_placed.get(number, UNLIMITED) for number in table.number[slots].tolist()]
    most = np.minimum(np.where(barred, 0, room).max(axis=0), placed)
    most = np.maximum(most, np.maximum(table.min[slots], table.count[slots]))
    if not barred.any() and (most >= table.max[slots]).all():
        return None
    shown = table.copy()
    shown.max[slots] = np.minimum(table.max[slots], most)
    shown.desired[slots] = np.minimum(table.desired[slots], shown.max[slots])
    shown.preference[:, slots] = np.where(barred, NOT_ALLOWED, table.preference[:, slots])
    return shown


def make_room(state: State, plane: Assignment, slots: Ints, gpu_type: Ints, wanted: Ints, sizes: Ints) -> None:
    """Start jobs of a decision that do not fit on their nodes, by shrinking others there, on *plane* and in *sizes*.

    *slots* (-1: ignored), *gpu_type*, *wanted* and *sizes* are by row of the decision. Under policies that give jobs no
    more than their minimum, nothing changes.
    """
    table = state.world.table
    short = (slots >= 0) & (wanted > 0) & (sizes == 0) & (table.node_class[slots] > 0) & (table.count[slots] == 0)
    if not short.any() or not gives_more(state.policy.policy):
        return
    row_of = np.full(table.capacity, -1, np.int64)
    row_of[slots[slots >= 0]] = (slots >= 0).nonzero()[0]
    failed: dict[bytes, int] = {}
    for row in short.nonzero()[0].tolist():
        slot, least = int(slots[row]), int(table.min[slots[row]])
        if least >= failed.get(_request(table, slot), UNLIMITED):
            continue
        before, spared = plane.copy(), sizes.copy()
        while (size := general.grow(state.world, plane, slot, int(gpu_type[row]), least)) < least:
            victims = _victims(state, plane, slot, int(gpu_type[row]), _spare(state, slots, spared))
            for loser in distinct(victims[SLOT]).tolist():
                gone = distinct(victims[INDEX][victims[SLOT] == loser])
                drop_workers(state, plane, loser, gone)
                spared[row_of[loser]] -= len(gone)
            if not victims.shape[1]:
                break
        if size < least:
            failed[_request(table, slot)] = least
            plane.take_from(before)
        else:
            sizes[:] = spared
            sizes[row] = size


def _spare(state: State, slots: Ints, sizes: Ints) -> Ints:
    """How many workers above its minimum each job of the decision has, per slot; 0 if it must not shrink."""
    table = state.world.table
    spare = np.zeros(table.capacity, np.int64)
    rows = (slots >= 0).nonzero()[0]
    spare[slots[rows]] = np.maximum(sizes[rows] - table.min[slots[rows]], 0)
    return np.where((table.step == 1) & ~state.protected(), spare, 0)


def _victims(state: State, plane: Assignment, slot: int, gpu_type: int, spare: Ints) -> Ints:
    """Places of the fewest workers on one node without which one more worker of a job fits there."""
    world, inventory = state.world, state.world.inventory
    room = NodeRoom(world, plane, slot, gpu_type)
    eligible = room.open_nodes[inventory.node_of]
    wanted = eligible & (inventory.type_of == gpu_type) & (inventory.free_milli() == WHOLE)
    free = np.bincount(inventory.node_of[wanted & (plane.owner == FREE)], minlength=len(inventory.nodes))
    fit = room.workers()
    gpus = room.milli // WHOLE
    _, victims = Surplus(world, plane, spare).cheapest(
        wanted,
        short_devices=(fit + 1) * gpus - free if not room.in_parts else np.ones_like(free),
        short_cpu=np.where(room.open_nodes, (fit + 1) * room.cpu - room.cpu_left, UNLIMITED),
        short_memory=(fit + 1) * room.memory - room.memory_left,
    )
    return victims


def check_placed(state: State, slots: Ints, wanted: Ints, count: Ints) -> None:
    """Raise `Unplaced` if jobs with a class get less than *wanted*, and other jobs wait or shrink for it.

    *slots* and *wanted* are by row of the decision, *count* is by slot.
    """
    table = state.world.table
    rows = slots >= 0
    slots, wanted = slots[rows], wanted[rows]
    short = (table.node_class[slots] > 0) & (count[slots] < wanted)
    if not short.any() or state.redecisions >= _MOST_REDECISIONS:
        return
    loses = ~short & (wanted < np.maximum(table.count[slots], 1))
    if not loses.any():
        return
    most = {**state.most_placed, **_most(state, slots[short], count)}
    # Equal and larger requests that got nothing would be next in line for what does not fit.
    failed: dict[bytes, int] = {}
    for slot in slots[short & (count[slots] == 0)].tolist():
        request = _request(table, slot)
        failed[request] = min(int(table.min[slot]), failed.get(request, UNLIMITED))
    for slot in slots[loses & (table.node_class[slots] > 0) & (table.count[slots] == 0)].tolist():
        if table.min[slot] >= failed.get(_request(table, slot), UNLIMITED):
            most[int(table.number[slot])] = 0
    if most != state.most_placed:
        raise Unplaced(most)


def _most(state: State, slots: Ints, count: Ints) -> dict[int, int]:
    table = state.world.table
    return dict(zip(table.number[slots].tolist(), np.maximum(count, table.count)[slots].tolist(), strict=True))


def _request(table: JobTable, slot: int) -> bytes:
    return table.ints[_SHAPE, slot].tobytes() + table.preference[:, slot].tobytes()


def decide_again(state: State, most: Mapping[int, int]) -> None:
    """Discard the pending decision; the next one is due at once and grants jobs no more than *most*."""
    state.deciding = None
    state.redecisions += 1
    state.most_placed = most
    slots = state.world.table.find(np.array([number for number, size in most.items() if size == 0], np.int64))
    state.set_reason(slots[slots >= 0], Code.INELIGIBLE_NODES)


def settled(state: State) -> None:
    """Forget what did not fit: the decision is made, or discarded for another reason."""
    state.most_placed, state.redecisions = {}, 0
