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

from levada.core.types import Floats, Ints
from levada.kernels.price_hull import affordable, balance, demand, hulls, piece
from levada.kernels.registry import kernel
from levada.kernels.sums import total as add_up

#: Calls after which the search gives up, and columns that it may collect.
_CALLS = 400
_COLUMNS = 2 * _CALLS + 40
#: A column whose reduced cost is below this does not help.
_HELPS = 1e-12
#: Pivots without progress after which the first column that helps is taken, lest the program go round in circles.
_PATIENCE = 60


@kernel
def invert(matrix: Floats, inverse: Floats) -> bool:
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


@kernel
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
        if not invert(matrix, inverse):
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


@kernel
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
    level, use = np.empty(_COLUMNS), np.empty((_COLUMNS, types))
    price = np.empty((_COLUMNS, types))
    nothing = np.empty((0, types))
    taken = np.zeros(types)

    # The first plan: all at 0, and those that stand still as they are.
    level[0] = 0.0
    use[0] = 0.0
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
            t = affordable(q, base, pace, money, speed, cost, count)
            if t < bound:
                bound = t
                proof[:] = p
            for turn in range(2):
                if columns == _COLUMNS:
                    break
                if turn == 1:
                    following = balance(q, pace, speed, cost, count, at, step)
                    if following == t:
                        break
                    t = following
                taken[:] = 0.0
                demand(q, base, pace, t, speed, kind, count, taken, nothing, 1.0)
                level[columns] = t
                gain = t - (float(dual[types]) if seed >= len(seeds) else 0.0)
                for k in range(types):
                    use[columns, k] = taken[k] / n[k]
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
    plans, kept = np.zeros((types + 1, types)), 0
    reached = 0.0
    if found:
        for row in range(types + 1):
            z, part = basis[row], amount[row]
            if z < 0:
                continue
            reached += part * level[z]
            if z > 0:
                plans[kept] = price[z] * unit
                kept += 1
            if z == 0:
                for i in range(rows):
                    for k in range(types):
                        share[i, k] += part * still[i, k]
            elif part > 0.0:
                hulls(c, price[z], speed, cost, kind, count)
                demand(q, base, pace, level[z], speed, kind, count, taken, share, part)
    return bool(found), float(reached * unit), float(bound * unit), share, proof * unit, plans[:kept]


@kernel
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
    money = add_up(p * n)
    for _ in range(200):
        total, fall = 0.0, 0.0
        for j in range(len(of)):
            i = of[j]
            spare = ratio * ideal[j] - elapsed[j]
            need = steps[j] / spare
            at = piece(speed, i, count[i], need)
            slope = (cost[i, at + 1] - cost[i, at]) / (speed[i, at + 1] - speed[i, at])
            total += scale[i] * (cost[i, at] + slope * (need - speed[i, at]))
            fall += scale[i] * slope * need * ideal[j] / spare
        if total <= money or fall <= 0.0:
            break
        following = ratio + (total - money) / fall
        if following <= ratio * (1 + 1e-15):
            break
        ratio = following
    return float(ratio)


@kernel
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
