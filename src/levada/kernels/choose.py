"""The hot loops of policies on one GPU type: who gets a first grant, and who grows.

Amounts (`need`, `cost`, `free`) are whole numbers in one unit, jobs stand in the order that breaks ties, and job *j* of
a ragged table owns `table[start[j]:start[j + 1]]`. A *grant* is a step up a job's ladder of sizes: its first size if it
has none yet, then one step at a time.
"""

from __future__ import annotations

from levada.kernels.arrays import Bools, Floats, Ints
from levada.kernels.switch import kernels


def grow_by_gain(first: Ints, cost: Ints, waits: Bools, gain: Floats, start: Ints, free: int, more: Bools) -> Ints:
    """Grants per job when each goes to the job that gains most by it, while a gain is above 0 and something fits.

    *first* is the cost of the next grant, *cost* of those after it; `gain[start[j] + i]` is the gain of grant *i* (from
    0). Ties go to a job that *waits* for its first grant, then by order. A job at the end of its table has had enough,
    unless there is *more* to its ladder than the table shows: then all stop, so that the caller can go on from there.
    """
    return kernels["choose"].grow_by_gain(first, cost, waits, gain, start, free, more)


def best_sum(value: Floats, start: Ints, cost: Ints, slack: int) -> Ints:
    """Steps per job that make the sum of values largest, where *i* steps cost `i * cost[j]` and all cost <= *slack*.

    `value[start[j] + i]` is the value of *i* steps, 0 among them. Of equally good answers, the one in which the last
    job takes least, then the one before it, and so on. O(slack x all steps) time, O(slack x jobs) memory.
    """
    return kernels["choose"].best_sum(value, start, cost, slack)


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
    rules = kernels["choose"]
    return rules.contest(first, cost, waits, length, weight, speed, start, free, more)
