"""Split the time of a class of jobs among its jobs; see `solve.class_split`.

`speed` and `left` are the speed and the amount of each kind of time of a class, slowest first, idle time before all
others.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels.registry import kernel
from levada.kernels.sums import total


@kernel
def split_classes(rate: Floats, mass: Floats, of: Ints, order: Ints, need: Floats) -> Floats:
    """Shares (jobs, types) that give each job the rate in *need* out of the *mass* of its class.

    *order* has the jobs by class, and in each class by descending need.
    """
    share = np.zeros((len(of), rate.shape[1]))
    start = 0
    while start < len(order):
        row, end = of[order[start]], start + 1
        while end < len(order) and of[order[end]] == row:
            end += 1
        _share_out(rate[row], mass[row], order[start:end], need, share)
        start = end
    return share


@kernel
def _share_out(rate: Floats, mass: Floats, members: Ints, need: Floats, share: Floats) -> None:
    """`split_classes` for one class. Runs of jobs that mix the same two kinds of time are handled at once."""
    places = np.argsort(rate, kind="mergesort")
    places = places[mass[places] > 0]
    kinds = len(places) + 1
    speed, left = np.zeros(kinds), np.zeros(kinds)
    left[0] = max(len(members) - total(mass), 0.0)
    for i in range(len(places)):
        speed[i + 1], left[i + 1] = rate[places[i]], mass[places[i]]
    part = np.empty(len(members))
    job = 0
    while job < len(members) and kinds > 1:
        low, high = _bracket(speed, left, need[members[job]])
        count = 0
        if high < kinds:
            slower = False
            for kind in range(low):
                slower |= left[kind] > 0
            count = _fill_run(speed[low], speed[high], left[low], left[high], members[job:], need, slower, part)
        if count > 0:
            for i in range(count):
                j = members[job + i]
                if low > 0:
                    share[j, places[low - 1]] = 1.0 - part[i]
                if high > 0:
                    share[j, places[high - 1]] = part[i]
            left[low] -= total(1.0 - part[:count])
            left[high] -= total(part[:count])
            job += count
        else:
            window = _window(speed, left, need[members[job]])
            for kind in range(kinds):
                if kind > 0:
                    share[members[job], places[kind - 1]] = window[kind]
                left[kind] = max(left[kind] - window[kind], 0.0)
            job += 1


@kernel
def _fill_run(
    slow: float,
    fast: float,
    slow_left: float,
    fast_left: float,
    members: Ints,
    need: Floats,
    slower: bool,
    part: Floats,
) -> int:
    """How many jobs may mix two kinds of time before either is used up; *part* is of the fast one.

    While *slower* time is left, a job that needs less than the slow kind must not.
    """
    fast_used, slow_used, span = 0.0, 0.0, fast - slow
    for i in range(len(members)):
        wanted = need[members[i]]
        part[i] = min(max((wanted - slow) / span, 0.0), 1.0) if span > 0 else 0.0
        fast_used += part[i]
        slow_used += 1.0 - part[i]
        if fast_used > fast_left or slow_used > slow_left or (slower and wanted < slow):
            return i
    return len(members)


@kernel
def _bracket(speed: Floats, left: Floats, need: float) -> tuple[int, int]:
    """The nearest kinds of remaining time below and above *need*."""
    low, high = -1, len(left)
    for kind in range(len(left)):
        if left[kind] > 0:
            if speed[kind] <= need or low < 0:
                low = kind
            elif high == len(left):
                high = kind
    return low, high


@kernel
def _window(speed: Floats, left: Floats, need: float) -> Floats:
    """The slowest contiguous unit of remaining time whose mean speed is *need*."""
    window = np.zeros(len(left))
    room, mean, top = 1.0, 0.0, 0
    for kind in range(len(left)):
        part = min(left[kind], room)
        window[kind] = part
        mean += part * speed[kind]
        room -= part
        if part > 0:
            top = kind
    bottom, end = 0, len(left)
    while mean < need:
        while bottom < top and window[bottom] <= 0:
            bottom += 1
        # Sliding within one kind changes nothing: the speeds are equal.
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
