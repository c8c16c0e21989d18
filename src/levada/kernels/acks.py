"""What acknowledgements and ends change: the columns of all jobs, and the whole devices of jobs without rows.

Jobs that take cores, memory, parts of GPUs or parameter servers are *special*: their columns change here like all
others, and their places are left to the caller, who is told which they are.

`ints` and `floats` are the blocks of the job table (`core.layout`), `numbers` and `slot_of` its index, `target` and
`held` the owners of devices on the two planes. A *report* has the rows number and generation.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.assignment import devices_of_any
from levada.kernels.jobs import accrue, find, outlasts, plain, plan_operation, special, tells
from levada.kernels.registry import kernel


@kernel
def _current(ints: Ints, numbers: Ints, slot_of: Ints, report: Ints) -> Ints:
    """Slots of the jobs whose operation is out and that a report is about now, each once."""
    found = np.empty(report.shape[1], np.int64)
    known = 0
    seen = np.zeros(ints.shape[1], np.bool_)
    for i in range(report.shape[1]):
        s = find(numbers, slot_of, report[0, i])
        if s < 0 or seen[s] or ints[c.GENERATION, s] != report[1, i] or ints[c.ISSUED, s] == 0:
            continue
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
) -> tuple[int, Ints, bool, float, Floats]:
    """Operations are complete: all workers run on the target's devices, and the others are free.

    How many jobs it is news of; the special ones, whose next operation the caller plans; whether operations follow for
    the others; when the first time limit ends; and in three rows the kind of operation, the workload and the seconds of
    each job that tells what a restart costs.
    """
    slots = _current(ints, numbers, slot_of, report)
    slots = slots[ints[c.OP][slots] != c.OP_STOP]
    paused = np.empty((3, len(slots)))
    if len(slots) == 0:
        return 0, slots, False, np.inf, paused
    marked, differs = np.zeros(ints.shape[1], np.bool_), np.zeros(ints.shape[1], np.bool_)
    whole, others = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
    wholes, specials, told = 0, 0, 0
    for s in slots:
        if special(ints, s):
            others[specials] = s
            specials += 1
        else:
            marked[s] = True
            whole[wholes] = s
            wholes += 1
        # A first start loads no checkpoint, and an operation that was repeated began at an unknown time.
        op, once = ints[c.OP, s], ints[c.UNSURE, s] == 0 and ints[c.FAILURES, s] == 0
        again = op == c.OP_START and floats[c.FIRST_STARTED, s] < np.inf
        if once and (again or (op == c.OP_RESIZE and ints[c.RESIZES_IN_PLACE, s] == 0)):
            paused[0, told], paused[1, told] = op, ints[c.WORKLOAD, s]
            paused[2, told] = now - floats[c.ISSUED_AT, s]
            told += 1
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
    follows, alarm = False, np.inf
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
        alarm = min(alarm, floats[c.TIME_LIMIT, s] - floats[c.RUNNING_S, s])
        ints[c.FAILURES, s] = ints[c.UNSURE, s] = ints[c.ISSUED, s] = 0
        ints[c.OP, s] = c.OP_NONE
        floats[c.OP_DEADLINE, s] = np.inf
        ints[c.CHANGED, s] = revision
        ints[c.REASON, s], ints[c.EVIDENCE, s] = c.RUNS, 0
        if marked[s]:
            follows |= plan_operation(ints, s, differs[s])
    return len(slots), others[:specials].copy(), bool(follows), float(now + alarm), paused[:, :told]


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
    """Operations gave up the devices they had to.

    How many jobs it is news of; the jobs that have stopped (see `stop`); the special ones among them, and those that
    have shrunk, whose places the caller frees; and whether any device is free now.
    """
    slots = _current(ints, numbers, slot_of, report)
    stops, shrinks = np.zeros(ints.shape[1], np.bool_), np.zeros(ints.shape[1], np.bool_)
    stopped, others = np.empty(len(slots), np.int64), np.empty((2, len(slots)), np.int64)
    ended, special_stops, special_shrinks, freed = 0, 0, 0, False
    for s in slots:
        # A job that must stop altogether by now keeps all it may have until it has stopped.
        shrink = ints[c.OP, s] == c.OP_RESIZE and ints[c.COUNT, s] > 0
        if ints[c.OP, s] == c.OP_STOP:
            stopped[ended] = s
            ended += 1
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
        stopped[:ended].copy(),
        others[0, :special_stops].copy(),
        others[1, :special_shrinks].copy(),
        bool(freed),
    )


@kernel
def stop(slots: Ints, ints: Ints, floats: Floats, now: float, revision: int) -> tuple[Ints, Ints, bool]:
    """These jobs hold nothing any more and are pending.

    Per job what was to follow (an `Intent`, 0 = it waits), and after how many tries it must pause, 0 = not at all; then
    whether operations follow.
    """
    intents, tries = np.empty(len(slots), np.int64), np.zeros(len(slots), np.int64)
    follows = False
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
        lasts = outlasts(ints[c.REASON, s])
        ints[c.STOPPED_BY, s] = ints[c.REASON, s] + c.PACKED * max(ints[c.EVIDENCE, s], 0) if lasts else 0
        if intents[i] == 0:
            if ints[c.COUNT, s] == 0 and plain(ints[c.REASON, s]):
                ints[c.REASON, s], ints[c.EVIDENCE, s] = c.PREEMPTED, 0
            if ints[c.COUNT, s] > 0 and not tells(ints[c.REASON, s]):
                ints[c.REASON, s], ints[c.EVIDENCE, s] = c.SAYS_STARTING, 0
            if ints[c.ASIDE, s] > 0:
                ints[c.REASON, s], ints[c.EVIDENCE, s] = c.SET_ASIDE, ints[c.FAILURES, s]
            follows |= plan_operation(ints, s, False)
        # Only now: what was left of a broken job must not keep its devices through the pause.
        if ints[c.REASON, s] == c.RESTARTING:
            tries[i] = ints[c.RETRIED, s]
        if ints[c.REASON, s] == c.LEFT:
            tries[i] = ints[c.EVIDENCE, s]
        tries[i] = max(tries[i], ints[c.FAILURES, s])
    return intents, tries, bool(follows)


@kernel
def vacate(slots: Ints, ints: Ints, floats: Floats, now: float, target: Ints, held: Ints, claimed: Bools) -> Ints:
    """These jobs, which are over, have nothing any more on either plane; the special ones are left to the caller."""
    gone = np.zeros(ints.shape[1], np.bool_)
    whole, others = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
    wholes, specials = 0, 0
    for s in slots:
        accrue(ints, floats, s, now)
        ints[c.HELD, s], ints[c.HELD_TYPE, s] = 0, -1
        if special(ints, s):
            others[specials] = s
            specials += 1
        else:
            gone[s] = True
            whole[wholes] = s
            wholes += 1
    if wholes > 0:
        for d in devices_of_any(held, target, whole[:wholes], gone):
            if target[d] >= 0 and gone[target[d]]:
                target[d] = c.FREE
            if held[d] >= 0 and gone[held[d]]:
                held[d] = c.FREE
                claimed[d] = False
    return others[:specials].copy()
