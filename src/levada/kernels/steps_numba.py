"""`kernels.steps`, compiled: one pass over jobs, one over devices."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from levada.kernels import columns as c
from levada.kernels.commit_numba import commit
from levada.kernels.issue_numba import issue
from levada.kernels.jobs_numba import (
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
from levada.kernels.state_numba import devices_of_any

__all__ = ["capacity", "commit", "could_fill", "issue", "released", "running", "survey", "vacate", "waiting"]

OFFERED = True

_UNLIMITED = 1 << 50
#: So many devices are looked at at once; blocks are slices, as in `state_numba`.
_BLOCK = 128


@numba.njit(cache=True)
def survey(
    ints: Any, floats: Any, order: Any, now: float, min_run_s: float, cooldown_s: float, payback: bool, *inventory: Any
) -> Any:
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
    return True, view, guard_wake, busy, near_end, capacity(view, ints.shape[1], *inventory)


@numba.njit(cache=True)
def _barred(ints: Any, floats: Any, s: int, now: float) -> bool:
    """Whether a job that waits may not be given anything now, and has been told why."""
    return ints[c.ASIDE, s] == 1 or ints[c.FEASIBLE, s] <= 0 or floats[c.RETRY_AT, s] > now


@numba.njit(cache=True)
def _odd(ints: Any, s: int) -> bool:
    """Whether there is something to tell of a job that waits besides that."""
    aside, reason = ints[c.ASIDE, s], ints[c.REASON, s]
    told = reason == c.QUEUE_LIMIT or reason == c.TOO_LARGE or reason == c.UNKNOWN_TYPE or reason == c.USER_LIMIT
    return ints[c.WAITS_FOR, s] != 0 or aside > 1 or (aside == 0 and ints[c.FEASIBLE, s] <= 0 and not told)


@numba.njit(cache=True)
def waiting(ints: Any, floats: Any, order: Any, now: float, *inventory: Any) -> Any:
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
    return True, view[:shown].copy(), busy, capacity(view[:0], ints.shape[1], *inventory)


@numba.njit(cache=True)
def could_fill(ints: Any, order: Any, target: Any) -> bool:
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


@numba.njit(cache=True)
def _any_free(target: Any) -> bool:
    for start in range(0, len(target), _BLOCK):
        owners, free = target[start : start + _BLOCK], 0
        for d in range(len(owners)):
            free += owners[d] == c.FREE
        if free > 0:
            return True
    return False


@numba.njit(cache=True)
def capacity(
    view: Any,
    slots: int,
    types: int,
    target: Any,
    used_cpu: Any,
    type_of: Any,
    left: Any,
    present: Any,
    cpu_free: Any,
) -> Any:
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


@numba.njit(cache=True)
def _current(ints: Any, numbers: Any, slot_of: Any, report: Any) -> Any:
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


@numba.njit(cache=True)
def running(
    report: Any,
    ints: Any,
    floats: Any,
    numbers: Any,
    slot_of: Any,
    now: float,
    revision: int,
    target: Any,
    held: Any,
    claimed: Any,
) -> Any:
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
    return True, True, found, now + alarm, paused[:, :told]


@numba.njit(cache=True)
def released(
    report: Any,
    ints: Any,
    floats: Any,
    numbers: Any,
    slot_of: Any,
    now: float,
    revision: int,
    target: Any,
    held: Any,
    claimed: Any,
) -> Any:
    slots = _current(ints, numbers, slot_of, report)
    for s in slots:
        if s < 0:
            return False, False, False, False
        if ints[c.OP, s] == c.OP_STOP:
            again = ints[c.FAILURES, s] > 0 or (ints[c.REASON, s] == c.RESTARTING and ints[c.RETRIED, s] > 0)
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
    return True, len(slots) > 0, freed, found


@numba.njit(cache=True)
def vacate(slots: Any, ints: Any, floats: Any, now: float, target: Any, held: Any, claimed: Any) -> bool:
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
