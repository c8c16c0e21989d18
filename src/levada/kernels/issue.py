"""`kernels.steps.issue`, compiled: sending out what may go."""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.kernels.arrays import Bools, Floats, Ints
from levada.kernels.assignment import differing
from levada.kernels.jobs import accrue, plain, special
from levada.kernels.registry import kernel


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
    target_index: Ints,
    held: Ints,
    held_index: Ints,
    claimed: Bools,
) -> tuple[bool, bool, Ints, Ints, Ints]:
    cap = ints.shape[1]
    waiting, nothing = np.empty(len(order), np.int64), np.empty((2, 0), np.int64)
    asking, moves = 0, False
    for s in order:
        moves |= ints[c.ISSUED, s] > 0
        if ints[c.OP, s] != c.OP_NONE and ints[c.ISSUED, s] == 0:
            if floats[c.RETRY_AT, s] > now or special(ints, s):
                return False, False, np.empty((5, 0), np.int64), nothing, nothing
            waiting[asking] = s
            asking += 1
    missing = np.zeros(cap, np.int32)
    devices = differing(target, held) if asking > 0 else np.empty(0, np.int32)
    for d in devices:
        if target[d] >= 0 and held[d] != c.FREE:
            missing[target[d]] += 1
    row_of = np.full(cap, -1, np.int32)
    ready = np.zeros(cap, np.bool_)
    going, stops = 0, False
    for s in waiting[:asking]:
        stops |= ints[c.OP, s] == c.OP_STOP
        if ints[c.OP, s] == c.OP_STOP or missing[s] == 0:
            ready[s] = True
            row_of[s] = going
            going += 1
    if going < asking:
        nothing_moves = going == 0 and not moves
        if nothing_moves or (may_cycle and _circular(ints, order, ready, target, held)):
            return False, False, np.empty((5, 0), np.int64), nothing, nothing
        for s in waiting[:asking]:
            if not ready[s] and ints[c.PHASE, s] == c.PENDING:
                ints[c.REASON, s], ints[c.EVIDENCE, s] = c.WAITS_FOR_DEVICES, missing[s]
    operations = np.empty((5, going), np.int64)
    if going == 0:
        return True, asking > 0, operations, nothing, nothing
    adds, drops = _exchange(devices, stops, ints, row_of, target, target_index, held, held_index, claimed)
    gives = np.zeros(going, np.bool_)
    for i in range(drops.shape[1]):
        gives[drops[1, i]] = True
    moved = np.zeros(going, np.bool_)
    for i in range(adds.shape[1]):
        moved[adds[1, i]] = gives[adds[1, i]]
    for s in waiting[:asking]:
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
                ints[c.RESIZES, s] += resized
        operations[0, r], operations[1, r], operations[2, r] = ints[c.NUMBER, s], op, ints[c.GENERATION, s]
        operations[3, r] = -1 if op == c.OP_STOP else ints[c.TYPE, s]
        operations[4, r] = 0 if op == c.OP_STOP else ints[c.COUNT, s]
    return True, going < asking, operations, adds, drops


@kernel
def _circular(ints: Ints, order: Ints, ready: Bools, target: Ints, held: Ints) -> bool:
    """Whether some job that waits for devices waits, in the end, for itself."""
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
def _exchange(
    devices: Ints,
    stops: bool,
    ints: Ints,
    row_of: Ints,
    target: Ints,
    target_index: Ints,
    held: Ints,
    held_index: Ints,
    claimed: Bools,
) -> tuple[Ints, Ints]:
    """Devices that operations take and give up, with their rows; those that they take are held from now on.

    Ascending, but what is given up by jobs that stop comes last. *devices* are those on which the planes differ.
    """
    most = len(target) if stops else len(devices)
    adds, drops = np.empty((2, len(devices)), np.int64), np.empty((2, most), np.int64)
    taken, given = 0, 0
    for d in devices:
        t, h = target[d], held[d]
        if h >= 0 and row_of[h] >= 0 and ints[c.OP, h] != c.OP_STOP:
            drops[0, given], drops[1, given] = d, row_of[h]
            given += 1
        if t >= 0 and row_of[t] >= 0 and ints[c.OP, t] != c.OP_STOP:
            adds[0, taken], adds[1, taken] = d, row_of[t]
            taken += 1
    if stops:
        for d in range(len(held)):
            h = held[d]
            if h >= 0 and row_of[h] >= 0 and ints[c.OP, h] == c.OP_STOP:
                drops[0, given], drops[1, given] = d, row_of[h]
                given += 1
    for i in range(taken):
        d = adds[0, i]
        held[d], held_index[d], claimed[d] = target[d], target_index[d], True
    return adds[:, :taken].copy(), drops[:, :given].copy()
