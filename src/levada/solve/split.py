"""From what a class gets to what each of its jobs gets, with few types per job."""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.solve.classes import classify
from levada.solve.problem import Problem, Solution


def sparse(problem: Problem, solution: Solution, last: Ints | None = None) -> Floats:
    """Shares (jobs, types) that reach the same levels with few types per job, preferably the *last* one (-1 = none)."""
    rows = classify(problem)
    assert rows.of is not None
    mass: Floats = np.column_stack([np.bincount(rows.of, share, len(rows.rate)) for share in solution.share.T])
    reached = (rows.rate[rows.of] * solution.share).sum(axis=1)
    return shadow(rows.rate, mass, rows.of, reached, last)


def shadow(rate: Floats, mass: Floats, of: Ints, need: Floats, last: Ints | None = None) -> Floats:
    """Shares (jobs, types) that give each job the rate it *needs* out of the *mass* of time that its class has.

    Jobs in descending order of need take, from what is left sorted by speed with idle time first, the slowest interval
    of one unit that is fast enough. Whenever needs can be met at all with these masses, this meets them; nearly every
    job gets one or two types. Jobs of equal need whose *last* type is nearest to what they need choose first.
    """
    jobs, types = len(of), rate.shape[1]
    share = np.zeros((jobs, types))
    distance = np.zeros(jobs)
    if last is not None:
        known = np.where(last >= 0, rate[of, last], np.inf)
        distance = np.abs(known - need)
    order = np.lexsort((distance, -need, of))
    ends = np.cumsum(np.bincount(of, minlength=len(rate)))
    start = 0
    for row, end in enumerate(ends.tolist()):
        members = order[start:end]
        start = end
        if len(members):
            share[members] = _shadow_of_class(rate[row], mass[row], need[members])
    return share


def _shadow_of_class(rate: Floats, mass: Floats, need: Floats) -> Floats:
    """`shadow` for one class, *need* descending. Runs of jobs that mix the same two types are taken at once."""
    jobs, types = len(need), len(rate)
    idle = jobs - float(mass.sum())
    places = [k for k in np.argsort(rate, kind="stable").tolist() if mass[k] > 0]
    speed = [0.0, *(float(rate[k]) for k in places)]
    left = [max(idle, 0.0), *(float(mass[k]) for k in places)]
    taken = np.zeros((jobs, len(left)))
    job = 0
    while job < jobs and len(left) > 1:
        low, high = _bracket(speed, left, float(need[job]))
        count = 0
        if high < len(left):
            rest = need[job:]
            span = speed[high] - speed[low]
            part = np.clip((rest - speed[low]) / span, 0.0, 1.0) if span > 0 else np.zeros(len(rest))
            fits = (np.cumsum(part) <= left[high]) & (np.cumsum(1.0 - part) <= left[low])
            if any(amount > 0 for amount in left[:low]):
                fits &= rest >= speed[low]
            count = len(rest) if fits.all() else int(np.argmin(fits))
            if count:
                taken[job : job + count, low] = 1.0 - part[:count]
                taken[job : job + count, high] = part[:count]
                left[low] -= float((1.0 - part[:count]).sum())
                left[high] -= float(part[:count].sum())
                job += count
        if not count:
            window = _window(speed, left, float(need[job]))
            taken[job] = window
            left = [max(amount - part, 0.0) for amount, part in zip(left, window, strict=True)]
            job += 1
    share = np.zeros((jobs, types))
    share[:, places] = taken[:, 1:]
    return share


def _bracket(speed: list[float], left: list[float], need: float) -> tuple[int, int]:
    """The slowest and the fastest kind of time that is left on both sides of *need*."""
    low, high = -1, len(left)
    for kind, amount in enumerate(left):
        if amount > 0:
            if speed[kind] <= need or low < 0:
                low = kind
            elif high == len(left):
                high = kind
    return low, high


def _window(speed: list[float], left: list[float], need: float) -> list[float]:
    """The slowest unit of time, connected in what is left, whose mean speed is *need*."""
    window = [0.0] * len(left)
    room, mean = 1.0, 0.0
    top = 0
    for kind, amount in enumerate(left):
        part = min(amount, room)
        window[kind] = part
        mean += part * speed[kind]
        room -= part
        if part > 0:
            top = kind
    bottom, end = 0, len(left)
    while mean < need:
        while bottom < top and window[bottom] <= 0:
            bottom += 1
        # Inside one kind the window slides for nothing: what it leaves behind is as fast as what it takes.
        while top < end and (top == bottom or left[top] <= window[top]):
            top += 1
        if top == end:
            break
        gain = speed[top] - speed[bottom]
        most = min(window[bottom], left[top] - window[top])
        step = min(most, (need - mean) / gain) if gain > 0 else most
        window[bottom] -= step
        window[top] += step
        mean += step * gain
        if step < most:
            break
    return window
