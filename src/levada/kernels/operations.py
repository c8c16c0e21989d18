"""Operations: which one each job needs, which may go out, and sending them.

An operation may go out when every device it adds is observed to be free. Jobs that take cores, memory or parts of
devices are *special*: whether those are free, and what the jobs claim of them, is the caller's part.
`target` and `held` are the `devices` blocks of the two planes.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.assignment import differing, fresh_rows
from levada.kernels.jobs import accrue, plain, plan_operation, special
from levada.kernels.registry import kernel


@kernel
def plan_operations(
    ints: Ints, slots: Ints, chosen: Bools, target: Ints, target_rows: Ints, held: Ints, held_rows: Ints
) -> bool:
    """Note the operation that leads from what each *chosen* job holds to its target; whether there is any.

    A job with an operation under way keeps that one.
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
            fresh, gone = fresh_rows(held_rows, target_rows), fresh_rows(target_rows, held_rows)
            for i in range(len(fresh)):
                differs[target_rows[c.ROW_SLOT, i]] |= fresh[i]
            for i in range(len(gone)):
                differs[held_rows[c.ROW_SLOT, i]] |= gone[i]
    found = False
    for s in slots:
        if chosen[s] and ints[c.ISSUED, s] == 0:
            found |= plan_operation(ints, s, differs[s])
    return bool(found)


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
) -> tuple[bool, bool, bool, Ints, Bools, Ints, Ints, Ints, Ints]:
    """Send every operation that may go out, unless the caller must look first.

    Whether the caller must look (then nothing was sent): at special jobs, or at a cycle of jobs that wait for each
    other; whether operations wait that pause, and others; slots whose operation waits, which of them are ready, and how
    many devices each still misses; and what `send` returns.
    """
    cap = ints.shape[1]
    waiting, asking, moves, pauses, look = np.empty(len(order), np.int64), 0, False, False, False
    for s in order:
        moves |= ints[c.ISSUED, s] > 0
        if ints[c.OP, s] == c.OP_NONE or ints[c.ISSUED, s] != 0:
            continue
        if floats[c.RETRY_AT, s] > now:
            pauses = True
            continue
        look |= ints[c.OP, s] != c.OP_STOP and special(ints, s)
        waiting[asking] = s
        asking += 1
    waiting = waiting[:asking].copy()
    missing, marks = np.zeros(cap, np.int64), np.zeros(cap, np.bool_)
    if asking > 0:
        for d in differing(target[c.OWNER], held[c.OWNER]):
            if target[c.OWNER, d] >= 0 and held[c.OWNER, d] != c.FREE:
                missing[target[c.OWNER, d]] += 1
    ready, going = np.zeros(asking, np.bool_), 0
    for i in range(asking):
        s = waiting[i]
        ready[i] = marks[s] = ints[c.OP, s] == c.OP_STOP or missing[s] == 0
        going += ready[i]
    if going < asking and not look:
        nothing_moves = going == 0 and not moves
        look = nothing_moves or (may_cycle and _is_circular(ints, order, marks, target[c.OWNER], held[c.OWNER]))
    operations, adds, drops = np.empty((5, 0), np.int64), np.empty((2, 0), np.int64), np.empty((2, 0), np.int64)
    if not look and asking > 0:
        operations, adds, drops = send(
            ints, floats, waiting, ready, missing[waiting], now, revision, timeout_s, target, held, claimed
        )
    return bool(look), bool(pauses), going < asking, waiting, ready, missing[waiting], operations, adds, drops


@kernel
def _is_circular(ints: Ints, order: Ints, ready: Bools, target: Ints, held: Ints) -> bool:
    """Whether some job that waits for devices waits, in the end, for itself; *target* and *held* are owners."""
    cap = ints.shape[1]
    on_its_way = np.zeros(cap, np.bool_)
    stuck = 0
    for s in order:
        on_its_way[s] = ints[c.ISSUED, s] > 0 or ready[s]
        stuck += ints[c.OP, s] != c.OP_NONE and not on_its_way[s]
    while stuck > 0:
        waits = np.zeros(cap, np.bool_)
        for d in range(len(target)):
            t, h = target[d], held[d]
            if t >= 0 and h != t and h != c.FREE and (h < 0 or not on_its_way[h]):
                waits[t] = True
        freed = 0
        for s in order:
            if ints[c.OP, s] != c.OP_NONE and not on_its_way[s] and not waits[s]:
                on_its_way[s] = True
                freed += 1
        if freed == 0:
            return True
        stuck -= freed
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
    """Issue the operations of *ready* jobs, and tell the others what they wait for.

    Each gets one more generation, and holds what it adds from now on; the caller adds what special jobs take.
    Per operation number, kind, generation, type and count; then devices that operations add and drop, with their rows.
    """
    row_of, going, stops = np.full(ints.shape[1], -1, np.int32), 0, False
    for i in range(len(waiting)):
        s = waiting[i]
        if ready[i]:
            row_of[s] = going
            going += 1
            stops |= ints[c.OP, s] == c.OP_STOP
        elif ints[c.PHASE, s] == c.PENDING:
            ints[c.REASON, s], ints[c.EVIDENCE, s] = c.WAITS_FOR_DEVICES, missing[i]
    operations = np.empty((5, going), np.int64)
    adds, drops = _exchange(stops, ints, row_of, target, held, claimed)
    gives, moved = np.zeros(going, np.bool_), np.zeros(going, np.bool_)
    for i in range(drops.shape[1]):
        gives[drops[1, i]] = True
    for i in range(adds.shape[1]):
        moved[adds[1, i]] = gives[adds[1, i]]
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
            if plain(ints[c.REASON, s]):
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
                # One that takes a job elsewhere with as many workers is a move, not a resize.
                ints[c.RESIZES, s] += resized
        operations[0, r], operations[1, r], operations[2, r] = ints[c.NUMBER, s], op, ints[c.GENERATION, s]
        operations[3, r] = -1 if op == c.OP_STOP else ints[c.TYPE, s]
        operations[4, r] = 0 if op == c.OP_STOP else ints[c.COUNT, s]
    return operations, adds, drops


@kernel
def _exchange(stops: bool, ints: Ints, row_of: Ints, target: Ints, held: Ints, claimed: Bools) -> tuple[Ints, Ints]:
    """Devices that operations take and give up, with their rows; those that plain jobs take are held from now on.

    Ascending, but what is given up by jobs that stop comes last.
    """
    wants, has = target[c.OWNER], held[c.OWNER]
    devices = differing(wants, has)
    most = len(wants) if stops else len(devices)
    adds, drops = np.empty((2, len(devices)), np.int64), np.empty((2, most), np.int64)
    taken, given = 0, 0
    for d in devices:
        t, h = wants[d], has[d]
        if h >= 0 and row_of[h] >= 0 and ints[c.OP, h] != c.OP_STOP:
            drops[0, given], drops[1, given] = d, row_of[h]
            given += 1
        if t >= 0 and row_of[t] >= 0 and ints[c.OP, t] != c.OP_STOP:
            adds[0, taken], adds[1, taken] = d, row_of[t]
            taken += 1
    for d in range(len(has) if stops else 0):
        h = has[d]
        if h >= 0 and row_of[h] >= 0 and ints[c.OP, h] == c.OP_STOP:
            drops[0, given], drops[1, given] = d, row_of[h]
            given += 1
    for i in range(taken):
        d = adds[0, i]
        if not special(ints, wants[d]):
            held[c.OWNER, d], held[c.INDEX, d], claimed[d] = wants[d], target[c.INDEX, d], True
    return adds[:, :taken].copy(), drops[:, :given].copy()
