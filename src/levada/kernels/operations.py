"""Operations: plan one per job, find those that may be issued, and issue them.

An operation may be issued when every device that it adds is observed to be free. *Special* jobs take cores, memory or
parts of devices; the caller checks and claims those. `target` and `held` are the `devices` blocks of the two
assignments.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.assignment import added_rows, differing
from levada.kernels.jobs import accrue, is_activity, plan_operation, special
from levada.kernels.registry import kernel


@kernel
def plan_operations(
    ints: Ints, slots: Ints, chosen: Bools, target: Ints, target_rows: Ints, held: Ints, held_rows: Ints
) -> bool:
    """Set the operation of each *chosen* job from held to target; whether there is any.

    A job with an issued operation keeps that one.
    """
    differs = np.zeros(ints.shape[1], np.bool_)
    stays = False
    for s in slots:
        stays |= chosen[s] and ints[c.HELD, s] > 0 and ints[c.COUNT, s] > 0
    if stays:
        for d in differing(target[c.OWNER], held[c.OWNER]):
            for s in (target[c.OWNER, d], held[c.OWNER, d]):
                if s >= 0:
                    differs[s] = True
        if target_rows.shape[1] > 0 or held_rows.shape[1] > 0:
            fresh, gone = added_rows(held_rows, target_rows), added_rows(target_rows, held_rows)
            for i in range(len(fresh)):
                differs[target_rows[c.ROW_SLOT, i]] |= fresh[i]
            for i in range(len(gone)):
                differs[held_rows[c.ROW_SLOT, i]] |= gone[i]
    any_operation = False
    for s in slots:
        if chosen[s] and ints[c.ISSUED, s] == 0:
            any_operation |= plan_operation(ints, s, differs[s])
    return bool(any_operation)


@kernel
def issue(
    ints: Ints,
    floats: Floats,
    order: Ints,
    now: float,
    revision: int,
    timeout_s: float,
    may_cycle: bool,
    target: Ints,
    held: Ints,
    claimed: Bools,
) -> tuple[bool, bool, bool, Ints, Ints, Ints, Ints]:
    """Issue every operation that is ready, unless the caller must intervene first.

    Returns whether the caller must intervene (then nothing was issued) because of special jobs or a cycle of jobs that
    wait for each other; whether operations are in backoff; whether operations wait for devices. For a caller that must
    intervene, three rows: slots with a waiting operation, which of them are ready, and how many devices each still
    lacks. Then the results of `send`.
    """
    cap = ints.shape[1]
    waiting, pending, any_issued, any_in_backoff, must_intervene = (
        np.empty(len(order), np.int64),
        0,
        False,
        False,
        False,
    )
    for s in order:
        any_issued |= ints[c.ISSUED, s] > 0
        if ints[c.OP, s] == c.OP_NONE or ints[c.ISSUED, s] != 0:
            continue
        if floats[c.RETRY_AT, s] > now:
            any_in_backoff = True
            continue
        must_intervene |= ints[c.OP, s] != c.OP_STOP and special(ints, s)
        waiting[pending] = s
        pending += 1
    waiting = waiting[:pending].copy()
    missing, marks = np.zeros(cap, np.int64), np.zeros(cap, np.bool_)
    if pending > 0:
        for d in differing(target[c.OWNER], held[c.OWNER]):
            if target[c.OWNER, d] >= 0 and held[c.OWNER, d] != c.FREE:
                missing[target[c.OWNER, d]] += 1
    ready, ready_count = np.zeros(pending, np.bool_), 0
    for i in range(pending):
        s = waiting[i]
        ready[i] = marks[s] = ints[c.OP, s] == c.OP_STOP or missing[s] == 0
        ready_count += ready[i]
    if ready_count < pending and not must_intervene:
        stalled = ready_count == 0 and not any_issued
        must_intervene = stalled or (may_cycle and _is_circular(ints, order, marks, target[c.OWNER], held[c.OWNER]))
    operations, adds, drops = np.empty((5, 0), np.int64), np.empty((2, 0), np.int64), np.empty((2, 0), np.int64)
    if not must_intervene and pending > 0:
        operations, adds, drops = send(
            ints, floats, waiting, ready, missing[waiting], now, revision, timeout_s, target, held, claimed
        )
    waits = np.empty((3, pending if must_intervene else 0), np.int64)
    if must_intervene:
        waits[0], waits[1], waits[2] = waiting, ready, missing[waiting]
    return bool(must_intervene), bool(any_in_backoff), ready_count < pending, waits, operations, adds, drops


@kernel
def _is_circular(ints: Ints, order: Ints, ready: Bools, target: Ints, held: Ints) -> bool:
    """Whether a job that waits for devices waits, indirectly, for itself; *target*, *held*: owners."""
    cap = ints.shape[1]
    unblocked = np.zeros(cap, np.bool_)
    blocked = 0
    for s in order:
        unblocked[s] = ints[c.ISSUED, s] > 0 or ready[s]
        blocked += ints[c.OP, s] != c.OP_NONE and not unblocked[s]
    while blocked > 0:
        waits = np.zeros(cap, np.bool_)
        for d in range(len(target)):
            t, h = target[d], held[d]
            if t >= 0 and h != t and h != c.FREE and (h < 0 or not unblocked[h]):
                waits[t] = True
        freed = 0
        for s in order:
            if ints[c.OP, s] != c.OP_NONE and not unblocked[s] and not waits[s]:
                unblocked[s] = True
                freed += 1
        if freed == 0:
            return True
        blocked -= freed
    return False


@kernel
def send(
    ints: Ints,
    floats: Floats,
    waiting: Ints,
    ready: Bools,
    missing: Ints,
    now: float,
    revision: int,
    timeout_s: float,
    target: Ints,
    held: Ints,
    claimed: Bools,
) -> tuple[Ints, Ints, Ints]:
    """Issue the operations of *ready* jobs; set the reason of the others to the devices they lack.

    Each operation increases the generation of its job, which from now on holds the added devices; the caller adds what
    special jobs take. Returns number, kind, generation, type and count per operation; then the devices that operations
    add and drop, with their rows.
    """
    row_of, count, stops = np.full(ints.shape[1], -1, np.int32), 0, False
    for i in range(len(waiting)):
        s = waiting[i]
        if ready[i]:
            row_of[s] = count
            count += 1
            stops |= ints[c.OP, s] == c.OP_STOP
        elif ints[c.PHASE, s] == c.PENDING:
            ints[c.REASON, s], ints[c.EVIDENCE, s] = c.WAITS_FOR_DEVICES, missing[i]
    operations = np.empty((5, count), np.int64)
    adds, drops = _exchange(stops, ints, row_of, target, held, claimed)
    drops_any, moved = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    for i in range(drops.shape[1]):
        drops_any[drops[1, i]] = True
    for i in range(adds.shape[1]):
        moved[adds[1, i]] = drops_any[adds[1, i]]
    for s in waiting:
        r = row_of[s]
        if r < 0:
            continue
        accrue(ints, floats, s, now)
        op = ints[c.OP, s]
        ints[c.GENERATION, s] += 1
        ints[c.ISSUED, s] = 1
        floats[c.ISSUED_AT, s] = now
        floats[c.OP_DEADLINE, s] = now + timeout_s
        ints[c.CHANGED, s] = revision
        ints[c.MOVES, s] += moved[r]
        if op == c.OP_STOP:
            ints[c.PHASE, s] = c.STOPPING
            if is_activity(ints[c.REASON, s]):
                ints[c.REASON, s], ints[c.EVIDENCE, s] = c.SAYS_STOPPING, 0
        else:
            resized = ints[c.COUNT, s] != ints[c.HELD, s]
            ints[c.HELD_TYPE, s] = ints[c.TYPE, s]
            ints[c.HELD, s] = max(ints[c.HELD, s], ints[c.COUNT, s])
            if op == c.OP_START:
                ints[c.PHASE, s] = c.STARTING
                ints[c.REASON, s], ints[c.EVIDENCE, s] = c.SAYS_STARTING, 0
            else:
                ints[c.PHASE, s] = c.RESIZING
                by_restart = ints[c.RESIZES_IN_PLACE, s] == 0
                ints[c.REASON, s] = c.SAYS_RESTARTING_RESIZED if by_restart else c.SAYS_RESIZING
                ints[c.EVIDENCE, s] = ints[c.COUNT, s]
                # The same number of workers on other devices is a move, not a resize.
                ints[c.RESIZES, s] += resized
        operations[0, r], operations[1, r], operations[2, r] = ints[c.NUMBER, s], op, ints[c.GENERATION, s]
        operations[3, r] = -1 if op == c.OP_STOP else ints[c.TYPE, s]
        operations[4, r] = 0 if op == c.OP_STOP else ints[c.COUNT, s]
    return operations, adds, drops


@kernel
def _exchange(stops: bool, ints: Ints, row_of: Ints, target: Ints, held: Ints, claimed: Bools) -> tuple[Ints, Ints]:
    """Devices that operations add and drop, with their rows; marks added devices as held.

    Only for jobs that are not special. Ascending, but devices of stopping jobs come last.
    """
    wants, has = target[c.OWNER], held[c.OWNER]
    devices = differing(wants, has)
    most = len(wants) if stops else len(devices)
    adds, drops = np.empty((2, len(devices)), np.int64), np.empty((2, most), np.int64)
    added, dropped = 0, 0
    for d in devices:
        t, h = wants[d], has[d]
        if h >= 0 and row_of[h] >= 0 and ints[c.OP, h] != c.OP_STOP:
            drops[0, dropped], drops[1, dropped] = d, row_of[h]
            dropped += 1
        if t >= 0 and row_of[t] >= 0 and ints[c.OP, t] != c.OP_STOP:
            adds[0, added], adds[1, added] = d, row_of[t]
            added += 1
    for d in range(len(has) if stops else 0):
        h = has[d]
        if h >= 0 and row_of[h] >= 0 and ints[c.OP, h] == c.OP_STOP:
            drops[0, dropped], drops[1, dropped] = d, row_of[h]
            dropped += 1
    for i in range(added):
        d = adds[0, i]
        if not special(ints, wants[d]):
            held[c.OWNER, d], held[c.INDEX, d], claimed[d] = wants[d], target[c.INDEX, d], True
    return adds[:, :added].copy(), drops[:, :dropped].copy()
