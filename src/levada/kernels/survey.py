"""The jobs in a policy's view, and the capacity for them.

`ints` and `floats` are the blocks of the job table, `target`, `target_nodes` and `target_rows` those of the target
assignment, `devices` and `nodes` those of `core.allocatable`.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.jobs import accrue, guard_end, protected
from levada.kernels.registry import kernel

#: Length of a block of devices; see `assignment`.
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
) -> tuple[bool, Ints, Ints, float, bool, bool]:
    """Update the times of all jobs, unless pending jobs became infeasible without that reason.

    Returns whether that is done (if not, nothing changed); the slots in view, in order; pending jobs that cannot start
    now and still have a target, or else those that became infeasible; the end of the first guard; whether a job is out
    of view because of an operation; whether a job in view may be near its end. Disabled guards last -inf seconds. Jobs
    that cannot start get their reason.
    """
    view, barred = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    shown, bar_count, guard_wake, busy, near_end = 0, 0, np.inf, False, False
    for s in order:
        if _is_newly_infeasible(ints, floats, s, now):
            barred[bar_count] = s
            bar_count += 1
    if bar_count > 0:
        return False, view[:0], barred[:bar_count].copy(), np.inf, False, False
    for s in order:
        accrue(ints, floats, s, now)
        cannot_start = ints[c.PHASE, s] == c.PENDING and _is_barred(ints, floats, s, now)
        if cannot_start and ints[c.COUNT, s] > 0:
            barred[bar_count] = s
            bar_count += 1
        if ints[c.ISSUED, s] > 0:
            busy = True
            continue
        if protected(ints, s):
            continue
        if ints[c.HELD, s] > 0:
            # It is in backoff or stopping: that comes first.
            if floats[c.RETRY_AT, s] > now:
                continue
            guard_until = guard_end(ints, floats, s, min_run_s, cooldown_s)
            # Guards do not apply to a job outside its range.
            if guard_until > now and ints[c.MIN, s] <= ints[c.HELD, s] <= ints[c.MAX, s]:
                guard_wake = min(guard_wake, guard_until)
                continue
            near_end |= payback and ints[c.RESIZES_IN_PLACE, s] == 0 and not np.isnan(floats[c.STEPS, s])
        if ints[c.PHASE, s] <= c.RESIZING and not cannot_start:
            view[shown] = s
            shown += 1
    return True, view[:shown].copy(), barred[:bar_count].copy(), float(guard_wake), bool(busy), bool(near_end)


@kernel
def _is_newly_infeasible(ints: Ints, floats: Floats, s: int, now: float) -> bool:
    """Whether a pending job became infeasible while it ran, and lacks that reason."""
    if ints[c.PHASE, s] != c.PENDING or ints[c.FEASIBLE, s] > 0 or ints[c.ASIDE, s] != 0 or floats[c.RETRY_AT, s] > now:
        return False
    reason = ints[c.REASON, s]
    has_reason = reason == c.QUEUE_LIMIT or reason == c.TOO_LARGE or reason == c.UNKNOWN_TYPE or reason == c.USER_LIMIT
    return not has_reason


@kernel
def _is_barred(ints: Ints, floats: Floats, s: int, now: float) -> bool:
    """Whether a pending job cannot get a grant now; sets the reason."""
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
def survey_pending(ints: Ints, floats: Floats, order: Ints, now: float) -> tuple[Ints, Ints, bool]:
    """Like `survey`, restricted to pending jobs without a target; updates only their times.

    Returns the slots in view; newly infeasible ones as in `survey`; whether an operation is in progress.
    """
    view, barred, shown, bars, busy = (
        np.empty(len(order), np.int64),
        np.empty(len(order), np.int64),
        0,
        0,
        False,
    )
    for s in order:
        busy |= ints[c.ISSUED, s] > 0
        if ints[c.COUNT, s] == 0 and _is_newly_infeasible(ints, floats, s, now):
            barred[bars] = s
            bars += 1
    if bars > 0:
        return view[:0], barred[:bars].copy(), bool(busy)
    for s in order:
        if ints[c.PHASE, s] == c.PENDING and ints[c.COUNT, s] == 0:
            accrue(ints, floats, s, now)
            if not _is_barred(ints, floats, s, now):
                view[shown] = s
                shown += 1
    return view[:shown].copy(), barred[:0], bool(busy)


@kernel
def can_fill(ints: Ints, order: Ints, target: Ints) -> bool:
    """Whether a pending job could use a free device, or needs no whole one; *target* are owners."""
    checked_free = False
    # Pending jobs are mostly the latest ones.
    for s in order[::-1]:
        if ints[c.PHASE, s] == c.PENDING and ints[c.COUNT, s] == 0 and ints[c.FEASIBLE, s] > 0:
            if ints[c.MILLI, s] <= 0 or ints[c.MILLI, s] % c.WHOLE != 0:
                return True
            if not checked_free:
                checked_free = True
                if _any_free(target):
                    return True
    return False


@kernel
def _any_free(target: Ints) -> bool:
    """Whether any device is free."""
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
    """Capacity per type for the jobs in *view*: free, or held by them.

    In 1/1000ths of GPUs; type 0 is cores. A device of such a job counts even if it accepts no new grants, because the
    job may stay there.
    """
    total, shown = np.zeros(types, np.int64), np.zeros(ints.shape[1], np.bool_)
    owner, type_of, left = target[c.OWNER], devices[c.TYPE_OF], devices[c.MILLI_LEFT]
    for s in view:
        shown[s] = True
    if target_rows.shape[1] > 0:
        left = _left_in_parts(left, target_rows, shown, devices[c.PRESENT])
    # Devices of a type are mostly adjacent; blocks in which all have an owner are skipped.
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
    """What *shown* jobs may have of each device that is not assigned whole."""
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
    """The cores for *shown* jobs, including those of their own workers without a GPU."""
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
