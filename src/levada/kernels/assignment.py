"""The steps between a decision and its operations, and the scans behind the invariants, over whole columns.

`target` and `held` are `owner` columns of the two planes (a slot per device, or below zero); job columns are by slot.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.registry import kernel

#: So many devices are compared at once. A block is a slice, whose places begin at 0: where a place could be counted
#: from the end, for all that the compiler knows, it would look at one after the other, which takes ten times as long.
_BLOCK = 128
# Packed so that a plain sort brings devices of one worker together: 20 bits for the slot, 23 for the index of the
# worker, 20 for the node. An index that does not fit becomes the last one, which none may have.
_INDEX_BITS, _NODE_BITS = 23, 20
_NO_INDEX = (1 << _INDEX_BITS) - 1
#: No worker or server has an index beyond this.
MOST_WORKERS = 1 << 22


@kernel
def changes(target: Ints, held: Ints, chosen: Bools) -> tuple[Ints, Ints]:
    """Devices that the *chosen* slots take, and devices that they give up, each ascending."""
    adds = np.empty(len(target), np.int64)
    drops = np.empty(len(target), np.int64)
    taken, given = 0, 0
    for d in range(len(target)):
        if target[d] == held[d]:
            continue
        if target[d] >= 0 and chosen[target[d]]:
            adds[taken] = d
            taken += 1
        if held[d] >= 0 and chosen[held[d]]:
            drops[given] = d
            given += 1
    return adds[:taken].copy(), drops[:given].copy()


@kernel
def differing(one: Ints, other: Ints) -> Ints:
    """Devices with another owner here than there, ascending; most are the same, and are passed over in blocks."""
    devices, number = np.empty(len(one), np.int32), 0
    for start in range(0, len(one), _BLOCK):
        here, there = one[start : start + _BLOCK], other[start : start + _BLOCK]
        differs = np.int32(0)
        for d in range(len(here)):
            differs |= here[d] ^ there[d]
        if differs != 0:
            for d in range(len(here)):
                if here[d] != there[d]:
                    devices[number] = start + d
                    number += 1
    return devices[:number]


@kernel
def devices_of(owner: Ints, chosen: Bools) -> Ints:
    """The devices of the *chosen* slots, ascending."""
    devices, number = np.empty(len(owner), np.int32), 0
    for d in range(len(owner)):
        if owner[d] >= 0 and chosen[owner[d]]:
            devices[number] = d
            number += 1
    return devices[:number]


@kernel
def devices_of_any(one: Ints, other: Ints, slots: Ints, chosen: Bools) -> Ints:
    """Devices that these *slots*, which are the *chosen* ones, have here or there, ascending."""
    devices, number = np.empty(len(one), np.int32), 0
    if len(slots) != 1:
        for d in range(len(one)):
            if (one[d] >= 0 and chosen[one[d]]) or (other[d] >= 0 and chosen[other[d]]):
                devices[number] = d
                number += 1
        return devices[:number]
    slot = np.int32(slots[0])
    for start in range(0, len(one), _BLOCK):
        here, there = one[start : start + _BLOCK], other[start : start + _BLOCK]
        found = np.int32(0)
        for d in range(len(here)):
            found |= np.int32(here[d] == slot) | np.int32(there[d] == slot)
        if found != 0:
            for d in range(len(here)):
                if here[d] == slot or there[d] == slot:
                    devices[number] = start + d
                    number += 1
    return devices[:number]


@kernel
def _workers(owner: Ints, index: Ints, node_of: Ints, devices: Ints, slots: int) -> tuple[Ints, Ints]:
    """A packed number for each of these devices, sorted, so that those of one worker stand together.

    Then where those of each slot begin.
    """
    start = np.zeros(slots + 1, np.int64)
    for d in devices:
        start[owner[d] + 1] += 1
    for s in range(slots):
        start[s + 1] += start[s]
    key = np.empty(len(devices), np.int64)
    at = start[:-1].copy()
    for d in devices:
        s = owner[d]
        i = index[d] if 0 <= index[d] <= _NO_INDEX else _NO_INDEX
        key[at[s]] = (np.int64(s) << _INDEX_BITS | np.int64(i)) << _NODE_BITS | np.int64(node_of[d])
        at[s] += 1
    for s in range(slots):
        # Workers mostly stand on devices in the order of their indices; then there is nothing to sort.
        for i in range(start[s] + 1, start[s + 1]):
            if key[i] < key[i - 1]:
                key[start[s] : start[s + 1]].sort()
                break
    return key, start


@kernel
def faults_on(
    devices: Ints,
    owner: Ints,
    index: Ints,
    node_of: Ints,
    type_of: Ints,
    judged: Bools,
    gpu_type: Ints,
    count: Ints,
    whole: Ints,
) -> Bools:
    """Per slot under *judged*, whose devices these are, whether they do not add up to *count* workers on one type.

    Each worker must have *whole* devices, all on one node; so a slot with *whole* 0 may have none. An index below zero
    or beyond eight million is a fault, too.
    """
    faults = np.zeros(len(judged), np.bool_)
    key, start = _workers(owner, index, node_of, devices, len(judged))
    for d in devices:
        faults[owner[d]] |= type_of[d] != gpu_type[owner[d]]
    for s in range(len(judged)):
        if judged[s] and start[s + 1] - start[s] != count[s] * whole[s]:
            faults[s] = True
    at, before = 0, np.int64(-1)
    while at < len(key):
        end = at + 1
        while end < len(key) and key[end] == key[at]:
            end += 1
        worker = key[at] >> _NODE_BITS
        s = worker >> _INDEX_BITS
        if end - at != whole[s] or worker == before or worker & _NO_INDEX == _NO_INDEX:
            faults[s] = True
        at, before = end, worker
    return faults


@kernel
def worker_key(slot: int, index: int, node: int) -> np.int64:
    """One number that sorts by slot, then worker, then node: 20, 23 and 20 bits.

    Indices of parameter servers are below zero.
    """
    within = min(max(index, -MOST_WORKERS), MOST_WORKERS - 1) + MOST_WORKERS
    return (np.int64(slot) << 43) + (np.int64(within) << 20) + np.int64(node)


@kernel
def node_use(plane: Ints, rows: Ints, node_of: Ints, nodes: int, ints: Ints) -> Ints:
    """Cores and memory in use per node, recounted from all places.

    A worker counts once on each node where it has any place: while it moves it is on two.
    """
    use = np.zeros((2, nodes), np.int64)
    owner, index = plane[c.OWNER], plane[c.INDEX]
    takes = (ints[c.CPU] > 0) | (ints[c.MEMORY] > 0)
    mine = devices_of(owner, takes)
    keys = np.empty(len(mine) + rows.shape[1], np.int64)
    for i in range(len(mine)):
        d = mine[i]
        keys[i] = worker_key(owner[d], index[d], node_of[d])
    for i in range(rows.shape[1]):
        keys[len(mine) + i] = worker_key(rows[c.ROW_SLOT, i], rows[c.ROW_INDEX, i], rows[c.ROW_NODE, i])
    keys.sort()
    for i in range(len(keys)):
        if i > 0 and keys[i] == keys[i - 1]:
            continue
        s, worker, n = keys[i] >> 43, ((keys[i] >> 20) & 0x7FFFFF) - MOST_WORKERS, keys[i] & 0xFFFFF
        use[c.USED_CPU, n] += ints[c.CPU, s] if worker >= 0 else ints[c.SERVER_CPU, s]
        use[c.USED_MEMORY, n] += ints[c.MEMORY, s] if worker >= 0 else ints[c.SERVER_MEMORY, s]
    return use


@kernel
def enter(
    ints: Ints,
    floats: Floats,
    preference: Ints,
    lines: Ints,
    living: int,
    slots: Ints,
    new_ints: Ints,
    new_floats: Floats,
    rows: Ints,
    facts: Ints,
    ranks: Ints,
) -> bool:
    """Puts new jobs into these *slots* of the table, and behind the first *living* places of its *lines*.

    They are *rows* of two blocks like the table's; *facts* (jobs, 6) are number, workload, entity, queue_name, queue
    and any_type, and *ranks* (jobs, types) preferences. Lines are slots in order of submission, numbers, and slots.
    Whether the first line is in order of submission still.
    """
    in_order = True
    for i in range(len(slots)):
        s, r = slots[i], rows[i]
        for column in range(len(ints)):
            ints[column, s] = new_ints[column, r]
        for column in range(len(floats)):
            floats[column, s] = new_floats[column, r]
        for kind in range(len(preference)):
            preference[kind, s] = ranks[i, kind]
        ints[c.NUMBER, s], ints[c.WORKLOAD, s], ints[c.ENTITY, s] = facts[i, 0], facts[i, 1], facts[i, 2]
        ints[c.QUEUE_NAME, s], ints[c.QUEUE, s], ints[c.ANY_TYPE, s] = facts[i, 3], facts[i, 4], facts[i, 5]
        at = living + i
        lines[0, at], lines[1, at], lines[2, at] = s, facts[i, 0], s
        in_order &= at == 0 or floats[c.SUBMITTED, lines[0, at - 1]] <= floats[c.SUBMITTED, s]
    return bool(in_order)


@kernel
def without(lines: Ints, living: int, gone: Ints, slots: int) -> Ints:
    """Lines as of `enter`, of which *living* places count, in which these slots (all below *slots*) are no more."""
    left = np.empty(lines.shape, np.int64)
    leaves = np.zeros(slots, np.bool_)
    for s in gone:
        leaves[s] = True
    ordered = known = 0
    for at in range(living):
        if not leaves[lines[0, at]]:
            left[0, ordered] = lines[0, at]
            ordered += 1
        if not leaves[lines[2, at]]:
            left[1, known], left[2, known] = lines[1, at], lines[2, at]
            known += 1
    return left


@kernel
def fresh_rows(old: Ints, new: Ints) -> Bools:
    """Which rows of *new* are not among those of *old*.

    A row is a column of a (6, n) array: slot, index, node, device (below zero: none), and two numbers more.
    """
    slots = 0
    for i in range(old.shape[1]):
        slots = max(slots, old[0, i] + 1)
    start = np.zeros(slots + 1, np.int64)
    for i in range(old.shape[1]):
        start[old[0, i] + 1] += 1
    for s in range(slots):
        start[s + 1] += start[s]
    by_slot = np.empty(old.shape[1], np.int64)
    at = start[:-1].copy()
    for i in range(old.shape[1]):
        by_slot[at[old[0, i]]] = i
        at[old[0, i]] += 1
    # Rows of a job mostly stand in the same order in both, so each search begins behind the last find.
    at[:] = start[:-1]
    fresh = np.ones(new.shape[1], np.bool_)
    for i in range(new.shape[1]):
        s = new[0, i]
        if s >= slots:
            continue
        number = start[s + 1] - start[s]
        for k in range(number):
            place = start[s] + (at[s] - start[s] + k) % number
            row = by_slot[place]
            same = True
            for column in range(1, 6):
                same &= old[column, row] == new[column, i]
            if same:
                fresh[i] = False
                at[s] = place + 1
                break
    return fresh
