"""Levels one after the other at prices that prove each: water-filling. Part of `price_numba`."""

from __future__ import annotations

import numpy as np
from numba import njit

from levada.kernels.arrays import Bools, Floats, Ints
from levada.kernels.price_hull_numba import affordable, hulls
from levada.kernels.price_numba import max_level

#: Numbers this near to each other, relative to their size, are taken for equal.
_SAME = 1e-9


@njit(cache=True)
def _root(parent: Ints, k: int) -> int:
    while parent[k] != k:
        k = parent[k]
    return k


@njit(cache=True)
def _join(parent: Ints, ends: Ints, mixed: Bools, ring: Bools, one: int, other: int, end: int, along: bool) -> None:
    """Notes that a row, whose other time goes to *end*, can move between two types."""
    a, b = _root(parent, one), _root(parent, other)
    if along and a == b:
        ring[a] = True
    for k in (a, b):
        mixed[k] = mixed[k] or (ends[k] != -2 and ends[k] != end)
        ends[k] = end
    if a != b:
        mixed[b] = mixed[b] or mixed[a]
        ring[b] = ring[b] or ring[a]
        parent[a] = b


@njit(cache=True)
def leximin(c: Floats, q: Floats, n: Floats, seeds: Floats, near: float) -> tuple[bool, Floats, float, Floats, Floats]:
    """Whether it was found; the shares of lexicographically largest levels; bound, prices and plans of the lowest one.

    After each level the rows that can rise no more are those that would have to pay for more. The types that cost
    something belong, from then on, to the rows that pay for them, and leave the problem with what these rows use.
    Where several ways to share them differ in what they leave to others, this gives up.
    """
    rows, types = c.shape
    share = np.zeros((rows, types))
    left = n.copy()
    open_type = n > 0.0
    mass = np.ones(rows)
    state = np.zeros(rows, np.int64)  # 0 rises, 1 stands still on equally fast types, 2 is done
    shared = np.zeros((rows, types))  # what those that stand still use now, of their mass
    first_bound, first_prices = 0.0, np.zeros(types)
    first_plans = np.zeros((0, types))
    failed = False, share, 0.0, first_prices, first_plans
    first = True
    plans = seeds
    # Types joined by rows that use several of them: which belong together, where else these rows run (-1 = nowhere),
    # whether at different places, and whether there is more than one way to share them.
    parent, ends = np.empty(types, np.int64), np.empty(types, np.int64)
    mixed, ring = np.empty(types, np.bool_), np.empty(types, np.bool_)
    while True:
        rising = 0
        items = 0
        for i in range(rows):
            rising += 1 if state[i] == 0 else 0
            items += 1 if state[i] < 2 else 0
        if rising == 0:
            break
        for k in range(types):
            if left[k] <= 1e-13 * n[k]:
                open_type[k] = False
        kinds = np.flatnonzero(open_type)
        row_of = np.empty(items, np.int64)
        cc, qq = np.zeros((items, len(kinds))), np.empty(items)
        base, pace, still = np.zeros(items), np.zeros(items), np.zeros((items, len(kinds)))
        at = 0
        for i in range(rows):
            if state[i] == 2:
                continue
            row_of[at] = i
            qq[at] = q[i] * mass[i]
            fastest = 0.0
            for j in range(len(kinds)):
                fastest = max(fastest, c[i, kinds[j]])
            if fastest <= 0.0:
                return failed
            for j in range(len(kinds)):
                speed_here = c[i, kinds[j]]
                if state[i] == 0 or speed_here >= fastest * (1 - 1e-12):
                    cc[at, j] = speed_here
            if state[i] == 0:
                pace[at] = 1.0
            else:
                base[at] = fastest
                for j in range(len(kinds)):
                    if cc[at, j] > 0.0:
                        cc[at, j] = fastest
                        still[at, j] = shared[i, kinds[j]]
                whole = still[at].sum()
                if whole <= 0.0:
                    return failed
                still[at] /= whole
            at += 1
        n_here = left[kinds]
        ok, t, bound, x, p, next_plans = max_level(
            cc,
            qq,
            n_here,
            base,
            pace,
            still,
            np.ascontiguousarray(plans[:, kinds]) if len(plans) else plans[:, kinds],
            near,
        )
        if not ok:
            return failed
        plans = np.zeros((len(next_plans), types))
        for z in range(len(next_plans)):
            for j in range(len(kinds)):
                plans[z, kinds[j]] = next_plans[z, j]
        if first:
            first = False
            first_bound, first_plans = bound, plans.copy()
            for j in range(len(kinds)):
                first_prices[kinds[j]] = p[j]
        # Prices next to nothing are nothing, if that proves as much.
        spent = (p * n_here).sum()
        speed, cost = np.empty((items, len(kinds) + 1)), np.empty((items, len(kinds) + 1))
        kind, count = np.empty((items, len(kinds) + 1), np.int64), np.zeros(items, np.int64)
        if spent > 0.0:
            cut = p.copy()
            for j in range(len(kinds)):
                if cut[j] * n_here[j] < 1e-8 * spent:
                    cut[j] = 0.0
            hulls(cc, cut, speed, cost, kind, count)
            unit = np.inf
            for at in range(items):
                if pace[at] > 0.0:
                    unit = min(unit, cc[at].max())
            proved = unit * affordable(qq, base, pace * unit, (cut * n_here).sum(), speed, cost, count)
            if proved <= t * (1 + 1e-10):
                p = cut
        hulls(cc, p, speed, cost, kind, count)
        for j in range(types):
            parent[j], ends[j], mixed[j], ring[j] = j, -2, False, False
        finals = 0
        for at in range(items):
            i = row_of[at]
            r = t if state[i] == 0 else base[at]
            corners = count[at]
            free = 1 if corners > 1 and cost[at, 1] == 0.0 else 0  # the corner up to which all is free
            if r > speed[at, free] * (1 + _SAME):
                # It pays: what it uses of priced types is its own from now on.
                edge = free
                while edge < corners - 2 and speed[at, edge + 1] * (1 + _SAME) < r:
                    edge += 1
                # Time spent off its edge is as cheap for it, up to rounding: then shares tell what it uses.
                low, high = kind[at, edge], kind[at, edge + 1]
                off = 1.0 - x[at, high] - x[at, low] if low >= 0 else x[at].sum() - x[at, high]
                rest = 0.0
                if off <= _SAME:
                    part = (r - speed[at, edge]) / (speed[at, edge + 1] - speed[at, edge])
                    part = min(max(part, 0.0), 1.0)
                    share[i, kinds[high]] += mass[i] * part
                    if edge > free:
                        share[i, kinds[low]] += mass[i] * (1.0 - part)
                    else:
                        rest = 1.0 - part
                else:
                    before = -1
                    used = 0.0
                    end = kind[at, free]
                    for j in range(len(kinds)):
                        if p[j] > 0.0 and (x[at, j] > _SAME or j == high or (j == low and edge > free)):
                            _join(parent, ends, mixed, ring, before if before >= 0 else j, j, end, before >= 0)
                            before = j
                            share[i, kinds[j]] += mass[i] * x[at, j]
                            used += x[at, j]
                    rest = max(1.0 - used, 0.0)
                finals += 1 if state[i] == 0 else 0
                mass[i] *= rest
                if free == 0 or rest <= 1e-12:
                    state[i] = 2
                else:
                    state[i] = 3  # the rest runs on the fastest free type
            elif state[i] == 0 and r >= speed[at, free] * (1 - _SAME):
                finals += 1
                state[i] = 3
            elif state[i] == 1:
                state[i] = 3
        for j in range(len(kinds)):
            if ring[_root(parent, j)] and mixed[_root(parent, j)]:
                return failed
        if finals == 0:
            return failed
        for j in range(len(kinds)):
            if p[j] > 0.0:
                open_type[kinds[j]] = False
        for at in range(items):
            i = row_of[at]
            if state[i] != 3:
                continue
            fastest, place, equal = 0.0, -1, 0
            for j in range(len(kinds)):
                if open_type[kinds[j]] and cc[at, j] > fastest:
                    fastest, place = cc[at, j], j
            for j in range(len(kinds)):
                if open_type[kinds[j]] and cc[at, j] >= fastest * (1 - 1e-12):
                    equal += 1
            if place < 0:
                return failed
            if equal == 1:
                share[i, kinds[place]] += mass[i]
                left[kinds[place]] = max(left[kinds[place]] - q[i] * mass[i], 0.0)
                state[i] = 2
            else:
                state[i] = 1
                for j in range(types):
                    shared[i, j] = 0.0
                for j in range(len(kinds)):
                    if open_type[kinds[j]] and cc[at, j] >= fastest * (1 - 1e-12):
                        shared[i, kinds[j]] = x[at, j]
    for i in range(rows):
        if state[i] == 1:
            share[i] += mass[i] * shared[i] / shared[i].sum()
    return True, share, first_bound, first_prices, first_plans
