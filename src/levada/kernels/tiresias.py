"""Loops of `policies/attained_service.py`: Tiresias queues and their order.

`ints` and `floats` are the blocks of job columns; `slots` are the jobs in view, by (submitted, number). `whole` and
`real` are the numbers of the columns `WHOLE_COLUMNS` and `REAL_COLUMNS` in the two blocks.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels.registry import kernel

WHOLE_COLUMNS = ("number", "milli", "count", "observed")
REAL_COLUMNS = ("submitted", "first_started", "since", "gpu_seconds", "running_s", "waiting_s")
#: Rows of the block of `update_queues`: time of the last promotion; service, running and waiting time since then; the
#: job's counters until now.
PROMOTED, SERVICE, RAN, WAITED, GPU_SECONDS, RUNNING_S, WAITING_S = range(7)


@kernel
def locate(ints: Ints, slots: Ints, whole: Ints, known: Ints, active: Ints) -> tuple[Ints, bool]:
    """The position of each job in the ascending numbers *known*; -1 if it is not there.

    Then whether all jobs are known, and all known ones are *active*, which is ascending too.
    """
    number = ints[whole[0]]
    at = np.full(len(slots), -1, np.int64)
    located, alive = 0, 0
    for row in range(len(slots)):
        wanted = number[slots[row]]
        low, high = 0, len(known)
        while low < high:
            middle = (low + high) >> 1
            if known[middle] < wanted:
                low = middle + 1
            else:
                high = middle
        if low < len(known) and known[low] == wanted:
            at[row] = low
            located += 1
    for place in range(len(active)):
        if alive < len(known) and active[place] == known[alive]:
            alive += 1
    return at, located == len(slots) and alive == len(known)


@kernel
def update_queues(
    ints: Ints,
    floats: Floats,
    slots: Ints,
    whole: Ints,
    real: Ints,
    now: float,
    at: Ints,
    queue: Ints,
    promoted: Floats,
    gpu_seconds: Floats,
    running_s: Floats,
    waiting_s: Floats,
    limits: Floats,
    knob: float,
) -> tuple[Ints, Floats, bool]:
    """Queue of each job and the block of the rows above, after all due moves; whether any moved.

    *at* is its position in the five columns that follow: queue, and counters at the last promotion.
    """
    milli, count, observed = ints[whole[1]], ints[whole[2]], ints[whole[3]]
    level = np.empty(len(slots), np.int64)
    block = np.empty((7, len(slots)), np.float64)
    any_moved = False
    for row in range(len(slots)):
        slot, i = slots[row], at[row]
        since = max(now - floats[real[2], slot], 0.0)
        runs = observed[slot] > 0
        used = floats[real[3], slot] + since * (observed[slot] * (milli[slot] / 1000))
        running = floats[real[4], slot] + (since if runs else 0.0)
        waiting = floats[real[5], slot] + (0.0 if runs else since)
        service, ran, waited = (
            used - gpu_seconds[i],
            running - running_s[i],
            waiting - waiting_s[i],
        )
        by_service = 0
        while by_service < len(limits) and limits[by_service] <= service:
            by_service += 1
        level[row] = max(by_service, min(max(queue[i], 0), len(limits)))
        promoted_at = promoted[i]
        waits = count[slot] == 0 and not runs
        if waits and level[row] > 0 and ran > 0 and waited >= knob * ran:
            level[row], promoted_at, service, ran, waited = 0, now, 0.0, 0.0, 0.0
            any_moved = True
        any_moved |= level[row] != queue[i]
        block[0, row], block[1, row], block[2, row], block[3, row] = promoted_at, service, ran, waited
        block[4, row], block[5, row], block[6, row] = used, running, waiting
    return level, block, bool(any_moved)


@kernel
def queue_order(
    ints: Ints, floats: Floats, slots: Ints, whole: Ints, real: Ints, queue: Ints, promoted: Floats, ran: Floats
) -> Ints:
    """Rows by queue, then by start, then by entry into the queue."""
    count, submitted, first_started = ints[whole[2]], floats[real[0]], floats[real[1]]
    start, entered = np.empty(len(slots), np.float64), np.empty(len(slots), np.float64)
    for row in range(len(slots)):
        slot = slots[row]
        start[row], entered[row] = first_started[slot], submitted[slot]
        if promoted[row] > -np.inf:
            start[row] = promoted[row] if count[slot] > 0 or ran[row] > 0 else np.inf
            entered[row] = promoted[row]
    return _merge_sorted(queue, start, entered)


@kernel
def _before(a: int, b: int, queue: Ints, start: Floats, entered: Floats) -> bool:
    """Whether row *a* is before row *b*, where b > a."""
    if queue[a] != queue[b]:
        return bool(queue[a] < queue[b])
    if start[a] != start[b]:
        return bool(start[a] < start[b])
    return bool(entered[a] <= entered[b])


@kernel
def _merge_sorted(queue: Ints, start: Floats, entered: Floats) -> Ints:
    """Rows sorted by the three keys, stable: merges runs that are already in order."""
    rows = len(queue)
    order, other = np.arange(rows), np.empty(rows, np.int64)
    bounds = np.empty(rows + 1, np.int64)
    runs = 0
    for row in range(rows):
        if row == 0 or not _before(row - 1, row, queue, start, entered):
            bounds[runs] = row
            runs += 1
    bounds[runs] = rows
    while runs > 1:
        merged = 0
        for run in range(0, runs, 2):
            left, middle = bounds[run], bounds[run + 1]
            right = bounds[run + 2] if run + 1 < runs else middle
            a, b = left, middle
            for to in range(left, right):
                if b >= right or (a < middle and _before(order[a], order[b], queue, start, entered)):
                    other[to] = order[a]
                    a += 1
                else:
                    other[to] = order[b]
                    b += 1
            bounds[merged] = left
            merged += 1
        bounds[merged] = rows
        order, other, runs = other, order, merged
    return order


@kernel
def next_move_s(
    ints: Ints,
    slots: Ints,
    whole: Ints,
    count: Ints,
    queue: Ints,
    service: Floats,
    ran: Floats,
    waited: Floats,
    limits: Floats,
    knob: float,
) -> float:
    """Seconds until time alone moves a job, if each has *count* workers from now on; inf if never."""
    milli = ints[whole[1]]
    soonest_s = np.inf
    for row in range(len(slots)):
        gpus = count[row] * (milli[slots[row]] / 1000)
        if gpus > 0:
            if queue[row] < len(limits):
                soonest_s = min(soonest_s, (limits[queue[row]] - service[row]) / gpus)
        elif count[row] == 0 and queue[row] > 0 and ran[row] > 0:
            soonest_s = min(soonest_s, knob * ran[row] - waited[row])
    return float(soonest_s)
