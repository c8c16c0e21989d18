"""Water-filling by prices, one proved level after the other. Part of `price`.

After each level, the rows that cannot rise further are those that would have to pay for more. The types with a price
then belong to the rows that pay for them, and leave the problem together with what these rows use.

A row is in one of four states. *share* is the settled part of its time, *mass* the fraction that is not settled yet.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.kernels.price import max_level
from levada.kernels.price_hull import affordable, hulls
from levada.kernels.registry import kernel
from levada.kernels.sums import total as add_up

#: Relative tolerances for equal numbers, and for equal speeds.
_SAME, _AS_FAST = 1e-9, 1 - 1e-12
#: A smaller fraction of a type counts as 0.
_NOTHING = 1e-13
#: States: rising; constant on equally fast types; done; about to end on the fastest free type.
_RISES, _CONSTANT, _DONE, _ENDS = 0, 1, 2, 3


@kernel
def leximin(c: Floats, q: Floats, n: Floats, seeds: Floats, near: float) -> tuple[bool, Floats, float, Floats, Floats]:
    """Whether it was solved; the leximin shares; bound, prices and plans of the lowest level.

    Gives up where several ways to share priced types differ in what they leave to others.
    """
    rows, types = c.shape
    share, shared = np.zeros((rows, types)), np.zeros((rows, types))
    left, open_type = n.copy(), n > 0.0
    mass, state = np.ones(rows), np.zeros(rows, np.int64)
    first_bound, first_prices, plans = 0.0, np.zeros(types), seeds
    first_plans = np.zeros((0, types))
    failed = False, share, 0.0, first_prices, first_plans
    first = True
    stride, pause, failures = 1, 0, 0
    while (state == _RISES).any():
        for k in range(types):
            if left[k] <= _NOTHING * n[k]:
                open_type[k] = False
        batch, reached = _fix_batch(c, q, n, open_type, left, share, state, stride if pause <= 0 else 1)
        kinds = np.flatnonzero(open_type)
        ok, row_of, cc, qq, base, level_slope, fixed_share = _problem(c, q, kinds, mass, state, shared)
        if not ok:
            return failed
        n_here = left[kinds]
        ok, t, bound, x, p, next_plans = max_level(
            cc, qq, n_here, base, level_slope, fixed_share, _pick(plans, kinds), near
        )
        if len(batch) and (not ok or t < reached[-1] * _AS_FAST):
            _undo(q, left, share, state, batch)
            failures += 1
            # Rows up to the level of the others can certainly leap; wait before trying more.
            stride = (reached <= t).sum() if ok else 1
            pause = 0 if stride > 1 else 2**failures
            continue
        if not ok:
            return failed
        plans = _expand(next_plans, kinds, types)
        if first:
            first = False
            first_bound, first_plans = bound, plans.copy()
            first_prices[kinds] = p
        p = _cut(cc, qq, n_here, base, level_slope, t, p)
        stride, pause = 1 if p.any() else 2 * stride, pause - 1
        if not _fix_rows(row_of, kinds, cc, p, t, base, x, share, mass, state):
            return failed
        for j in range(len(kinds)):
            if p[j] > 0.0:
                open_type[kinds[j]] = False
        if not _end(row_of, kinds, cc, q, x, open_type, left, share, shared, mass, state):
            return failed
    for i in range(rows):
        if state[i] == _CONSTANT:
            share[i] += mass[i] * shared[i] / add_up(shared[i])
    return True, share, float(first_bound), first_prices, first_plans


@kernel
def _fix_batch(
    c: Floats, q: Floats, n: Floats, open_type: Bools, left: Floats, share: Floats, state: Ints, stride: int
) -> tuple[Ints, Floats]:
    """Fix up to *stride* rows, slowest first, on their fastest types; these rows and their levels.

    Correct if all other rows reach the last of these levels: no row can have more than all of its time on its fastest
    type. At least one rising row is left. A row with several fastest types, or that would use one up, ends the batch.
    """
    types = c.shape[1]
    rising = np.flatnonzero(state == _RISES)
    stride = min(stride, len(rising) - 1)
    if stride < 2:
        return rising[:0], np.zeros(0)
    most, type_of = np.zeros(len(rising)), np.empty(len(rising), np.int64)
    for at in range(len(rising)):
        equal = 0
        for k in range(types):
            speed = c[rising[at], k]
            if open_type[k] and speed > 0.0 and speed >= most[at] * _AS_FAST:
                equal = equal + 1 if speed * _AS_FAST <= most[at] else 1
                most[at], type_of[at] = max(speed, most[at]), k
        if equal != 1:
            type_of[at] = -1
    order = np.argsort(most, kind="mergesort")
    count = 0
    for at in order[:stride]:
        i, k = rising[at], type_of[at]
        if k < 0 or left[k] - q[i] <= _NOTHING * n[k]:
            break
        left[k] -= q[i]
        share[i, k] = 1.0
        state[i] = _DONE
        count += 1
    return rising[order[:count]], most[order[:count]]


@kernel
def _undo(q: Floats, left: Floats, share: Floats, state: Ints, batch: Ints) -> None:
    """Revert `_fix_batch` for these rows."""
    for i in batch:
        for k in range(share.shape[1]):
            left[k] += q[i] * share[i, k]
            share[i, k] = 0.0
        state[i] = _RISES


@kernel
def _problem(
    c: Floats, q: Floats, kinds: Ints, mass: Floats, state: Ints, shared: Floats
) -> tuple[bool, Ints, Floats, Floats, Floats, Floats, Floats]:
    """The remaining problem for `max_level`: rows, speeds, GPUs, bases, paces, shares of constant rows."""
    row_of = np.flatnonzero(state != _DONE)
    items = len(row_of)
    cc, qq = np.zeros((items, len(kinds))), np.empty(items)
    base, level_slope, fixed_share = np.zeros(items), np.zeros(items), np.zeros((items, len(kinds)))
    ok = True
    for at in range(items):
        i = row_of[at]
        qq[at] = q[i] * mass[i]
        fastest = 0.0
        for j in range(len(kinds)):
            fastest = max(fastest, c[i, kinds[j]])
        ok = ok and fastest > 0.0
        if state[i] == _RISES:
            level_slope[at] = 1.0
            for j in range(len(kinds)):
                cc[at, j] = c[i, kinds[j]]
            continue
        base[at] = fastest
        whole = 0.0
        for j in range(len(kinds)):
            if c[i, kinds[j]] >= fastest * _AS_FAST:
                cc[at, j] = fastest
                fixed_share[at, j] = shared[i, kinds[j]]
                whole += fixed_share[at, j]
        ok = ok and whole > 0.0
        if whole > 0.0:
            fixed_share[at] /= whole
    return ok, row_of, cc, qq, base, level_slope, fixed_share


@kernel
def _pick(plans: Floats, kinds: Ints) -> Floats:
    """The prices of these types only."""
    few = np.empty((len(plans), len(kinds)))
    for z in range(len(plans)):
        for j in range(len(kinds)):
            few[z, j] = plans[z, kinds[j]]
    return few


@kernel
def _expand(few: Floats, kinds: Ints, types: int) -> Floats:
    """Prices with an entry for every type."""
    plans = np.zeros((len(few), types))
    for z in range(len(few)):
        for j in range(len(kinds)):
            plans[z, kinds[j]] = few[z, j]
    return plans


@kernel
def _cut(c: Floats, q: Floats, n: Floats, base: Floats, level_slope: Floats, t: float, p: Floats) -> Floats:
    """The prices with negligible ones set to 0, if that proves the same bound."""
    spent = add_up(p * n)
    if spent <= 0.0:
        return p
    rows, types = c.shape
    cut = p.copy()
    for k in range(types):
        if cut[k] * n[k] < 1e-8 * spent:
            cut[k] = 0.0
    speed, cost = np.empty((rows, types + 1)), np.empty((rows, types + 1))
    kind, count = np.empty((rows, types + 1), np.int64), np.zeros(rows, np.int64)
    hulls(c, cut, speed, cost, kind, count)
    unit = np.inf
    for i in range(rows):
        if level_slope[i] > 0.0:
            unit = min(unit, c[i].max())
    proved = unit * affordable(q, base, level_slope * unit, add_up(cut * n), speed, cost, count)
    return cut if proved <= t * (1 + 1e-10) else p


@kernel
def _fix_rows(
    row_of: Ints,
    kinds: Ints,
    c: Floats,
    p: Floats,
    t: float,
    base: Floats,
    x: Floats,
    share: Floats,
    mass: Floats,
    state: Ints,
) -> bool:
    """Settle what paying rows use of priced types, and the state of rows that stop; False if ambiguous."""
    items, types = c.shape
    speed, cost = np.empty((items, types + 1)), np.empty((items, types + 1))
    kind, count = np.empty((items, types + 1), np.int64), np.zeros(items, np.int64)
    hulls(c, p, speed, cost, kind, count)
    # Types connected by rows that use several of them: their component, where else these rows run (-1 = nowhere),
    # whether on different types, and whether there is more than one way to share them.
    parent, ends = np.arange(types), np.full(types, -2)
    mixed, ring = np.zeros(types, np.bool_), np.zeros(types, np.bool_)
    finals = 0
    for at in range(items):
        i = row_of[at]
        r = t if state[i] == _RISES else base[at]
        free = 1 if count[at] > 1 and cost[at, 1] == 0.0 else 0  # the last corner without cost
        if r > speed[at, free] * (1 + _SAME):
            finals += 1 if state[i] == _RISES else 0
            edge = free
            while edge < count[at] - 2 and speed[at, edge + 1] * (1 + _SAME) < r:
                edge += 1
            low, high = kind[at, edge], kind[at, edge + 1]
            # Time off its edge costs the same up to rounding: then the shares say what it uses.
            off = 1.0 - x[at, high] - x[at, low] if low >= 0 else add_up(x[at]) - x[at, high]
            if off <= _SAME:
                part = (r - speed[at, edge]) / (speed[at, edge + 1] - speed[at, edge])
                part = min(max(part, 0.0), 1.0)
                share[i, kinds[high]] += mass[i] * part
                rest = 1.0 - part
                if edge > free:
                    share[i, kinds[low]] += mass[i] * rest
                    rest = 0.0
            else:
                before, used = -1, 0.0
                for j in range(types):
                    if p[j] > 0.0 and (x[at, j] > _SAME or j == high or (j == low and edge > free)):
                        one = before if before >= 0 else j
                        _join(parent, ends, mixed, ring, one, j, kind[at, free], before >= 0)
                        before = j
                        share[i, kinds[j]] += mass[i] * x[at, j]
                        used += x[at, j]
                rest = max(1.0 - used, 0.0)
            mass[i] *= rest
            state[i] = _DONE if free == 0 or rest <= 1e-12 else _ENDS
        elif state[i] == _CONSTANT:
            state[i] = _ENDS
        elif r >= speed[at, free] * (1 - _SAME):
            finals += 1
            state[i] = _ENDS
    for j in range(types):
        if ring[_root(parent, j)] and mixed[_root(parent, j)]:
            return False
    return finals > 0


@kernel
def _join(parent: Ints, ends: Ints, mixed: Bools, ring: Bools, one: int, other: int, end: int, along: bool) -> None:
    """Record that a row, whose remaining time goes to *end*, can move between two types."""
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


@kernel
def _root(parent: Ints, k: int) -> int:
    while parent[k] != k:
        k = parent[k]
    return k


@kernel
def _end(
    row_of: Ints,
    kinds: Ints,
    c: Floats,
    q: Floats,
    x: Floats,
    open_type: Bools,
    left: Floats,
    share: Floats,
    shared: Floats,
    mass: Floats,
    state: Ints,
) -> bool:
    """Put the rest of ending rows on their fastest free type; if there are several, they stay constant."""
    for at in range(len(row_of)):
        i = row_of[at]
        if state[i] != _ENDS:
            continue
        fastest, chosen, equal = 0.0, -1, 0
        for j in range(len(kinds)):
            if open_type[kinds[j]] and c[at, j] > fastest:
                fastest, chosen = c[at, j], j
        if chosen < 0:
            return False
        for j in range(len(kinds)):
            if open_type[kinds[j]] and c[at, j] >= fastest * _AS_FAST:
                equal += 1
        if equal == 1:
            share[i, kinds[chosen]] += mass[i]
            left[kinds[chosen]] = max(left[kinds[chosen]] - q[i] * mass[i], 0.0)
            state[i] = _DONE
            continue
        state[i] = _CONSTANT
        shared[i] = 0.0
        for j in range(len(kinds)):
            if open_type[kinds[j]] and c[at, j] >= fastest * _AS_FAST:
                shared[i, kinds[j]] = x[at, j]
    return True
