"""Prices of GPU types at which jobs, each choosing what is cheapest for it, share the cluster as fairly as possible.

    max t :   sum_k c_ik x_ik >= base_i + pace_i t,   sum_k x_ik <= 1,   sum_i q_i x_ik <= n_k,   x >= 0

where a row either rises with t (base 0) or stands still (pace 0). At prices p the cheapest way for a row to reach r is
a point of the lower hull of (0, 0) and the points (c_ik, p_k): a mix of two types, or of one and idle time. Whatever
the prices, t cannot exceed the level tau(p) at which these cheapest ways cost what all GPUs cost. Plans that rows
choose at some prices are mixed by a tiny linear program (one row per type, Dantzig-Wolfe), whose duals are the next
prices. The calls needed do not grow with the rows. Answers carry their proof: shares that reach t, and prices that
allow no more.

There is no twin in numpy: without numba, HiGHS does all this.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from levada.kernels.arrays import Bools, Floats, Ints

#: Calls after which the search gives up, and columns that it may collect.
_CALLS = 400
_COLUMNS = 2 * _CALLS + 40
#: A column whose reduced cost is below this does not help.
_HELPS = 1e-12
#: Pivots without progress after which the first column that helps is taken, lest the program go round in circles.
_PATIENCE = 60
#: Numbers this near to each other, relative to their size, are taken for equal.
_SAME = 1e-9


@njit(cache=True)
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


@njit(cache=True)
def _piece(speed: Floats, i: int, corners: int, r: float) -> int:
    """The edge of row *i*'s hull on which *r* is, from its left."""
    at = 0
    while at < corners - 2 and speed[i, at + 1] < r:
        at += 1
    return at


@njit(cache=True)
def _cost(
    q: Floats, base: Floats, pace: Floats, t: float, speed: Floats, cost: Floats, count: Ints
) -> tuple[float, float]:
    """What all rows cost at level t, and how much that rises with t."""
    total, rise = 0.0, 0.0
    for i in range(len(q)):
        if count[i] > 1:
            r = base[i] + pace[i] * t
            at = _piece(speed, i, count[i], r)
            slope = (cost[i, at + 1] - cost[i, at]) / (speed[i, at + 1] - speed[i, at])
            total += q[i] * (cost[i, at] + slope * (r - speed[i, at]))
            rise += q[i] * slope * pace[i]
    return total, rise


@njit(cache=True)
def _affordable(q: Floats, base: Floats, pace: Floats, money: float, speed: Floats, cost: Floats, count: Ints) -> float:
    """The largest t up to 1 that *money* pays for: Newton from the right on a convex function."""
    t = 1.0
    for _ in range(200):
        total, rise = _cost(q, base, pace, t, speed, cost, count)
        over = total - money
        if over <= 1e-15 * abs(money) or rise <= 0.0:
            break
        following = t - over / rise
        if following >= t:
            break
        t = following
    return max(t, 0.0)


@njit(cache=True)
def _balance(q: Floats, pace: Floats, speed: Floats, cost: Floats, count: Ints, at: Floats, step: Floats) -> float:
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
    order = np.argsort(at[:events])
    for event in order:
        rise += step[event]
        if rise >= 1.0:
            return at[event]
    return 1.0


@njit(cache=True)
def _demand(
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
        at = _piece(speed, i, count[i], r)
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


@njit(cache=True)
def _invert(matrix: Floats, inverse: Floats) -> bool:
    """Gauss-Jordan with pivots; whether it could be done."""
    size = len(matrix)
    work = matrix.copy()
    inverse[:] = 0.0
    for i in range(size):
        inverse[i, i] = 1.0
    for column in range(size):
        pivot = column
        for row in range(column + 1, size):
            if abs(work[row, column]) > abs(work[pivot, column]):
                pivot = row
        if abs(work[pivot, column]) < 1e-14:
            return False
        if pivot != column:
            for k in range(size):
                work[pivot, k], work[column, k] = work[column, k], work[pivot, k]
                inverse[pivot, k], inverse[column, k] = inverse[column, k], inverse[pivot, k]
        scale = 1.0 / work[column, column]
        for k in range(size):
            work[column, k] *= scale
            inverse[column, k] *= scale
        for row in range(size):
            factor = work[row, column]
            if row != column and factor != 0.0:
                for k in range(size):
                    work[row, k] -= factor * work[column, k]
                    inverse[row, k] -= factor * inverse[column, k]
    return True


@njit(cache=True)
def _mix(level: Floats, use: Floats, columns: int, basis: Ints, inverse: Floats, amount: Floats, dual: Floats) -> bool:
    """The best mix of plans: max sum of phi x level, with use (parts of all GPUs) <= 1 and sum of phi = 1.

    *basis* holds columns, or -1 - k for the slack of type k; it, the amounts and the duals are left at the optimum.
    """
    rows = len(basis)
    types = rows - 1
    matrix = np.zeros((rows, rows))
    direction = np.empty(rows)
    stalled = 0
    for _ in range(2000):
        for at in range(rows):
            z = basis[at]
            for row in range(rows):
                matrix[row, at] = 0.0
            if z < 0:
                matrix[-1 - z, at] = 1.0
            else:
                for k in range(types):
                    matrix[k, at] = use[z, k]
                matrix[types, at] = 1.0
        if not _invert(matrix, inverse):
            return False
        for at in range(rows):
            total = 0.0
            for row in range(rows):
                total += inverse[at, row]
            amount[at] = max(total, 0.0)
        for row in range(rows):
            dual[row] = 0.0
            for at in range(rows):
                if basis[at] >= 0:
                    dual[row] += level[basis[at]] * inverse[at, row]
        enters, best = rows + columns, _HELPS
        for k in range(types):
            if -dual[k] > best:
                enters, best = -1 - k, -dual[k]
                if stalled > _PATIENCE:
                    break
        if stalled <= _PATIENCE or enters == rows + columns:
            for z in range(columns):
                gain = level[z] - dual[types]
                for k in range(types):
                    gain -= dual[k] * use[z, k]
                if gain > best:
                    enters, best = z, gain
                    if stalled > _PATIENCE:
                        break
        if enters == rows + columns or stalled > 3 * _PATIENCE:
            return True  # nothing helps, or only by rounding
        for at in range(rows):
            if enters < 0:
                direction[at] = inverse[at, -1 - enters]
            else:
                total = inverse[at, types]
                for k in range(types):
                    total += inverse[at, k] * use[enters, k]
                direction[at] = total
        # Two passes: how far it goes with a little slack, then the largest pivot that goes no farther.
        far = np.inf
        for at in range(rows):
            if direction[at] > 1e-11:
                far = min(far, (amount[at] + 1e-12) / direction[at])
        leaves = -1
        for at in range(rows):
            near = direction[at] > 1e-11 and amount[at] / direction[at] <= far
            if near and (leaves < 0 or direction[at] > direction[leaves]):
                leaves = at
        if leaves < 0:
            return False
        stalled = stalled + 1 if amount[leaves] / direction[leaves] * best <= 1e-14 else 0
        basis[leaves] = enters
    return False


@njit(cache=True)
def max_level(
    c: Floats, q: Floats, n: Floats, base: Floats, pace: Floats, still: Floats, seeds: Floats, near: float
) -> tuple[bool, float, float, Floats, Floats, Floats]:
    """Whether it was found; the level reached and the bound on it; shares, the prices that prove the bound, and the
    prices of the plans that were mixed, to start from next time.

    Every c has something above 0 in each row, every n is above 0. *still* (rows, types) are shares with which the rows
    that stand still have what they need. *near* is the gap at which the search may end, relative to the bound.
    """
    rows, types = c.shape
    unit = np.inf
    for i in range(rows):
        if pace[i] > 0.0:
            unit = min(unit, c[i].max() / pace[i])
    pace = pace * unit  # from here on, t = 1 is the level that no row could exceed even alone
    room = rows if rows else 1
    speed, cost = np.empty((room, types + 1)), np.empty((room, types + 1))
    kind, count = np.empty((room, types + 1), np.int64), np.zeros(room, np.int64)
    at, step = np.empty(room * types + 1), np.empty(room * types + 1)
    level, use = np.empty(_COLUMNS), np.zeros((_COLUMNS, types))
    price = np.zeros((_COLUMNS, types))
    nothing = np.empty((0, types))
    demand = np.zeros(types)

    # The first plan: all at 0, and those that stand still as they are.
    level[0] = 0.0
    for i in range(rows):
        for k in range(types):
            use[0, k] += q[i] * still[i, k] / n[k]
    columns = 1
    bound = 1.0
    proof = np.zeros(types)
    basis = np.empty(types + 1, np.int64)
    for k in range(types):
        basis[k] = -1 - k
        use[0, k] = min(use[0, k], 1.0)
    basis[types] = 0
    inverse = np.empty((types + 1, types + 1))
    amount, dual = np.empty(types + 1), np.empty(types + 1)
    p = np.empty(types)
    seed = 0
    found = False
    for _ in range(_CALLS):
        weight = 0.0
        if seed >= len(seeds):
            if not _mix(level, use, columns, basis, inverse, amount, dual):
                break
            reached = 0.0
            for row in range(types + 1):
                reached += dual[row]
            if bound - reached <= near * bound:
                found = True
                break
            weight = 0.5 if bound < 1.0 else 0.0
        helps = False
        while True:
            for k in range(types):
                if seed < len(seeds):
                    p[k] = max(seeds[seed, k], 0.0) / unit
                else:
                    p[k] = weight * proof[k] + (1.0 - weight) * max(dual[k], 0.0) / n[k]
            hulls(c, p, speed, cost, kind, count)
            money = 0.0
            for k in range(types):
                money += p[k] * n[k]
            t = _affordable(q, base, pace, money, speed, cost, count)
            if t < bound:
                bound = t
                proof[:] = p
            for turn in range(2):
                if columns == _COLUMNS:
                    break
                if turn == 1:
                    following = _balance(q, pace, speed, cost, count, at, step)
                    if following == t:
                        break
                    t = following
                demand[:] = 0.0
                _demand(q, base, pace, t, speed, kind, count, demand, nothing, 1.0)
                level[columns] = t
                gain = t - (float(dual[types]) if seed >= len(seeds) else 0.0)
                for k in range(types):
                    use[columns, k] = demand[k] / n[k]
                    price[columns, k] = p[k]
                    if seed >= len(seeds):
                        gain -= dual[k] * use[columns, k]
                helps = helps or gain > _HELPS
                columns += 1
            if seed < len(seeds) or helps or weight == 0.0:
                break
            weight = 0.5 * weight if weight > 0.01 else 0.0
        if seed < len(seeds):
            seed += 1
        elif not helps:
            found = bound - reached <= 1e-9 * bound
            break
        if columns >= _COLUMNS - 2:
            break
    share = np.zeros((rows, types))
    plans = np.zeros((types + 1, types))
    reached = 0.0
    if found:
        for row in range(types + 1):
            z, part = basis[row], amount[row]
            if z < 0:
                continue
            reached += part * level[z]
            plans[row] = price[z] * unit
            if z == 0:
                for i in range(rows):
                    for k in range(types):
                        share[i, k] += part * still[i, k]
            elif part > 0.0:
                hulls(c, price[z], speed, cost, kind, count)
                _demand(q, base, pace, level[z], speed, kind, count, demand, share, part)
    return found, reached * unit, bound * unit, share, proof * unit, plans


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
            proved = unit * _affordable(qq, base, pace * unit, (cut * n_here).sum(), speed, cost, count)
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


@njit(cache=True)
def affordable_ratio(
    rate: Floats,
    scale: Floats,
    n: Floats,
    of: Ints,
    steps: Floats,
    elapsed: Floats,
    ideal: Floats,
    p: Floats,
    ratio: float,
) -> float:
    """The ratio, from *ratio* upwards, at which all needs cost at prices p what all GPUs cost together."""
    rows, types = rate.shape
    speed, cost = np.empty((rows, types + 1)), np.empty((rows, types + 1))
    kind, count = np.empty((rows, types + 1), np.int64), np.zeros(rows, np.int64)
    hulls(rate, p, speed, cost, kind, count)
    money = (p * n).sum()
    for _ in range(200):
        total, fall = 0.0, 0.0
        for j in range(len(of)):
            i = of[j]
            spare = ratio * ideal[j] - elapsed[j]
            need = steps[j] / spare
            at = _piece(speed, i, count[i], need)
            slope = (cost[i, at + 1] - cost[i, at]) / (speed[i, at + 1] - speed[i, at])
            total += scale[i] * (cost[i, at] + slope * (need - speed[i, at]))
            fall += scale[i] * slope * need * ideal[j] / spare
        if total <= money or fall <= 0.0:
            break
        following = ratio + (total - money) / fall
        if following <= ratio * (1 + 1e-15):
            break
        ratio = following
    return ratio


@njit(cache=True)
def virtual_jobs(corner: Floats, of: Ints, need: Floats) -> Floats:
    """(rows, corners): jobs at each corner of their row's speeds, where a job between two is a part of each.

    Between neighbouring speeds every hull is straight, so that nothing changes by this.
    """
    rows, corners = corner.shape
    jobs = np.zeros((rows, corners))
    for j in range(len(of)):
        i = of[j]
        at = 0
        while at < corners - 2 and corner[i, at + 1] < need[j]:
            at += 1
        run = corner[i, at + 1] - corner[i, at]
        part = min(max((need[j] - corner[i, at]) / run, 0.0), 1.0) if run > 0.0 else 1.0
        jobs[i, at] += 1.0 - part
        jobs[i, at + 1] += part
    return jobs
