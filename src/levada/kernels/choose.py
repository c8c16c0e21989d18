"""The hot loops of policies on one GPU type: who gets a first grant, and who grows.

Amounts (`need`, `cost`, `free`) are whole numbers in one unit, jobs stand in the order that breaks ties, and job *j* of
a ragged table owns `table[start[j]:start[j + 1]]`. A *grant* is a step up a job's ladder of sizes: its first size if it
has none yet, then one step at a time.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.kernels.registry import kernel


@kernel
def _before(a: int, b: int, key: Floats, waits: Bools) -> bool:
    """Whether job *a* stands before job *b* in the heap."""
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
    """Grants per job when each goes to the job that gains most by it, while a gain is above 0 and something fits.

    *first* is the cost of the next grant, *cost* of those after it; `gain[start[j] + i]` is the gain of grant *i* (from
    0). Ties go to a job that *waits* for its first grant, then by order. A job at the end of its table has had enough,
    unless there is *more* to its ladder than the table shows: then all stop, so that the caller can go on from there.
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
        stays = False
        if price <= free:
            free -= price
            grants[job] += 1
            still_waits[job] = False
            here = start[job] + grants[job]
            if here == start[job + 1]:
                if more[job]:
                    break
            elif gain[here] > 0:
                key[job] = gain[here]
                stays = True
        if not stays:
            size -= 1
            heap[0] = heap[size]
        if size > 0:
            _sift_down(heap, size, 0, key, still_waits)
    return grants


@kernel
def best_sum(value: Floats, start: Ints, cost: Ints, slack: int) -> Ints:
    """Steps per job that make the sum of values largest, where *i* steps cost `i * cost[j]` and all cost <= *slack*.

    `value[start[j] + i]` is the value of *i* steps, 0 among them. Of equally good answers, the one in which the last
    job takes least, then the one before it, and so on. O(slack x all steps) time, O(slack x jobs) memory.
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
            # More steps of no more value cannot be better, because more slack is never worse.
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
    """`part / whole` as IEEE 754 has it: Python raises for a *whole* of 0, numpy warns of an infinite result."""
    if whole != 0.0:
        return float(part) / float(whole)
    return np.nan if part == 0.0 or np.isnan(part) else np.copysign(np.inf, part)


@kernel
def contest(
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
    """Grants per job when each goes to the winner of AFS-L's contest; who cannot be served any more leaves it.

    *length* is serial time left, `speed[start[j] + i]` the speed after *i* grants, *weight* the GPUs of a step.
    *first*, *cost*, *waits* and *more* as in `grow_by_gain`. The contest's rule is in `policies/afs_l.py`.
    """
    jobs = len(first)
    grants = np.zeros(jobs, np.int64)
    price = first.copy()
    nothing = waits.copy()
    inside = np.zeros(jobs, np.bool_)
    time = np.zeros(jobs)
    as_short = np.zeros(jobs)
    as_long = np.zeros(jobs)
    #: Who was champion before each place: what stands there before a change need not be fought again.
    champion_before = np.full(jobs + 1, -1)
    for job in range(jobs):
        inside[job] = start[job + 1] - start[job] > 1
    changed = 0
    weigh_from, weigh_to = 0, jobs
    while free > 0:
        for job in range(weigh_from, weigh_to):
            if inside[job]:
                now, then = speed[start[job] + grants[job]], speed[start[job] + grants[job] + 1]
                time[job] = np.inf if nothing[job] else _ratio(length[job], now)
                as_short[job] = _ratio(then - now, now)
                as_long[job] = _ratio(then - now, then)
        for job in range(jobs):
            if inside[job] and price[job] > free:
                inside[job] = False
                changed = min(changed, job)
        champion = champion_before[changed]
        for rival in range(changed, jobs):
            champion_before[rival] = champion
            if not inside[rival]:
                continue
            if champion < 0:
                champion = rival
            elif nothing[champion] and nothing[rival]:
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
        nothing[champion] = False
        if start[champion] + grants[champion] + 1 == start[champion + 1]:
            inside[champion] = False
            if more[champion]:
                break
        changed = champion
        weigh_from, weigh_to = champion, champion + 1
    return grants


@kernel
def fastest_free(rate: Floats, scale: Floats, capacity: Floats, order: Ints) -> tuple[Ints, int]:
    """The fastest type for each job that has room for it, in the order of rows, -1 = none; the first row not looked at.

    It ends behind the first job that no type has room for. Ties go to the first type in *order*.
    """
    free, type_of = capacity.copy(), np.full(len(scale), -1, np.int64)
    is_open = np.zeros(len(free), np.bool_)
    for kind in order:
        is_open[kind] = free[kind] > 0
    for row in range(len(scale)):
        best, some = -1, False
        for kind in order:
            if not is_open[kind]:
                continue
            some = True
            if free[kind] >= scale[row] - 1e-9 and (best < 0 or rate[row, kind] > rate[row, best]):
                best = kind
        if best < 0:
            return type_of, row + 1 if some else row
        if rate[row, best] > 0:
            type_of[row] = best
            free[best] -= scale[row]
            is_open[best] = free[best] >= 1e-9
    return type_of, len(scale)
