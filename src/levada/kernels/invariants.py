"""Violations of the invariants I1 to I5, I12 and I14, for devices and rows.

A *finding* is a rule and its subject: a device, node, slot or row. `tables.invariants` turns it into a sentence and
names the job at fault. `new_*` and `old_*` are the blocks of two assignments, `devices` and `nodes` those of
`core.allocatable`, `kind` and `count` the type and size of each slot's grant.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Ints
from levada.kernels.assignment import MOST_WORKERS, added_rows, devices_of, differing, faults_on, node_use, worker_key
from levada.kernels.jobs import protected as is_protected
from levada.kernels.registry import kernel

# The rules; the subject is a device unless noted.
(
    WHOLE_AND_PARTS,
    BEYOND_WHOLE,
    BEYOND_MEMORY,
    CLOSED_DEVICE,
    CLOSED_ROW,  # a row of the new assignment
    LEFT_BY_OTHERS,
    MEMORY_LEFT_BY_OTHERS,
    BAD_SIZE,  # a slot
    BAD_PLACES,  # a slot
    TAKEN_DEVICE,
    TAKEN_ROW,  # a row of the old assignment
    INELIGIBLE_DEVICE,
    INELIGIBLE_ROW,  # a row of the new assignment
    NODE_CPU,  # a node, like all that follow
    NODE_MEMORY,
    CPU_SUM,
    MEMORY_SUM,
) = range(17)

#: Findings per rule; further ones are reported after the first have been resolved.
_MOST = 256


@kernel
def _add_finding(findings: Ints, number: int, rule: int, subject: int) -> int:
    """Append a finding; returns the new number of findings."""
    if number < findings.shape[1]:
        findings[0, number], findings[1, number] = rule, subject
        number += 1
    return number


@kernel
def _sums(rows: Ints, column: int, devices: int) -> Ints:
    """Per device the sum of a column over its rows."""
    total = np.zeros(devices, np.int64)
    for i in range(rows.shape[1]):
        if rows[c.ROW_DEVICE, i] >= 0:
            total[rows[c.ROW_DEVICE, i]] += rows[column, i]
    return total


@kernel
def devices_within_whole(owner: Ints, rows: Ints, devices: Ints) -> Ints:
    """I1: devices assigned both whole and in parts, or in parts beyond their capacity."""
    findings, number = np.empty((2, _MOST), np.int64), 0
    milli = _sums(rows, c.ROW_MILLI, len(owner))
    memory = _sums(rows, c.ROW_MEMORY, len(owner))
    cut = np.zeros(len(owner), np.bool_)
    for i in range(rows.shape[1]):
        if rows[c.ROW_DEVICE, i] >= 0:
            cut[rows[c.ROW_DEVICE, i]] = True
    for d in range(len(owner)):
        if (owner[d] == c.SHARED) != cut[d]:
            number = _add_finding(findings, number, WHOLE_AND_PARTS, d)
    for d in range(len(owner)):
        if milli[d] > c.WHOLE:
            number = _add_finding(findings, number, BEYOND_WHOLE, d)
    for d in range(len(owner)):
        if memory[d] > devices[c.GPU_MEMORY_OF, d]:
            number = _add_finding(findings, number, BEYOND_MEMORY, d)
    return findings[:, :number].copy()


@kernel
def grants_on_open_devices(moved: Ints, new: Ints, new_rows: Ints, old_rows: Ints, devices: Ints, nodes: Ints) -> Ints:
    """I2: new grants on closed devices or beyond what others leave.

    *moved* are the devices with a changed owner, *new* the owners of all devices.
    """
    findings, number = np.empty((2, _MOST), np.int64), 0
    for d in moved:
        if new[d] >= 0 and devices[c.WHOLE_OPEN, d] == 0:
            number = _add_finding(findings, number, CLOSED_DEVICE, d)
    if new_rows.shape[1] == 0:
        return findings[:, :number].copy()
    fresh, touched = added_rows(old_rows, new_rows), np.zeros(len(new), np.bool_)
    for i in range(new_rows.shape[1]):
        if not fresh[i]:
            continue
        d = new_rows[c.ROW_DEVICE, i]
        if nodes[c.NODE_OPEN, new_rows[c.ROW_NODE, i]] == 0 or (d >= 0 and devices[c.DEVICE_OPEN, d] == 0):
            number = _add_finding(findings, number, CLOSED_ROW, i)
        elif d >= 0:
            touched[d] = True
    milli = _sums(new_rows, c.ROW_MILLI, len(new))
    memory = _sums(new_rows, c.ROW_MEMORY, len(new))
    # Without other jobs, the limit is the device itself, which is I1.
    for d in range(len(new)):
        if touched[d] and devices[c.MILLI_LEFT, d] < min(milli[d], c.WHOLE):
            number = _add_finding(findings, number, LEFT_BY_OTHERS, d)
    for d in range(len(new)):
        if touched[d] and devices[c.GPU_MEMORY_LEFT, d] < min(memory[d], devices[c.GPU_MEMORY_OF, d]):
            number = _add_finding(findings, number, MEMORY_LEFT_BY_OTHERS, d)
    return findings[:, :number].copy()


@kernel
def is_allowed_size(ints: Ints, preference: Ints, s: int, kind: int, count: int) -> bool:
    """Whether a job may have *count* workers on type *kind*: 0, its current grant, or in its range."""
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
    """I3: sizes and types that a job may not have."""
    findings, number = np.empty((2, _MOST), np.int64), 0
    had_kind, had_count = ints[c.TYPE], ints[c.COUNT]
    for s in slots:
        # Most grants do not change: skip them here, because a call with whole blocks is five times slower.
        if kind[s] == had_kind[s] and count[s] == had_count[s] and (count[s] > 0) == (kind[s] >= 0):
            continue
        if not is_allowed_size(ints, preference, s, kind[s], count[s]):
            number = _add_finding(findings, number, BAD_SIZE, s)
    return findings[:, :number].copy()


@kernel
def places_add_up(
    assigned: Ints, rows: Ints, devices: Ints, ints: Ints, slots: Ints, kind: Ints, count: Ints, mine: Ints
) -> Ints:
    """I4: jobs in *slots* whose placement differs from their grant; *mine* are their whole devices."""
    findings, number = np.empty((2, _MOST), np.int64), 0
    cap = ints.shape[1]
    checked, whole, alone = np.zeros(cap, np.bool_), np.zeros(cap, np.int64), np.zeros(cap, np.int64)
    workers, servers = np.zeros(cap, np.int64), np.zeros(cap, np.int64)
    for s in slots:
        checked[s] = True
        whole[s] = ints[c.MILLI, s] // c.WHOLE if ints[c.MILLI, s] % c.WHOLE == 0 else 0
    for i in range(rows.shape[1]):
        s = rows[c.ROW_SLOT, i]
        if checked[s] and rows[c.ROW_INDEX, i] >= 0:
            workers[s] += 1
        elif checked[s]:
            servers[s] += 1
    for s in slots:
        # A packed job has a row for each of its GPUs, and no whole device.
        alone[s] = 0 if whole[s] > 0 and workers[s] > 0 else count[s]
    owner, index = assigned[c.OWNER], assigned[c.INDEX]
    faults = faults_on(mine, owner, index, devices[c.NODE_OF], devices[c.TYPE_OF], checked, kind, alone, whole)
    for s in slots:
        packed = whole[s] > 0 and workers[s] > 0
        expected = count[s] * whole[s] if packed else (0 if whole[s] > 0 else count[s])
        faults[s] |= (count[s] > 0) != (kind[s] >= 0) or workers[s] != expected
        faults[s] |= servers[s] != (ints[c.SERVERS, s] if count[s] > 0 else 0)
    if rows.shape[1] > 0:
        _check_rows(rows, devices, ints, checked, kind, whole, faults)
    for s in range(cap):
        if faults[s] and checked[s]:
            number = _add_finding(findings, number, BAD_PLACES, s)
    return findings[:, :number].copy()


@kernel
def _check_rows(rows: Ints, devices: Ints, ints: Ints, checked: Bools, kind: Ints, whole: Ints, faults: Bools) -> None:
    """Mark jobs with rows unlike their workers and servers, or with a worker in several pieces."""
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
        if wrong and checked[s]:
            faults[s] = True
    order = np.argsort(keys, kind="mergesort")
    start = 0
    while start < len(order):
        end, key = start + 1, keys[order[start]]
        while end < len(order) and keys[order[end]] >> 20 == key >> 20:
            end += 1
        s = rows[c.ROW_SLOT, order[start]]
        expected = whole[s] if rows[c.ROW_INDEX, order[start]] >= 0 and whole[s] > 0 else 1
        if checked[s] and (end - start != expected or keys[order[end - 1]] != key):
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
    """I5: devices and rows taken from *protected* jobs, or from jobs that are not in *slots*.

    *moved* and *renamed* are devices with a changed owner or worker; *old* are the previous owners. If *protected* is
    empty, the table says which jobs are protected.
    """
    findings, number = np.empty((2, _MOST), np.int64), 0
    decided = np.zeros(ints.shape[1], np.bool_)
    for s in slots:
        decided[s] = True
    seen = np.zeros(len(old), np.bool_)
    for touched in (moved, renamed):
        for d in touched:
            if not seen[d] and old[d] >= 0 and _must_stay(old[d], decided, protected, ints):
                number = _add_finding(findings, number, TAKEN_DEVICE, d)
            seen[d] = True
    if old_rows.shape[1] > 0:
        gone = added_rows(new_rows, old_rows)
        for i in range(old_rows.shape[1]):
            if gone[i] and _must_stay(old_rows[c.ROW_SLOT, i], decided, protected, ints):
                number = _add_finding(findings, number, TAKEN_ROW, i)
    return findings[:, :number].copy()


@kernel
def _must_stay(s: int, decided: Bools, protected: Bools, ints: Ints) -> bool:
    """Whether a job must keep what it has."""
    if not decided[s]:
        return True
    return protected[s] if len(protected) > 0 else is_protected(ints, s)


@kernel
def nodes_within_limits(new: Ints, old: Ints, nodes: Ints) -> Ints:
    """I12: nodes with overused cores or memory, and more use than before. I2 covers closed nodes."""
    findings, number = np.empty((2, _MOST), np.int64), 0
    for used, free, rule in ((c.USED_CPU, c.CPU_FREE, NODE_CPU), (c.USED_MEMORY, c.MEMORY_FREE, NODE_MEMORY)):
        for n in range(new.shape[1]):
            if new[used, n] > old[used, n] and new[used, n] > nodes[free, n] and nodes[c.NODE_OPEN, n] > 0:
                number = _add_finding(findings, number, rule, n)
    return findings[:, :number].copy()


@kernel
def node_sums_match(
    assigned: Ints, assigned_nodes: Ints, rows: Ints, node_of: Ints, ints: Ints, checked: Bools
) -> Ints:
    """I12: *checked* nodes whose stored sums differ from the sums over workers."""
    findings, number = np.empty((2, _MOST), np.int64), 0
    use = node_use(assigned, rows, node_of, checked, ints)
    for row, rule in ((c.USED_CPU, CPU_SUM), (c.USED_MEMORY, MEMORY_SUM)):
        for n in range(assigned_nodes.shape[1]):
            if checked[n] and use[row, n] != assigned_nodes[row, n]:
                number = _add_finding(findings, number, rule, n)
    return findings[:, :number].copy()


@kernel
def grants_on_eligible_nodes(
    moved: Ints, new: Ints, new_rows: Ints, old_rows: Ints, node_of: Ints, node_class: Ints, eligible: Bools
) -> Ints:
    """I14: new grants on nodes that are closed to the class of their job; *eligible* is by class and node."""
    findings, number = np.empty((2, _MOST), np.int64), 0
    for d in moved:
        if new[d] >= 0 and not eligible[node_class[new[d]], node_of[d]]:
            number = _add_finding(findings, number, INELIGIBLE_DEVICE, d)
    if new_rows.shape[1] > 0:
        fresh = added_rows(old_rows, new_rows)
        for i in range(new_rows.shape[1]):
            if fresh[i] and not eligible[node_class[new_rows[c.ROW_SLOT, i]], new_rows[c.ROW_NODE, i]]:
                number = _add_finding(findings, number, INELIGIBLE_ROW, i)
    return findings[:, :number].copy()


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
    """Findings about the changes of a proposed assignment: I1 to I5 and I12."""
    findings = sizes_in_range(ints, preference, slots, kind, count)
    if findings.shape[1] > 0:
        return findings  # the other rules look things up by type
    moved, renamed = differing(new[c.OWNER], old[c.OWNER]), differing(new[c.INDEX], old[c.INDEX])
    changed, fresh, has_cores = _changed(
        moved, renamed, new[c.OWNER], old[c.OWNER], new_rows, old_rows, ints, slots, kind, count
    )
    findings = grants_on_open_devices(moved, new[c.OWNER], new_rows, old_rows, devices, nodes)
    if new_rows.shape[1] > 0 or old_rows.shape[1] > 0:
        findings = np.concatenate((devices_within_whole(new[c.OWNER], new_rows, devices), findings), axis=1)
    mine = fresh
    if len(changed) > 0 and ints[c.COUNT][changed].any():
        is_changed = np.zeros(ints.shape[1], np.bool_)
        for s in changed:
            is_changed[s] = True
        mine = devices_of(new[c.OWNER], is_changed)
    added = places_add_up(new, new_rows, devices, ints, changed, kind, count, mine)
    taken = others_stay(moved, renamed, old[c.OWNER], new_rows, old_rows, ints, slots, protected)
    limits = nodes_within_limits(new_nodes, old_nodes, nodes)
    if added.shape[1] + taken.shape[1] + limits.shape[1] > 0:
        findings = np.concatenate((findings, added, taken, limits), axis=1)
    # Sums can be checked only for valid placements.
    if findings.shape[1] == 0 and has_cores:
        node_of = devices[c.NODE_OF]
        touched = _touched_nodes(new_nodes, old_nodes, moved, renamed, new_rows, old_rows, node_of)
        findings = node_sums_match(new, new_nodes, new_rows, node_of, ints, touched)
    return findings


@kernel
def _touched_nodes(
    new_nodes: Ints, old_nodes: Ints, moved: Ints, renamed: Ints, new_rows: Ints, old_rows: Ints, node_of: Ints
) -> Bools:
    """Nodes whose use may have changed: recounting a whole large cluster would be slow."""
    touched = np.zeros(new_nodes.shape[1], np.bool_)
    for row in (c.USED_CPU, c.USED_MEMORY):
        touched |= new_nodes[row] != old_nodes[row]
    for devices in (moved, renamed):
        for d in devices:
            touched[node_of[d]] = True
    for rows in (new_rows, old_rows):
        for i in range(rows.shape[1]):
            touched[rows[c.ROW_NODE, i]] = True
    return touched


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
    """Slots among *slots* with a changed grant or placement; newly owned devices; whether cores or memory change."""
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
