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
from levada.kernels.jobs import (
    accrue,
    guard_falls,
    protected,
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
