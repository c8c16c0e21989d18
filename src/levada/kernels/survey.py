"""Which jobs a policy gets to see, and what there is for them.

`ints` and `floats` are the blocks of the job table, `target`, `target_nodes` and `target_rows` those of the target
plane, `devices` and `nodes` those of `core.openings`.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.jobs import accrue, guard_falls, protected
from levada.kernels.registry import kernel

#: Devices are looked at in blocks of this length; blocks are slices, see `assignment`.
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
) -> tuple[Ints, Ints, Ints, float, bool, bool]:
    """Bring all jobs' times up to now; the slots that a policy gets to see, in order.

    Then pending jobs that cannot start now and still have a target; pending jobs that became infeasible and do not have
    that reason yet (where there are any, nothing else was done); when the first guard ends; whether some job is out of
    view because of an operation on it; whether some job in view may be near its end. Guards that are not wanted are
    -inf seconds long. Jobs that cannot start get their reason.
    """
    view, barred = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    shown, bars, guard_wake, busy, near_end = 0, 0, np.inf, False, False
    for s in order:
        if _is_newly_infeasible(ints, floats, s, now):
            barred[bars] = s
            bars += 1
    if bars > 0:
        return view[:0], view[:0], barred[:bars].copy(), np.inf, False, False
    for s in order:
        accrue(ints, floats, s, now)
        waits = ints[c.PHASE, s] == c.PENDING and _bar(ints, floats, s, now)
        if waits and ints[c.COUNT, s] > 0:
            barred[bars] = s
            bars += 1
        if ints[c.ISSUED, s] > 0:
            busy = True
            continue
        if protected(ints, s):
            continue
        if ints[c.HELD, s] > 0:
            # It failed a moment ago, or is leaving: its own pause or stop comes first.
            if floats[c.RETRY_AT, s] > now:
                continue
            falls = guard_falls(ints, floats, s, min_run_s, cooldown_s)
            # A job outside its range must not stay as it is, however young it is.
            if falls > now and ints[c.MIN, s] <= ints[c.HELD, s] <= ints[c.MAX, s]:
                guard_wake = min(guard_wake, falls)
                continue
            near_end |= payback and ints[c.RESIZES_IN_PLACE, s] == 0 and not np.isnan(floats[c.STEPS, s])
        if ints[c.PHASE, s] <= c.RESIZING and not waits:
            view[shown] = s
            shown += 1
    nothing = barred[:0].copy()
    return view[:shown].copy(), barred[:bars].copy(), nothing, float(guard_wake), bool(busy), bool(near_end)


@kernel
def _is_newly_infeasible(ints: Ints, floats: Floats, s: int, now: float) -> bool:
    """Whether a pending job became impossible while it ran, and that is not its reason yet."""
    if ints[c.PHASE, s] != c.PENDING or ints[c.FEASIBLE, s] > 0 or ints[c.ASIDE, s] != 0 or floats[c.RETRY_AT, s] > now:
        return False
    reason = ints[c.REASON, s]
    told = reason == c.QUEUE_LIMIT or reason == c.TOO_LARGE or reason == c.UNKNOWN_TYPE or reason == c.USER_LIMIT
    return not told


@kernel
def _bar(ints: Ints, floats: Floats, s: int, now: float) -> bool:
    """Whether a pending job may not be given anything now; its reason says why."""
    if ints[c.ASIDE, s] > 1:
        ints[c.REASON, s], ints[c.EVIDENCE, s] = c.INVALID, ints[c.ASIDE, s]
    if ints[c.ASIDE, s] > 0 or ints[c.FEASIBLE, s] <= 0:
        return True
    if ints[c.WAITS_FOR, s] != 0:
        ints[c.REASON, s] = c.DEPENDENCY if ints[c.WAITS_FOR, s] > 0 else c.DEPENDENCY_FAILED
        ints[c.EVIDENCE, s] = ints[c.WAITS_FOR, s]
        return True
    return floats[c.RETRY_AT, s] > now


@kernel
def waiting(ints: Ints, floats: Floats, order: Ints, now: float) -> tuple[Ints, Ints, bool]:
    """Like `survey`, restricted to pending jobs without a target; only their times are brought up to now.

    The slots that a policy gets to see; newly infeasible ones as in `survey`; whether an operation is under way.
    """
    view, untold, shown, news, busy = np.empty(len(order), np.int64), np.empty(len(order), np.int64), 0, 0, False
    for s in order:
        busy |= ints[c.ISSUED, s] > 0
        if ints[c.COUNT, s] == 0 and _is_newly_infeasible(ints, floats, s, now):
            untold[news] = s
            news += 1
    if news > 0:
        return view[:0], untold[:news].copy(), bool(busy)
    for s in order:
        if ints[c.PHASE, s] == c.PENDING and ints[c.COUNT, s] == 0:
            accrue(ints, floats, s, now)
            if not _bar(ints, floats, s, now):
                view[shown] = s
                shown += 1
    return view[:shown].copy(), untold[:0], bool(busy)


@kernel
def could_fill(ints: Ints, order: Ints, target: Ints) -> bool:
    """Whether some job waits, and some device is free or it needs no whole one; *target* are owners."""
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
    ints: Ints,
    types: int,
    target: Ints,
    target_nodes: Ints,
    target_rows: Ints,
    devices: Ints,
    nodes: Ints,
) -> Ints:
    """Per type what the jobs in *view* may have together: free, or theirs already.

    In 1/1000ths of GPUs; type 0 stands for cores. A device that one of them has counts even where new grants may not
    go, for it may stay there.
    """
    total, shown = np.zeros(types, np.int64), np.zeros(ints.shape[1], np.bool_)
    owner, type_of, left = target[c.OWNER], devices[c.TYPE_OF], devices[c.MILLI_LEFT]
    for s in view:
        shown[s] = True
    if target_rows.shape[1] > 0:
        left = _left_in_parts(left, target_rows, shown, devices[c.PRESENT])
    # Devices of a type mostly stand together; where all have an owner, there is nothing to look up.
    for start in range(0, len(owner), _BLOCK):
        stop, free = start + _BLOCK, 0
        owners, kinds, rest = owner[start:stop], type_of[start:stop], left[start:stop]
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
        for d in range(len(owner)):
            if owner[d] >= 0 and shown[owner[d]] and devices[c.PRESENT, d] > 0:
                total[type_of[d]] += c.WHOLE
    total[c.CORES] = _cores(ints, target_nodes, target_rows, shown, nodes)
    return total


@kernel
def _left_in_parts(left: Ints, rows: Ints, shown: Bools, present: Ints) -> Ints:
    """What jobs under *shown* may have of each device that no job has whole."""
    left, own = left.copy(), np.zeros(len(left), np.int64)
    for i in range(rows.shape[1]):
        d = rows[c.ROW_DEVICE, i]
        if d >= 0 and shown[rows[c.ROW_SLOT, i]]:
            own[d] += rows[c.ROW_MILLI, i]
        elif d >= 0:
            left[d] -= rows[c.ROW_MILLI, i]
    for d in range(len(left)):
        left[d] = max(left[d], own[d]) if present[d] > 0 else 0
    return left


@kernel
def _cores(ints: Ints, used: Ints, rows: Ints, shown: Bools, nodes: Ints) -> int:
    """The cores that jobs under *shown* may have together; those of their workers without a GPU are theirs already."""
    own, total = np.zeros(used.shape[1], np.int64), 0
    for i in range(rows.shape[1]):
        s = rows[c.ROW_SLOT, i]
        if rows[c.ROW_DEVICE, i] < 0 and rows[c.ROW_INDEX, i] >= 0 and shown[s]:
            own[rows[c.ROW_NODE, i]] += ints[c.CPU, s]
    for n in range(len(own)):
        idle = nodes[c.CPU_FREE, n] - used[c.USED_CPU, n] + own[n]
        idle = max(idle, 0 if nodes[c.LOST, n] > 0 else own[n])
        if idle >= c.UNLIMITED // 2:
            return c.UNLIMITED
        total += idle
    return total
