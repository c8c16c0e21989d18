"""Apply acknowledgements and ends to job columns and whole devices.

Device changes are those of jobs without placement rows. *Special* jobs take cores, memory, parts of GPUs or parameter
servers. Their columns change here like all others; the kernels return their slots, and the caller updates their
placement rows.

`ints` and `floats` are the blocks of the job table (`core.layout`), `numbers` and `slot_of` its index, `target` and
`held` the device owners of the two assignments. A *report* has the rows number and generation.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.assignment import devices_of_any
from levada.kernels.jobs import (
    accrue,
    explains_stop,
    find_slot,
    is_activity,
    plan_operation,
    special,
    stays_until_start,
)
from levada.kernels.registry import kernel


@kernel
def _current(ints: Ints, numbers: Ints, slot_of: Ints, report: Ints) -> Ints:
    """Slots of the reported jobs whose current generation has an issued operation, each once."""
    current = np.empty(report.shape[1], np.int64)
    count = 0
    seen = np.zeros(ints.shape[1], np.bool_)
    for i in range(report.shape[1]):
        s = find_slot(numbers, slot_of, report[0, i])
        if s < 0 or seen[s] or ints[c.GENERATION, s] != report[1, i] or ints[c.ISSUED, s] == 0:
            continue
        seen[s] = True
        current[count] = s
        count += 1
    return current[:count]


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
) -> tuple[int, Ints, bool, float, Floats]:
    """Complete operations: all workers run on the target devices, and other devices are free.

    Returns the number of affected jobs; the special ones, whose next operation the caller plans; whether operations
    follow for the others; the time of the first time limit; and three rows with the operation, workload and seconds of
    each restart that is a sample of the restart cost.
    """
    slots = _current(ints, numbers, slot_of, report)
    slots = slots[ints[c.OP][slots] != c.OP_STOP]
    restart_s = np.empty((3, len(slots)))
    if len(slots) == 0:
        return 0, slots, False, np.inf, restart_s
    marked, differs = np.zeros(ints.shape[1], np.bool_), np.zeros(ints.shape[1], np.bool_)
    whole, others = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
    wholes, specials, samples = 0, 0, 0
    for s in slots:
        if special(ints, s):
            others[specials] = s
            specials += 1
        else:
            marked[s] = True
            whole[wholes] = s
            wholes += 1
        # A first start loads no checkpoint, and the start time of a repeated operation is unknown.
        op, once = ints[c.OP, s], ints[c.UNSURE, s] == 0 and ints[c.FAILURES, s] == 0
        again = op == c.OP_START and floats[c.FIRST_STARTED, s] < np.inf
        if once and (again or (op == c.OP_RESIZE and ints[c.RESIZES_IN_PLACE, s] == 0)):
            restart_s[0, samples], restart_s[1, samples] = op, ints[c.WORKLOAD, s]
            restart_s[2, samples] = now - floats[c.ISSUED_AT, s]
            samples += 1
    if wholes > 0:
        for d in devices_of_any(held, target, whole[:wholes], marked):
            h, t = held[d], target[d]
            if h >= 0 and marked[h]:
                if t != h and ints[c.COUNT, h] > 0:
                    held[d] = c.FREE
                else:
                    claimed[d] = False
                    differs[h] |= t != h
            if t >= 0 and marked[t] and held[d] != t:
                differs[t] = True
    ops_follow, limit_s = False, np.inf
    for s in slots:
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
        limit_s = min(limit_s, floats[c.TIME_LIMIT, s] - floats[c.RUNNING_S, s])
        ints[c.FAILURES, s] = ints[c.UNSURE, s] = ints[c.ISSUED, s] = 0
        ints[c.OP, s] = c.OP_NONE
        floats[c.OP_DEADLINE, s] = np.inf
        ints[c.CHANGED, s] = revision
        ints[c.REASON, s], ints[c.EVIDENCE, s] = c.RUNS, 0
        if marked[s]:
            ops_follow |= plan_operation(ints, s, differs[s])
    return len(slots), others[:specials].copy(), bool(ops_follow), float(now + limit_s), restart_s[:, :samples]


@kernel
def released(
    report: Ints,
    ints: Ints,
    floats: Floats,
    numbers: Ints,
    slot_of: Ints,
    now: float,
    target: Ints,
    held: Ints,
    claimed: Bools,
) -> tuple[int, Ints, Ints, Ints, bool]:
    """Release the devices that operations had to give up.

    Returns the number of affected jobs; the stopped jobs (see `stop`); the special ones among the stopped and among the
    shrunk jobs, whose rows the caller removes; and whether any device became free.
    """
    slots = _current(ints, numbers, slot_of, report)
    stops, shrinks = np.zeros(ints.shape[1], np.bool_), np.zeros(ints.shape[1], np.bool_)
    stopped, others = np.empty(len(slots), np.int64), np.empty((2, len(slots)), np.int64)
    stop_count, special_stops, special_shrinks, freed = 0, 0, 0, False
    for s in slots:
        # A job with a newer target of 0 keeps its devices until it has stopped.
        shrink = ints[c.OP, s] == c.OP_RESIZE and ints[c.COUNT, s] > 0
        if ints[c.OP, s] == c.OP_STOP:
            stopped[stop_count] = s
            stop_count += 1
            if special(ints, s):
                others[0, special_stops] = s
                special_stops += 1
            else:
                stops[s] = True
        elif shrink:
            accrue(ints, floats, s, now)
            ints[c.HELD, s] = ints[c.COUNT, s]
            ints[c.OBSERVED, s] = min(ints[c.OBSERVED, s], ints[c.COUNT, s])
            if special(ints, s):
                others[1, special_shrinks] = s
                special_shrinks += 1
            else:
                shrinks[s] = True
        freed |= shrink or ints[c.OP, s] == c.OP_STOP
    if freed:
        for d in range(len(held)):
            h = held[d]
            if h >= 0 and (stops[h] or (shrinks[h] and target[d] != h)):
                held[d] = c.FREE
                if stops[h]:
                    claimed[d] = False
    return (
        len(slots),
        stopped[:stop_count].copy(),
        others[0, :special_stops].copy(),
        others[1, :special_shrinks].copy(),
        bool(freed),
    )


@kernel
def stop(slots: Ints, ints: Ints, floats: Floats, now: float, revision: int) -> tuple[Ints, Ints, bool]:
    """Make these jobs pending; they no longer hold devices.

    Returns for each job its pending `Intent` (0 = keep waiting) and the number of attempts that determines its backoff
    (0 = no backoff); then whether operations follow.
    """
    intents, tries = np.empty(len(slots), np.int64), np.zeros(len(slots), np.int64)
    ops_follow = False
    for i in range(len(slots)):
        s = slots[i]
        accrue(ints, floats, s, now)
        ints[c.HELD, s], ints[c.HELD_TYPE, s] = 0, -1
        ints[c.OBSERVED, s] = ints[c.UNSURE, s] = ints[c.ISSUED, s] = 0
        ints[c.OP, s] = c.OP_NONE
        floats[c.OP_DEADLINE, s] = np.inf
        floats[c.RUN_WAITING_S, s] = 0.0
        ints[c.CHANGED, s] = revision
        ints[c.PHASE, s] = c.PENDING
        intents[i], ints[c.INTENT, s] = ints[c.INTENT, s], 0
        lasts = explains_stop(ints[c.REASON, s])
        ints[c.STOPPED_BY, s] = ints[c.REASON, s] + c.PACKED * max(ints[c.EVIDENCE, s], 0) if lasts else 0
        if intents[i] == 0:
            if ints[c.COUNT, s] == 0 and is_activity(ints[c.REASON, s]):
                ints[c.REASON, s], ints[c.EVIDENCE, s] = c.PREEMPTED, 0
            if ints[c.COUNT, s] > 0 and not stays_until_start(ints[c.REASON, s]):
                ints[c.REASON, s], ints[c.EVIDENCE, s] = c.SAYS_STARTING, 0
            if ints[c.ASIDE, s] > 0:
                ints[c.REASON, s], ints[c.EVIDENCE, s] = c.SET_ASIDE, ints[c.FAILURES, s]
            ops_follow |= plan_operation(ints, s, False)
        # Only here: remaining workers of a failed job must not keep its devices during the backoff.
        if ints[c.REASON, s] == c.RESTARTING:
            tries[i] = ints[c.RETRIED, s]
        if ints[c.REASON, s] == c.LEFT:
            tries[i] = ints[c.EVIDENCE, s]
        tries[i] = max(tries[i], ints[c.FAILURES, s])
    return intents, tries, bool(ops_follow)


@kernel
def vacate(slots: Ints, ints: Ints, floats: Floats, now: float, target: Ints, held: Ints, claimed: Bools) -> Ints:
    """Remove ended jobs from both assignments; returns the special ones, left to the caller."""
    ended = np.zeros(ints.shape[1], np.bool_)
    whole, others = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
    wholes, specials = 0, 0
    for s in slots:
        accrue(ints, floats, s, now)
        ints[c.HELD, s], ints[c.HELD_TYPE, s] = 0, -1
        if special(ints, s):
            others[specials] = s
            specials += 1
        else:
            ended[s] = True
            whole[wholes] = s
            wholes += 1
    if wholes > 0:
        for d in devices_of_any(held, target, whole[:wholes], ended):
            if target[d] >= 0 and ended[target[d]]:
                target[d] = c.FREE
            if held[d] >= 0 and ended[held[d]]:
                held[d] = c.FREE
                claimed[d] = False
    return others[:specials].copy()
