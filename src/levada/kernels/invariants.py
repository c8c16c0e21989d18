"""What breaks the rules I1 to I5 and I12, over columns: of whole devices and of rows alike.

A *finding* is a rule and its subject: a device, node, slot or row. `tables.invariants` says in words what is wrong and
which job is at fault. `new_*` and `old_*` are the blocks of two planes, `devices` and `nodes` those of `core.openings`,
`kind` and `count` the type and size of each slot's grant.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Ints
from levada.kernels.assignment import MOST_WORKERS, devices_of, differing, faults_on, fresh_rows, node_use, worker_key
from levada.kernels.jobs import protected as is_protected
from levada.kernels.registry import kernel

# The rules; subjects are devices unless it is said otherwise.
(
    WHOLE_AND_PARTS,
    BEYOND_WHOLE,
    BEYOND_MEMORY,
    CLOSED_DEVICE,
    CLOSED_ROW,  # a row of the new plane
    LEFT_BY_OTHERS,
    MEMORY_LEFT_BY_OTHERS,
    BAD_SIZE,  # a slot
    BAD_PLACES,  # a slot
    TAKEN_DEVICE,
    TAKEN_ROW,  # a row of the old plane
    NODE_CPU,  # a node, as all that follow
    NODE_MEMORY,
    CPU_SUM,
    MEMORY_SUM,
) = range(15)

#: Each rule reports at most this many findings; the rest turns up once the first are dealt with.
_MOST = 256


@kernel
def _note(found: Ints, number: int, rule: int, subject: int) -> int:
    if number < found.shape[1]:
        found[0, number], found[1, number] = rule, subject
        number += 1
    return number


@kernel
def _sums(rows: Ints, column: int, devices: int) -> Ints:
    """Per device what rows take of it."""
    total = np.zeros(devices, np.int64)
    for i in range(rows.shape[1]):
        if rows[c.ROW_DEVICE, i] >= 0:
            total[rows[c.ROW_DEVICE, i]] += rows[column, i]
    return total


@kernel
def devices_within_whole(owner: Ints, rows: Ints, devices: Ints) -> Ints:
    """I1: findings about devices that are given whole and in parts, or in parts beyond what they have."""
    found, number = np.empty((2, _MOST), np.int64), 0
    milli = _sums(rows, c.ROW_MILLI, len(owner))
    memory = _sums(rows, c.ROW_MEMORY, len(owner))
    cut = np.zeros(len(owner), np.bool_)
    for i in range(rows.shape[1]):
        if rows[c.ROW_DEVICE, i] >= 0:
            cut[rows[c.ROW_DEVICE, i]] = True
    for d in range(len(owner)):
        if (owner[d] == c.SHARED) != cut[d]:
            number = _note(found, number, WHOLE_AND_PARTS, d)
    for d in range(len(owner)):
        if milli[d] > c.WHOLE:
            number = _note(found, number, BEYOND_WHOLE, d)
    for d in range(len(owner)):
        if memory[d] > devices[c.GPU_MEMORY_OF, d]:
            number = _note(found, number, BEYOND_MEMORY, d)
    return found[:, :number].copy()


@kernel
def grants_on_open_devices(moved: Ints, new: Ints, new_rows: Ints, old_rows: Ints, devices: Ints, nodes: Ints) -> Ints:
    """I2: findings about new grants where none may go, or beyond what others leave.

    *moved* are the devices with another owner than before, *new* the owners of all.
    """
    found, number = np.empty((2, _MOST), np.int64), 0
    for d in moved:
        if new[d] >= 0 and devices[c.WHOLE_OPEN, d] == 0:
            number = _note(found, number, CLOSED_DEVICE, d)
    if new_rows.shape[1] == 0:
        return found[:, :number].copy()
    fresh, touched = fresh_rows(old_rows, new_rows), np.zeros(len(new), np.bool_)
    for i in range(new_rows.shape[1]):
        if not fresh[i]:
            continue
        d = new_rows[c.ROW_DEVICE, i]
        if nodes[c.NODE_OPEN, new_rows[c.ROW_NODE, i]] == 0 or (d >= 0 and devices[c.DEVICE_OPEN, d] == 0):
            number = _note(found, number, CLOSED_ROW, i)
        elif d >= 0:
            touched[d] = True
    milli = _sums(new_rows, c.ROW_MILLI, len(new))
    memory = _sums(new_rows, c.ROW_MEMORY, len(new))
    # Where no other job is, the limit is the device itself, which is I1.
    for d in range(len(new)):
        if touched[d] and devices[c.MILLI_LEFT, d] < min(milli[d], c.WHOLE):
            number = _note(found, number, LEFT_BY_OTHERS, d)
    for d in range(len(new)):
        if touched[d] and devices[c.GPU_MEMORY_LEFT, d] < min(memory[d], devices[c.GPU_MEMORY_OF, d]):
            number = _note(found, number, MEMORY_LEFT_BY_OTHERS, d)
    return found[:, :number].copy()


@kernel
def is_allowed_size(ints: Ints, preference: Ints, s: int, kind: int, count: int) -> bool:
    """Whether a job may have *count* workers on type *kind*: nothing, what it has, or a size and type in its range."""
    if count <= 0:
        return count == 0 and kind == -1
    if kind == ints[c.TYPE, s] and count == ints[c.COUNT, s]:
        return True
    least, step = ints[c.MIN, s], max(ints[c.STEP, s], 1)
    if count < least or count > ints[c.MAX, s] or (count - least) % step != 0:
        return False
    return 0 <= kind < len(preference) and preference[kind, s] != c.NOT_ALLOWED


@kernel
def sizes_in_range(ints: Ints, preference: Ints, slots: Ints, kind: Ints, count: Ints) -> Ints:
    """I3: findings about sizes and types that a job may not have."""
    found, number = np.empty((2, _MOST), np.int64), 0
    for s in slots:
        if not is_allowed_size(ints, preference, s, kind[s], count[s]):
            number = _note(found, number, BAD_SIZE, s)
    return found[:, :number].copy()


@kernel
def places_add_up(
    plane: Ints, rows: Ints, devices: Ints, ints: Ints, slots: Ints, kind: Ints, count: Ints, mine: Ints
) -> Ints:
    """I4: findings about jobs in *slots* whose places are not their grants; *mine* are all their whole devices."""
    found, number = np.empty((2, _MOST), np.int64), 0
    cap = ints.shape[1]
    judged, whole, alone = np.zeros(cap, np.bool_), np.zeros(cap, np.int64), np.zeros(cap, np.int64)
    workers, servers = np.zeros(cap, np.int64), np.zeros(cap, np.int64)
    for s in slots:
        judged[s] = True
        whole[s] = ints[c.MILLI, s] // c.WHOLE if ints[c.MILLI, s] % c.WHOLE == 0 else 0
    for i in range(rows.shape[1]):
        s = rows[c.ROW_SLOT, i]
        if judged[s] and rows[c.ROW_INDEX, i] >= 0:
            workers[s] += 1
        elif judged[s]:
            servers[s] += 1
    for s in slots:
        # A packed job has a row for each of its GPUs, and no device for itself.
        alone[s] = 0 if whole[s] > 0 and workers[s] > 0 else count[s]
    owner, index = plane[c.OWNER], plane[c.INDEX]
    faults = faults_on(mine, owner, index, devices[c.NODE_OF], devices[c.TYPE_OF], judged, kind, alone, whole)
    for s in slots:
        packed = whole[s] > 0 and workers[s] > 0
        expected = count[s] * whole[s] if packed else (0 if whole[s] > 0 else count[s])
        faults[s] |= (count[s] > 0) != (kind[s] >= 0) or workers[s] != expected
        faults[s] |= servers[s] != (ints[c.SERVERS, s] if count[s] > 0 else 0)
    if rows.shape[1] > 0:
        _judge_rows(rows, devices, ints, judged, kind, whole, faults)
    for s in range(cap):
        if faults[s] and judged[s]:
            number = _note(found, number, BAD_PLACES, s)
    return found[:, :number].copy()


@kernel
def _judge_rows(rows: Ints, devices: Ints, ints: Ints, judged: Bools, kind: Ints, whole: Ints, faults: Bools) -> None:
    """Mark jobs with rows that are not as their workers and servers are, or with a worker in several pieces."""
    keys = np.empty(rows.shape[1], np.int64)
    for i in range(rows.shape[1]):
        s, d, index = rows[c.ROW_SLOT, i], rows[c.ROW_DEVICE, i], rows[c.ROW_INDEX, i]
        keys[i] = worker_key(s, index, rows[c.ROW_NODE, i])
        milli = ints[c.MILLI, s] if index >= 0 else 0
        memory = ints[c.GPU_MEMORY, s] if milli % c.WHOLE > 0 else 0
        milli = c.HALF if milli >= c.WHOLE else milli
        wrong = rows[c.ROW_MILLI, i] != milli or (d >= 0) != (milli > 0) or index < -ints[c.SERVERS, s]
        wrong = wrong or rows[c.ROW_MEMORY, i] != memory or index >= MOST_WORKERS
        if not wrong and d >= 0:
            wrong = devices[c.NODE_OF, d] != rows[c.ROW_NODE, i] or devices[c.TYPE_OF, d] != kind[s]
        if wrong and judged[s]:
            faults[s] = True
    order = np.argsort(keys, kind="mergesort")
    start = 0
    while start < len(order):
        end, key = start + 1, keys[order[start]]
        while end < len(order) and keys[order[end]] >> 20 == key >> 20:
            end += 1
        s = rows[c.ROW_SLOT, order[start]]
        expected = whole[s] if rows[c.ROW_INDEX, order[start]] >= 0 and whole[s] > 0 else 1
        if judged[s] and (end - start != expected or keys[order[end - 1]] != key):
            faults[s] = True
        start = end


@kernel
def others_stay(
    moved: Ints,
    renamed: Ints,
    old: Ints,
    new_rows: Ints,
    old_rows: Ints,
    ints: Ints,
    slots: Ints,
    protected: Bools,
) -> Ints:
    """I5: findings about what *protected* jobs, or jobs that are not in *slots*, would lose.

    *moved* and *renamed* are devices with another owner, or another worker, than before; *old* are the owners then.
    Where *protected* is empty, the table says which jobs are.
    """
    found, number = np.empty((2, _MOST), np.int64), 0
    spoken = np.zeros(ints.shape[1], np.bool_)
    for s in slots:
        spoken[s] = True
    seen = np.zeros(len(old), np.bool_)
    for touched in (moved, renamed):
        for d in touched:
            if not seen[d] and old[d] >= 0 and _stays(old[d], spoken, protected, ints):
                number = _note(found, number, TAKEN_DEVICE, d)
            seen[d] = True
    if old_rows.shape[1] > 0:
        gone = fresh_rows(new_rows, old_rows)
        for i in range(old_rows.shape[1]):
            if gone[i] and _stays(old_rows[c.ROW_SLOT, i], spoken, protected, ints):
                number = _note(found, number, TAKEN_ROW, i)
    return found[:, :number].copy()


@kernel
def _stays(s: int, spoken: Bools, protected: Bools, ints: Ints) -> bool:
    """Whether a job must keep what it has."""
    if not spoken[s]:
        return True
    return protected[s] if len(protected) > 0 else is_protected(ints, s)


@kernel
def nodes_within_limits(new: Ints, old: Ints, nodes: Ints) -> Ints:
    """I12: findings about nodes whose cores or memory are overused, and more than before; planes' nodes.

    Nodes that are closed are I2's affair.
    """
    found, number = np.empty((2, _MOST), np.int64), 0
    for used, free, rule in ((c.USED_CPU, c.CPU_FREE, NODE_CPU), (c.USED_MEMORY, c.MEMORY_FREE, NODE_MEMORY)):
        for n in range(new.shape[1]):
            if new[used, n] > old[used, n] and new[used, n] > nodes[free, n] and nodes[c.NODE_OPEN, n] > 0:
                number = _note(found, number, rule, n)
    return found[:, :number].copy()


@kernel
def sums_kept(plane: Ints, plane_nodes: Ints, rows: Ints, node_of: Ints, ints: Ints) -> Ints:
    """I12: findings about nodes whose kept sums are not what workers add up to."""
    found, number = np.empty((2, _MOST), np.int64), 0
    use = node_use(plane, rows, node_of, plane_nodes.shape[1], ints)
    for row, rule in ((c.USED_CPU, CPU_SUM), (c.USED_MEMORY, MEMORY_SUM)):
        for n in range(plane_nodes.shape[1]):
            if use[row, n] != plane_nodes[row, n]:
                number = _note(found, number, rule, n)
    return found[:, :number].copy()


@kernel
def check(
    new: Ints,
    new_nodes: Ints,
    new_rows: Ints,
    old: Ints,
    old_nodes: Ints,
    old_rows: Ints,
    devices: Ints,
    nodes: Ints,
    ints: Ints,
    preference: Ints,
    slots: Ints,
    kind: Ints,
    count: Ints,
    protected: Bools,
) -> Ints:
    """Findings about what a proposal changes: I1 to I5 and I12."""
    found = sizes_in_range(ints, preference, slots, kind, count)
    if found.shape[1] > 0:
        return found  # the other rules look things up by type
    moved, renamed = differing(new[c.OWNER], old[c.OWNER]), differing(new[c.INDEX], old[c.INDEX])
    changed, fresh, has_cores = _changed(
        moved, renamed, new[c.OWNER], old[c.OWNER], new_rows, old_rows, ints, slots, kind, count
    )
    found = grants_on_open_devices(moved, new[c.OWNER], new_rows, old_rows, devices, nodes)
    if new_rows.shape[1] > 0 or old_rows.shape[1] > 0:
        found = np.concatenate((devices_within_whole(new[c.OWNER], new_rows, devices), found), axis=1)
    mine = fresh
    if len(changed) > 0 and ints[c.COUNT][changed].any():
        judged = np.zeros(ints.shape[1], np.bool_)
        for s in changed:
            judged[s] = True
        mine = devices_of(new[c.OWNER], judged)
    added = places_add_up(new, new_rows, devices, ints, changed, kind, count, mine)
    taken = others_stay(moved, renamed, old[c.OWNER], new_rows, old_rows, ints, slots, protected)
    limits = nodes_within_limits(new_nodes, old_nodes, nodes)
    if added.shape[1] + taken.shape[1] + limits.shape[1] > 0:
        found = np.concatenate((found, added, taken, limits), axis=1)
    # Places that are no good count for nothing, or twice: only sound ones have sums to keep.
    if found.shape[1] == 0 and has_cores:
        found = sums_kept(new, new_nodes, new_rows, devices[c.NODE_OF], ints)
    return found


@kernel
def _changed(
    moved: Ints,
    renamed: Ints,
    new: Ints,
    old: Ints,
    new_rows: Ints,
    old_rows: Ints,
    ints: Ints,
    slots: Ints,
    kind: Ints,
    count: Ints,
) -> tuple[Ints, Ints, bool]:
    """Slots among *slots* whose grant or places change; devices with a new owner; whether cores or memory change."""
    marks = np.zeros(ints.shape[1], np.bool_)
    fresh, number = np.empty(len(moved), np.int32), 0
    for d in moved:
        if old[d] >= 0:
            marks[old[d]] = True
        if new[d] >= 0:
            marks[new[d]] = True
            fresh[number] = d
            number += 1
    for d in renamed:
        if new[d] >= 0:
            marks[new[d]] = True
    for rows in (new_rows, old_rows):
        for i in range(rows.shape[1]):
            marks[rows[c.ROW_SLOT, i]] = True
    changed, length, has_cores = np.empty(len(slots), np.int64), 0, False
    for s in slots:
        if marks[s] or kind[s] != ints[c.TYPE, s] or count[s] != ints[c.COUNT, s]:
            changed[length] = s
            length += 1
            has_cores |= ints[c.CPU, s] != 0 or ints[c.MEMORY, s] != 0 or ints[c.HAS_ROWS, s] != 0
    return changed[:length], fresh[:number], bool(has_cores)
