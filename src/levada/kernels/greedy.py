"""Loops of policies on one GPU type: first grants and growth by marginal gain.

Amounts (`need`, `cost`, `free`) are integers in one unit. The order of jobs breaks ties. Job *j* of a ragged table has
`table[start[j]:start[j + 1]]`. A *grant* is one step of a job's sizes: its first size if it has none, then one step.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.kernels.registry import kernel


@kernel
def _before(a: int, b: int, key: Floats, waits: Bools) -> bool:
    """Whether job *a* is before job *b* in the heap."""
    if key[a] != key[b]:
        return bool(key[a] > key[b])
    if waits[a] != waits[b]:
        return bool(waits[a])
    return a < b


@kernel
def _sift_down(heap: Ints, size: int, at: int, key: Floats, waits: Bools) -> None:
    job = heap[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _before(heap[child + 1], heap[child], key, waits):
            child += 1
        if not _before(heap[child], job, key, waits):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = job


@kernel
def grow_by_gain(first: Ints, cost: Ints, waits: Bools, gain: Floats, start: Ints, free: int, more: Bools) -> Ints:
    """Grants per job when each goes to the job with the largest gain, while gains are positive.

    *first* is the cost of the next grant, *cost* of later ones; `gain[start[j] + i]` is the gain of grant *i* (from 0).
    Ties go to a job that *waits* for its first grant, then by order. A job at the end of its table gets no more, unless
    *more* says that the table is cut off: then the loop stops, so that the caller can continue from there.
    """
    jobs = len(first)
    grants = np.zeros(jobs, np.int64)
    key = np.zeros(jobs)
    still_waits = waits.copy()
    heap = np.zeros(jobs, np.int64)
    size = 0
    for job in range(jobs):
        if start[job + 1] > start[job] and gain[start[job]] > 0:
            key[job] = gain[start[job]]
            heap[size] = job
            size += 1
    for at in range(size // 2 - 1, -1, -1):
        _sift_down(heap, size, at, key, still_waits)
    while size > 0 and free > 0:
        job = heap[0]
        price = cost[job] if grants[job] > 0 else first[job]
        can_grow = False
        if price <= free:
            free -= price
            grants[job] += 1
            still_waits[job] = False
            next_gain = start[job] + grants[job]
            if next_gain == start[job + 1]:
                if more[job]:
                    break
            elif gain[next_gain] > 0:
                key[job] = gain[next_gain]
                can_grow = True
        if not can_grow:
            size -= 1
            heap[0] = heap[size]
        if size > 0:
            _sift_down(heap, size, 0, key, still_waits)
    return grants


@kernel
def best_sum(value: Floats, start: Ints, cost: Ints, slack: int) -> Ints:
    """Steps per job that maximise the sum of values; *i* steps cost `i * cost[j]`, all <= *slack*.

    `value[start[j] + i]` is the value of *i* steps, including 0. Among equal solutions: the one in which the last job
    takes least, then the one before it, and so on. O(slack x all steps) time, O(slack x jobs) memory.
    """
    jobs = len(cost)
    choice = np.zeros((jobs, slack + 1), np.int32)
    best = np.zeros(slack + 1)
    before = np.zeros(slack + 1)
    for job in range(jobs):
        before[:] = best
        values = value[start[job] : start[job + 1]]
        chosen = choice[job]
        for k in range(slack + 1):
            best[k] = values[0] + before[k]
        record = values[0]
        for step in range(1, len(values)):
            used = step * cost[job]
            if used > slack:
                break
            # More steps without more value cannot be better, because more slack is never worse.
            if values[step] <= record:
                continue
            record = values[step]
            for k in range(slack + 1 - used):
                candidate = record + before[k]
                if candidate > best[used + k]:
                    best[used + k] = candidate
                    chosen[used + k] = step
    steps = np.zeros(jobs, np.int64)
    for job in range(jobs - 1, -1, -1):
        steps[job] = choice[job, slack]
        slack -= steps[job] * cost[job]
    return steps


@kernel
def _ratio(part: float, whole: float) -> float:
    """`part / whole` by IEEE 754: Python raises for a *whole* of 0, numpy warns about infinity."""
    if whole != 0.0:
        return float(part) / float(whole)
    return np.nan if part == 0.0 or np.isnan(part) else np.copysign(np.inf, part)


@kernel
def pick_winners(
    first: Ints,
    cost: Ints,
    waits: Bools,
    length: Floats,
    weight: Floats,
    speed: Floats,
    start: Ints,
    free: int,
    more: Bools,
) -> Ints:
    """Grants per job when each goes to the winner of AFS-L's pairwise comparison.

    Jobs that cannot be served any more drop out. *length* is the serial time left, `speed[start[j] + i]` the speed
    after *i* grants, *weight* the GPUs of a step. *first*, *cost*, *waits* and *more* as in `grow_by_gain`. The rule is
    in `policies/afs_l.py`.
    """
    jobs = len(first)
    grants = np.zeros(jobs, np.int64)
    price = first.copy()
    has_none = waits.copy()
    active = np.zeros(jobs, np.bool_)
    time = np.zeros(jobs)
    as_short = np.zeros(jobs)
    as_long = np.zeros(jobs)
    # The champion before each position: comparisons before the first change need not be repeated.
    champion_before = np.full(jobs + 1, -1)
    for job in range(jobs):
        active[job] = start[job + 1] - start[job] > 1
    changed = 0
    update_from, update_to = 0, jobs
    while free > 0:
        for job in range(update_from, update_to):
            if active[job]:
                now, then = speed[start[job] + grants[job]], speed[start[job] + grants[job] + 1]
                time[job] = np.inf if has_none[job] else _ratio(length[job], now)
                as_short[job] = _ratio(then - now, now)
                as_long[job] = _ratio(then - now, then)
        for job in range(jobs):
            if active[job] and price[job] > free:
                active[job] = False
                changed = min(changed, job)
        champion = champion_before[changed]
        for rival in range(changed, jobs):
            champion_before[rival] = champion
            if not active[rival]:
                continue
            if champion < 0:
                champion = rival
            elif has_none[champion] and has_none[rival]:
                if length[champion] >= length[rival]:
                    champion = rival
            elif time[champion] < time[rival]:
                if as_long[rival] * weight[champion] > as_short[champion] * weight[rival]:
                    champion = rival
            elif not as_long[champion] * weight[rival] > as_short[rival] * weight[champion]:
                champion = rival
        if champion < 0:
            break
        free -= price[champion]
        price[champion] = cost[champion]
        grants[champion] += 1
        has_none[champion] = False
        if start[champion] + grants[champion] + 1 == start[champion + 1]:
            active[champion] = False
            if more[champion]:
                break
        changed = champion
        update_from, update_to = champion, champion + 1
    return grants


@kernel
def fastest_free(rate: Floats, scale: Floats, capacity: Floats, order: Ints) -> tuple[Floats, Ints, int]:
    """Give each job, row by row, a whole share of the fastest type with room; its type, -1 = none.

    Returns shares, types, and the first row that was not considered: it stops after the first job without room
    anywhere. Ties go to the first type in *order*.
    """
    share, free, type_of = np.zeros(rate.shape), capacity.copy(), np.full(len(scale), -1, np.int64)
    is_open = np.zeros(len(free), np.bool_)
    for kind in order:
        is_open[kind] = free[kind] > 0
    for row in range(len(scale)):
        best, any_open = -1, False
        for kind in order:
            if not is_open[kind]:
                continue
            any_open = True
            if free[kind] >= scale[row] - 1e-9 and (best < 0 or rate[row, kind] > rate[row, best]):
                best = kind
        if best < 0:
            return share, type_of, row + 1 if any_open else row
        if rate[row, best] > 0:
            type_of[row], share[row, best] = best, 1.0
            free[best] -= scale[row]
            is_open[best] = free[best] >= 1e-9
    return share, type_of, len(scale)
