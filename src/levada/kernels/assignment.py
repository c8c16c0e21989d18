"""Scans over assignments: target against held, and checks for invariants.

`target` and `held` are the `owner` columns of the two assignments (the slot of each device, or below zero). Job columns
are indexed by slot.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.registry import kernel

#: Devices that are compared at once. A block is a slice, so that its indices start at 0: if the compiler cannot exclude
#: negative indices, it does not vectorize the loop, which is then ten times slower.
_BLOCK = 128
# Bits of a packed sort key: 20 for the slot, 23 for the index of the worker, 20 for the node. An index that does not
# fit becomes the largest one, which no worker may have.
_INDEX_BITS, _NODE_BITS = 23, 20
_NO_INDEX = (1 << _INDEX_BITS) - 1
#: Upper bound of the index of a worker or parameter server.
MOST_WORKERS = 1 << 22


@kernel
def changes(target: Ints, held: Ints, chosen: Bools) -> tuple[Ints, Ints]:
    """Devices that the *chosen* slots gain, and devices that they give up, each ascending."""
    adds = np.empty(len(target), np.int64)
    drops = np.empty(len(target), np.int64)
    gained, dropped = 0, 0
    for d in range(len(target)):
        if target[d] == held[d]:
            continue
        if target[d] >= 0 and chosen[target[d]]:
            adds[gained] = d
            gained += 1
        if held[d] >= 0 and chosen[held[d]]:
            drops[dropped] = d
            dropped += 1
    return adds[:gained].copy(), drops[:dropped].copy()


@kernel
def differing(one: Ints, other: Ints) -> Ints:
    """Devices whose owners differ, ascending. Most are equal and skipped in blocks."""
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
    """Devices that *slots* own in either assignment, ascending. *chosen* marks these slots."""
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
        matches = np.int32(0)
        for d in range(len(here)):
            matches |= np.int32(here[d] == slot) | np.int32(there[d] == slot)
        if matches != 0:
            for d in range(len(here)):
                if here[d] == slot or there[d] == slot:
                    devices[number] = start + d
                    number += 1
    return devices[:number]


@kernel
def _workers(owner: Ints, index: Ints, node_of: Ints, devices: Ints, slots: int) -> tuple[Ints, Ints]:
    """Sorted keys of these devices, grouped by worker, and the start of each slot's keys."""
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
        # Workers are mostly on devices in the order of their indices; then no sort is needed.
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
    checked: Bools,
    gpu_type: Ints,
    count: Ints,
    whole: Ints,
) -> Bools:
    """Per *checked* slot whether its *devices* differ from *count* workers on one type.

    Each worker must have *whole* devices, all on one node; a slot with *whole* 0 must have none. An index below 0 or
    above 8 million is a fault.
    """
    faults = np.zeros(len(checked), np.bool_)
    key, start = _workers(owner, index, node_of, devices, len(checked))
    for d in devices:
        faults[owner[d]] |= type_of[d] != gpu_type[owner[d]]
    for s in range(len(checked)):
        if checked[s] and start[s + 1] - start[s] != count[s] * whole[s]:
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
    """A sort key by slot (20 bits), worker (23), node (20). Parameter servers have indices below 0."""
    within = min(max(index, -MOST_WORKERS), MOST_WORKERS - 1) + MOST_WORKERS
    return (np.int64(slot) << 43) + (np.int64(within) << 20) + np.int64(node)


@kernel
def node_use(plane: Ints, rows: Ints, node_of: Ints, counted: Bools, ints: Ints) -> Ints:
    """Cores and memory in use per node, recomputed from all workers; 0 where not *counted*.

    A worker counts once on each node where it has a device or row: a moving worker is on two nodes.
    """
    use = np.zeros((2, len(counted)), np.int64)
    owner, index = plane[c.OWNER], plane[c.INDEX]
    takes = (ints[c.CPU] > 0) | (ints[c.MEMORY] > 0)
    mine = devices_of(owner, takes)
    keys, number = np.empty(len(mine) + rows.shape[1], np.int64), 0
    for d in mine:
        if counted[node_of[d]]:
            keys[number] = worker_key(owner[d], index[d], node_of[d])
            number += 1
    for i in range(rows.shape[1]):
        if counted[rows[c.ROW_NODE, i]]:
            keys[number] = worker_key(rows[c.ROW_SLOT, i], rows[c.ROW_INDEX, i], rows[c.ROW_NODE, i])
            number += 1
    keys = keys[:number]
    keys.sort()
    for i in range(len(keys)):
        if i > 0 and keys[i] == keys[i - 1]:
            continue
        s, worker, n = keys[i] >> 43, ((keys[i] >> 20) & 0x7FFFFF) - MOST_WORKERS, keys[i] & 0xFFFFF
        use[c.USED_CPU, n] += ints[c.CPU, s] if worker >= 0 else ints[c.SERVER_CPU, s]
        use[c.USED_MEMORY, n] += ints[c.MEMORY, s] if worker >= 0 else ints[c.SERVER_MEMORY, s]
    return use


@kernel
def insert_jobs(
    ints: Ints,
    floats: Floats,
    preference: Ints,
    index: Ints,
    active: int,
    slots: Ints,
    new_ints: Ints,
    new_floats: Floats,
    rows: Ints,
    facts: Ints,
    ranks: Ints,
) -> bool:
    """Insert new jobs into these *slots* of the table and append them to its *index*.

    The first *active* entries of the index are in use. The jobs are *rows* of two blocks with the table's columns;
    *facts* (jobs, 6) are number, workload, entity, queue_name, queue and any_type, *ranks* (jobs, types) the
    preferences. Rows of the index: slots by submission, numbers, slots by number. Returns whether the first row is
    still sorted by submission.
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
        at = active + i
        index[0, at], index[1, at], index[2, at] = s, facts[i, 0], s
        in_order &= at == 0 or floats[c.SUBMITTED, index[0, at - 1]] <= floats[c.SUBMITTED, s]
    return bool(in_order)


@kernel
def remove_slots(index: Ints, active: int, removed: Ints, slots: int) -> Ints:
    """The index (see `insert_jobs`) without these slots, which are all below *slots*."""
    result = np.empty(index.shape, np.int64)
    leaves = np.zeros(slots, np.bool_)
    for s in removed:
        leaves[s] = True
    ordered = known = 0
    for at in range(active):
        if not leaves[index[0, at]]:
            result[0, ordered] = index[0, at]
            ordered += 1
        if not leaves[index[2, at]]:
            result[1, known], result[2, known] = index[1, at], index[2, at]
            known += 1
    return result


@kernel
def added_rows(old: Ints, new: Ints) -> Bools:
    """Which rows of *new* are not in *old*.

    A row is a column of a (6, n) array: slot, index, node, device (below 0: none), 1/1000ths, memory.
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
    # Rows of a job mostly have the same order in both, so each search starts after the last match.
    at[:] = start[:-1]
    fresh = np.ones(new.shape[1], np.bool_)
    for i in range(new.shape[1]):
        s = new[0, i]
        if s >= slots:
            continue
        number = start[s + 1] - start[s]
        for k in range(number):
            position = start[s] + (at[s] - start[s] + k) % number
            row = by_slot[position]
            same = True
            for column in range(1, 6):
                same &= old[column, row] == new[column, i]
            if same:
                fresh[i] = False
                at[s] = position + 1
                break
    return fresh
