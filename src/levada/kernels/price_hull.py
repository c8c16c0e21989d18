"""What rows choose at given prices: corners of their hulls, what they cost, and the GPUs that they take.

Part of `price`, which tells what rows and prices are.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels.registry import kernel


@kernel
def hulls(c: Floats, p: Floats, speed: Floats, cost: Floats, kind: Ints, count: Ints) -> None:
    """Writes the corners of every row's hull, from idle time (kind -1) to its fastest type, and how many there are."""
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
    """The edge of row *i*'s hull on which *r* is, from its left."""
    at = 0
    while at < corners - 2 and speed[i, at + 1] < r:
        at += 1
    return at


@kernel
def total_cost(
    q: Floats, base: Floats, pace: Floats, t: float, speed: Floats, cost: Floats, count: Ints
) -> tuple[float, float]:
    """What all rows cost at level t, and how much that rises with t."""
    total, rise = 0.0, 0.0
    for i in range(len(q)):
        if count[i] > 1:
            r = base[i] + pace[i] * t
            at = piece(speed, i, count[i], r)
            slope = (cost[i, at + 1] - cost[i, at]) / (speed[i, at + 1] - speed[i, at])
            total += q[i] * (cost[i, at] + slope * (r - speed[i, at]))
            rise += q[i] * slope * pace[i]
    return total, rise


@kernel
def affordable(q: Floats, base: Floats, pace: Floats, money: float, speed: Floats, cost: Floats, count: Ints) -> float:
    """The largest t up to 1 that *money* pays for: Newton from the right on a convex function."""
    t = 1.0
    for _ in range(200):
        total, rise = total_cost(q, base, pace, t, speed, cost, count)
        over = total - money
        if over <= 1e-15 * abs(money) or rise <= 0.0:
            break
        following = t - over / rise
        if following >= t:
            break
        t = following
    return max(t, 0.0)


@kernel
def balance(q: Floats, pace: Floats, speed: Floats, cost: Floats, count: Ints, at: Floats, step: Floats) -> float:
    """The t up to 1 at which one more unit of t costs 1; *at* and *step* are room to work in."""
    events = 0
    rise = 0.0
    for i in range(len(q)):
        if pace[i] > 0.0 and count[i] > 1:
            before = (cost[i, 1] - cost[i, 0]) / speed[i, 1]
            rise += q[i] * pace[i] * before
            for v in range(1, count[i] - 1):
                slope = (cost[i, v + 1] - cost[i, v]) / (speed[i, v + 1] - speed[i, v])
                if speed[i, v] < pace[i]:
                    at[events] = speed[i, v] / pace[i]
                    step[events] = q[i] * pace[i] * (slope - before)
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
    pace: Floats,
    t: float,
    speed: Floats,
    kind: Ints,
    count: Ints,
    use: Floats,
    share: Floats,
    weight: float,
) -> None:
    """Adds to *use* the GPUs of each type that rows choose at level t and, unless it is empty, their x to *share*."""
    for i in range(len(q)):
        if count[i] < 2:
            continue
        r = base[i] + pace[i] * t
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
