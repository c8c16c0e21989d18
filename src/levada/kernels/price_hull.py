"""Choices of rows at given prices: corners of hulls, costs, and GPUs used.

Part of `price`, which defines rows and prices.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels.registry import kernel


@kernel
def hulls(c: Floats, p: Floats, speed: Floats, cost: Floats, kind: Ints, count: Ints) -> None:
    """Write the corners of every row's hull, from idle time (kind -1) to its fastest type, and their number."""
    rows, types = c.shape
    for i in range(rows):
        speed[i, 0], cost[i, 0], kind[i, 0] = 0.0, 0.0, -1
        at = 0
        while True:
            x, y = speed[i, at], cost[i, at]
            best, slope = -1, np.inf
            for k in range(types):
                if c[i, k] > x:
                    rise = (p[k] - y) / (c[i, k] - x)
                    if rise < slope or (rise == slope and c[i, k] > c[i, best]):
                        best, slope = k, rise
            if best < 0:
                break
            at += 1
            speed[i, at], cost[i, at], kind[i, at] = c[i, best], p[best], best
        count[i] = at + 1


@kernel
def piece(speed: Floats, i: int, corners: int, r: float) -> int:
    """The index of the left corner of the edge of row *i*'s hull that contains *r*."""
    at = 0
    while at < corners - 2 and speed[i, at + 1] < r:
        at += 1
    return at


@kernel
def total_cost(
    q: Floats, base: Floats, level_slope: Floats, t: float, speed: Floats, cost: Floats, count: Ints
) -> tuple[float, float]:
    """The cost of all rows at level t, and its derivative."""
    total, rise = 0.0, 0.0
    for i in range(len(q)):
        if count[i] > 1:
            r = base[i] + level_slope[i] * t
            at = piece(speed, i, count[i], r)
            slope = (cost[i, at + 1] - cost[i, at]) / (speed[i, at + 1] - speed[i, at])
            total += q[i] * (cost[i, at] + slope * (r - speed[i, at]))
            rise += q[i] * slope * level_slope[i]
    return total, rise


@kernel
def affordable(
    q: Floats, base: Floats, level_slope: Floats, budget: float, speed: Floats, cost: Floats, count: Ints
) -> float:
    """The largest t up to 1 whose cost is within *budget*: Newton's method on a convex function."""
    t = 1.0
    for _ in range(200):
        total, rise = total_cost(q, base, level_slope, t, speed, cost, count)
        over = total - budget
        if over <= 1e-15 * abs(budget) or rise <= 0.0:
            break
        following = t - over / rise
        if following >= t:
            break
        t = following
    return max(t, 0.0)


@kernel
def balance(
    q: Floats, level_slope: Floats, speed: Floats, cost: Floats, count: Ints, at: Floats, step: Floats
) -> float:
    """The t up to 1 at which one more unit of t costs 1; *at* and *step* are work space."""
    events = 0
    rise = 0.0
    for i in range(len(q)):
        if level_slope[i] > 0.0 and count[i] > 1:
            before = (cost[i, 1] - cost[i, 0]) / speed[i, 1]
            rise += q[i] * level_slope[i] * before
            for v in range(1, count[i] - 1):
                slope = (cost[i, v + 1] - cost[i, v]) / (speed[i, v + 1] - speed[i, v])
                if speed[i, v] < level_slope[i]:
                    at[events] = speed[i, v] / level_slope[i]
                    step[events] = q[i] * level_slope[i] * (slope - before)
                    events += 1
                before = slope
    if rise >= 1.0:
        return 0.0
    order = np.argsort(at[:events], kind="mergesort")
    for event in order:
        rise += step[event]
        if rise >= 1.0:
            return at[event]
    return 1.0


@kernel
def demand(
    q: Floats,
    base: Floats,
    level_slope: Floats,
    t: float,
    speed: Floats,
    kind: Ints,
    count: Ints,
    use: Floats,
    share: Floats,
    weight: float,
) -> None:
    """Add the GPUs of each type that rows choose at level t to *use*, and their x to *share* unless empty."""
    for i in range(len(q)):
        if count[i] < 2:
            continue
        r = base[i] + level_slope[i] * t
        at = piece(speed, i, count[i], r)
        part = (r - speed[i, at]) / (speed[i, at + 1] - speed[i, at])
        part = min(max(part, 0.0), 1.0)
        left, right = kind[i, at], kind[i, at + 1]
        if left >= 0:
            use[left] += weight * q[i] * (1.0 - part)
            if len(share):
                share[i, left] += weight * (1.0 - part)
        use[right] += weight * q[i] * part
        if len(share):
            share[i, right] += weight * part
