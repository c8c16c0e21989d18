"""Whole steps of the engine in one call each, for jobs that take whole GPUs and nothing else.

Each function says first whether it did the step. Where it says no, it has changed nothing, and the engine goes the long
way, to the same result. `ints` and `floats` are the blocks of the job table, laid out as `core.layout` says;
`numbers` and `slot_of` its index; `target` and `held` the owners of devices on the two planes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from levada.core import layout as c
from levada.kernels.arrays import Bools, Floats, Ints
from levada.kernels.assignment import devices_of_any
from levada.kernels.jobs import (
    accrue,
    find,
    guard_falls,
    outlasts,
    plain,
    plan_operation,
    protected,
    special,
    tells,
)
from levada.kernels.registry import kernel

_UNLIMITED = 1 << 50
#: So many devices are looked at at once; blocks are slices, as in `state`.
_BLOCK = 128


@kernel
def survey(
    ints: Ints,
    floats: Floats,
    order: Ints,
    now: float,
    min_run_s: float,
    cooldown_s: float,
    payback: bool,
    *inventory: Any,
) -> tuple[bool, Ints, float, bool, bool, Ints]:
    """Brings all jobs' times up to now; the slots that a policy gets to see, in order.

    Then when the first guard falls, whether some job is out of view because an operation on it is under way, whether
    some job in view may be near its end; and `capacity`. Guards that are not wanted are -inf seconds long.
    """
    view = np.empty(len(order), np.int64)
    shown, guard_wake, busy, near_end = 0, np.inf, False, False
    barred = np.zeros(ints.shape[1], np.bool_)
    for s in order:
        if ints[c.PHASE, s] != c.PENDING:
            continue
        barred[s] = _barred(ints, floats, s, now)
        if _odd(ints, s) or (barred[s] and ints[c.COUNT, s] > 0):
            return False, view[:0], np.inf, False, False, view[:0]
    for s in order:
        accrue(ints, floats, s, now)
        if ints[c.ISSUED, s] > 0:
            busy = True
            continue
        if protected(ints, s):
            continue
        if ints[c.HELD, s] > 0:
            if floats[c.RETRY_AT, s] > now:
                continue
            falls = guard_falls(ints, floats, s, min_run_s, cooldown_s)
            # Who is outside its range shall not stay as it is, however young it is.
            if falls > now and ints[c.MIN, s] <= ints[c.HELD, s] <= ints[c.MAX, s]:
                guard_wake = min(guard_wake, falls)
                continue
            near_end |= payback and ints[c.RESIZES_IN_PLACE, s] == 0 and not np.isnan(floats[c.STEPS, s])
        if ints[c.PHASE, s] <= c.RESIZING and not barred[s]:
            view[shown] = s
            shown += 1
    view = view[:shown].copy()
    there = capacity(view, ints.shape[1], *inventory)
    return True, view, float(guard_wake), bool(busy), bool(near_end), there


@kernel
def _barred(ints: Ints, floats: Floats, s: int, now: float) -> bool:
    """Whether a job that waits may not be given anything now, and has been told why."""
    return ints[c.ASIDE, s] == 1 or ints[c.FEASIBLE, s] <= 0 or floats[c.RETRY_AT, s] > now


@kernel
def _odd(ints: Ints, s: int) -> bool:
    """Whether there is something to tell of a job that waits besides that."""
    aside, reason = ints[c.ASIDE, s], ints[c.REASON, s]
    told = reason == c.QUEUE_LIMIT or reason == c.TOO_LARGE or reason == c.UNKNOWN_TYPE or reason == c.USER_LIMIT
    return ints[c.WAITS_FOR, s] != 0 or aside > 1 or (aside == 0 and ints[c.FEASIBLE, s] <= 0 and not told)


@kernel
def waiting(ints: Ints, floats: Floats, order: Ints, now: float, *inventory: Any) -> tuple[bool, Ints, bool, Ints]:
    """As `survey`, for jobs that wait and shall have nothing so far: the slots that a policy gets to see, in order.

    Then whether some operation is under way, and `capacity`. Only their times are brought up to now.
    """
    view = np.empty(len(order), np.int64)
    found, busy = 0, False
    for s in order:
        busy |= ints[c.ISSUED, s] > 0
        if ints[c.PHASE, s] == c.PENDING and ints[c.COUNT, s] == 0:
            if _odd(ints, s):
                return False, view[:0], False, view[:0]
            view[found] = s
            found += 1
    shown = 0
    for s in view[:found]:
        accrue(ints, floats, s, now)
        if not _barred(ints, floats, s, now):
            view[shown] = s
            shown += 1
    # Jobs that wait have nothing that they could keep.
    return True, view[:shown].copy(), bool(busy), capacity(view[:0], ints.shape[1], *inventory)


@kernel
def could_fill(ints: Ints, order: Ints, target: Ints) -> bool:
    """Whether some job waits, and some device is free or it needs no whole one."""
    waits = False
    # Who came last mostly waits, if anybody does.
    for s in order[::-1]:
        if ints[c.PHASE, s] == c.PENDING and ints[c.COUNT, s] == 0 and ints[c.FEASIBLE, s] > 0:
            if ints[c.MILLI, s] <= 0 or ints[c.MILLI, s] % c.WHOLE != 0:
                return True
            if not waits:
                waits = True
                if _any_free(target):
                    return True
    return False


@kernel
def _any_free(target: Ints) -> bool:
    for start in range(0, len(target), _BLOCK):
        owners, free = target[start : start + _BLOCK], 0
        for d in range(len(owners)):
            free += owners[d] == c.FREE
        if free > 0:
            return True
    return False


@kernel
def capacity(
    view: Ints,
    slots: int,
    types: int,
    target: Ints,
    used_cpu: Ints,
    type_of: Ints,
    left: Ints,
    present: Bools,
    cpu_free: Ints,
) -> Ints:
    """Per type what the jobs in *view* may have together where only whole devices have owners; None: not told here.

    *inventory* are the number of types, the owners of devices on the target plane, and the cores in use per node; its
    type, what others leave of it and whether it is there per device; and the cores that they leave per node. Type 0
    stands for cores.
    """
    total = np.zeros(types, np.int64)
    # Devices of a type mostly stand together; where all have an owner, there is nothing to look up.
    for start in range(0, len(target), _BLOCK):
        stop, free = start + _BLOCK, 0
        owners, kinds, rest = target[start:stop], type_of[start:stop], left[start:stop]
        for d in range(len(owners)):
            free += owners[d] < 0
        if free == 0:
            continue
        first, mixed, sums = kinds[0], np.int64(0), 0
        for d in range(len(owners)):
            mixed |= kinds[d] ^ first
            sums += rest[d] if owners[d] < 0 else 0
        if mixed == 0:
            total[first] += sums
        else:
            for d in range(len(owners)):
                if owners[d] < 0:
                    total[kinds[d]] += rest[d]
    if len(view) > 0:
        shown = np.zeros(slots, np.bool_)
        for s in view:
            shown[s] = True
        for d in range(len(target)):
            if target[d] >= 0 and shown[target[d]] and present[d]:
                total[type_of[d]] += c.WHOLE
    cores = 0
    for n in range(len(cpu_free)):
        idle = max(cpu_free[n] - used_cpu[n], 0)
        if idle >= _UNLIMITED // 2:
            cores = _UNLIMITED
            break
        cores += idle
    total[0] = cores
    return total


@kernel
def _current(ints: Ints, numbers: Ints, slot_of: Ints, report: Ints) -> Ints:
    """Slots of the jobs that a report speaks of now, each once, whose operation is out; -1 in front: the long way."""
    found = np.empty(report.shape[1], np.int64)
    known = 0
    seen = np.zeros(ints.shape[1], np.bool_)
    for i in range(report.shape[1]):
        s = find(numbers, slot_of, report[0, i])
        if s < 0 or seen[s] or ints[c.GENERATION, s] != report[1, i] or ints[c.ISSUED, s] == 0:
            continue
        if special(ints, s):
            found[0] = -1
            return found[:1]
        seen[s] = True
        found[known] = s
        known += 1
    return found[:known]


@kernel
def running(
    report: Ints,
    ints: Ints,
    floats: Floats,
    numbers: Ints,
    slot_of: Ints,
    now: float,
    revision: int,
    target: Ints,
    held: Ints,
    claimed: Bools,
) -> tuple[bool, bool, bool, float, Floats]:
    """Operations are complete; whether it is news, and whether operations follow.

    Then when the first time limit ends; kind of operation and workload of the jobs that tell what a restart costs, and
    the seconds that it took, in three rows. *report* has the rows number and generation.
    """
    slots = _current(ints, numbers, slot_of, report)
    paused = np.empty((3, len(slots)))
    if len(slots) > 0 and slots[0] < 0:
        return False, False, False, np.inf, paused[:, :0]
    marked = np.zeros(ints.shape[1], np.bool_)
    any_of_them = False
    for s in slots:
        if ints[c.OP, s] != c.OP_STOP:
            marked[s] = True
            any_of_them = True
    if not any_of_them:
        return True, False, False, np.inf, paused[:, :0]
    told = 0
    for s in slots:
        # A first start loads no checkpoint, and an operation that was asked for again began nobody knows when.
        op, once = ints[c.OP, s], ints[c.UNSURE, s] == 0 and ints[c.FAILURES, s] == 0
        again = op == c.OP_START and floats[c.FIRST_STARTED, s] < np.inf
        if once and (again or (op == c.OP_RESIZE and ints[c.RESIZES_IN_PLACE, s] == 0)):
            paused[0, told], paused[1, told] = op, ints[c.WORKLOAD, s]
            paused[2, told] = now - floats[c.ISSUED_AT, s]
            told += 1
    differs = np.zeros(ints.shape[1], np.bool_)
    for d in devices_of_any(held, target, slots, marked):
        h, t = held[d], target[d]
        if h >= 0 and marked[h]:
            if t != h and ints[c.COUNT, h] > 0:
                held[d] = c.FREE
            else:
                claimed[d] = False
                differs[h] |= t != h
        if t >= 0 and marked[t] and held[d] != t:
            differs[t] = True
    found, alarm = False, np.inf
    for s in slots:
        if not marked[s]:
            continue
        accrue(ints, floats, s, now)
        if ints[c.COUNT, s] > 0:
            ints[c.HELD, s] = ints[c.COUNT, s]
        if ints[c.OP, s] == c.OP_START:
            ints[c.RESTARTS, s] += floats[c.FIRST_STARTED, s] < np.inf
            floats[c.FIRST_STARTED, s] = min(floats[c.FIRST_STARTED, s], now)
            floats[c.STARTED, s] = now
            floats[c.RUN_RUNNING_S, s] = floats[c.RUN_GPU_SECONDS, s] = floats[c.RUN_WAITING_S, s] = 0.0
            ints[c.SAVED, s] = ints[c.STOPPED_BY, s] = 0
        floats[c.RESIZED, s] = floats[c.REPORTED, s] = now
        ints[c.OBSERVED, s] = ints[c.HELD, s]
        ints[c.ACCEPTS_LOSS, s] = 0
        if ints[c.BELOW_FIXED, s] > 0 and ints[c.HELD, s] == ints[c.FIXED, s]:
            ints[c.MIN, s] = ints[c.DESIRED, s] = ints[c.FIXED, s]
            ints[c.BELOW_FIXED, s] = 0
        ints[c.PHASE, s] = c.RUNNING
        ints[c.RAN, s] = ints[c.GENERATION, s]
        alarm = min(alarm, floats[c.TIME_LIMIT, s] - floats[c.RUNNING_S, s])
        ints[c.FAILURES, s] = ints[c.UNSURE, s] = 0
        ints[c.ISSUED, s] = 0
        floats[c.OP_DEADLINE, s] = np.inf
        ints[c.CHANGED, s] = revision
        ints[c.REASON, s], ints[c.EVIDENCE, s] = c.RUNS, 0
        found |= plan_operation(ints, s, differs[s])
    return True, True, bool(found), float(now + alarm), paused[:, :told]


@kernel
def released(
    report: Ints,
    ints: Ints,
    floats: Floats,
    numbers: Ints,
    slot_of: Ints,
    now: float,
    revision: int,
    target: Ints,
    held: Ints,
    claimed: Bools,
) -> tuple[bool, bool, bool, bool]:
    """Operations gave up what they had to; whether it is news, whether anything is free now, and operations follow."""
    slots = _current(ints, numbers, slot_of, report)
    for s in slots:
        if s < 0:
            return False, False, False, False
        if ints[c.OP, s] == c.OP_STOP:
            again = ints[c.FAILURES, s] > 0 or (ints[c.REASON, s] == c.RESTARTING and ints[c.RETRIED, s] > 0)
            again = again or (ints[c.REASON, s] == c.LEFT and ints[c.EVIDENCE, s] > 0)
            if ints[c.INTENT, s] != 0 or ints[c.ASIDE, s] != 0 or again:
                return False, False, False, False
    stops = np.zeros(ints.shape[1], np.bool_)
    shrinks = np.zeros(ints.shape[1], np.bool_)
    found = freed = False
    for s in slots:
        stops[s] = ints[c.OP, s] == c.OP_STOP
        shrinks[s] = ints[c.OP, s] == c.OP_RESIZE and ints[c.COUNT, s] > 0
        freed |= stops[s] or shrinks[s]
    if freed:
        for d in range(len(held)):
            h = held[d]
            if h >= 0 and (stops[h] or (shrinks[h] and target[d] != h)):
                held[d] = c.FREE
                if stops[h]:
                    claimed[d] = False
    for s in slots:
        if stops[s] or shrinks[s]:
            accrue(ints, floats, s, now)
        if shrinks[s]:
            ints[c.HELD, s] = ints[c.COUNT, s]
            ints[c.OBSERVED, s] = min(ints[c.OBSERVED, s], ints[c.COUNT, s])
        if stops[s]:
            ints[c.HELD, s], ints[c.HELD_TYPE, s] = 0, -1
            ints[c.OBSERVED, s] = ints[c.UNSURE, s] = ints[c.ISSUED, s] = ints[c.RAN, s] = 0
            floats[c.OP_DEADLINE, s] = np.inf
            floats[c.RUN_WAITING_S, s] = 0.0
            ints[c.CHANGED, s] = revision
            ints[c.PHASE, s] = c.PENDING
            lasts = outlasts(ints[c.REASON, s])
            ints[c.STOPPED_BY, s] = ints[c.REASON, s] + c.PACKED * max(ints[c.EVIDENCE, s], 0) if lasts else 0
            if ints[c.COUNT, s] == 0 and plain(ints[c.REASON, s]):
                ints[c.REASON, s], ints[c.EVIDENCE, s] = c.PREEMPTED, 0
            if ints[c.COUNT, s] > 0 and not tells(ints[c.REASON, s]):
                ints[c.REASON, s], ints[c.EVIDENCE, s] = c.SAYS_STARTING, 0
            found |= plan_operation(ints, s, False)
    return True, len(slots) > 0, bool(freed), bool(found)


@kernel
def vacate(slots: Ints, ints: Ints, floats: Floats, now: float, target: Ints, held: Ints, claimed: Bools) -> bool:
    """These jobs, which are over, have nothing any more on either plane; their times are up to now."""
    gone = np.zeros(ints.shape[1], np.bool_)
    for s in slots:
        if special(ints, s):
            return False
        gone[s] = True
    for s in slots:
        accrue(ints, floats, s, now)
        ints[c.HELD, s], ints[c.HELD_TYPE, s] = 0, -1
    for d in devices_of_any(held, target, slots, gone):
        if target[d] >= 0 and gone[target[d]]:
            target[d] = c.FREE
        if held[d] >= 0 and gone[held[d]]:
            held[d] = c.FREE
            claimed[d] = False
    return True
