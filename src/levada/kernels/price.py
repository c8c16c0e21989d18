"""Prices of GPU types at which the cheapest choices share the cluster fairly.

    max t :   sum_k c_ik x_ik >= base_i + pace_i t,   sum_k x_ik <= 1,   sum_i q_i x_ik <= n_k,   x >= 0

A row either rises with t (base 0) or is constant (level_slope 0). At prices p, the cheapest way for a row to reach r is
a point of the lower hull of (0, 0) and the points (c_ik, p_k): a mix of two types, or of one type and idle time. For
all prices, t cannot exceed the level tau(p) at which these cheapest mixes cost as much as all GPUs. Each set of prices
gives a plan, the choices of all rows. A tiny linear program (one row per type, Dantzig-Wolfe) mixes the plans; its
duals are the next prices. The number of iterations does not grow with the rows. A result includes its proof: shares
that reach t, and prices that allow no more.

There is no numpy version: without numba, HiGHS solves these problems.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels.price_hull import affordable, balance, demand, hulls, piece
from levada.kernels.registry import kernel
from levada.kernels.sums import total as add_up

#: Iterations and columns after which the search gives up.
_CALLS = 400
_COLUMNS = 2 * _CALLS + 40
#: A column with a reduced cost up to this does not help.
_HELPS = 1e-12
#: Pivots without progress after which the first column that helps is taken, to avoid cycling.
_PATIENCE = 60


@kernel
def invert(matrix: Floats, inverse: Floats) -> bool:
    """Gauss-Jordan elimination with pivoting; whether the matrix is regular."""
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
    """The best mix of plans: max sum of phi x level, with use (fractions of GPUs) <= 1, sum of phi = 1.

    *basis* has columns, or -1 - k for the slack of type k. On return, basis, amounts and duals are those of the
    optimum.
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
            return True  # optimal up to rounding
        for at in range(rows):
            if enters < 0:
                direction[at] = inverse[at, -1 - enters]
            else:
                total = inverse[at, types]
                for k in range(types):
                    total += inverse[at, k] * use[enters, k]
                direction[at] = total
        # Two passes: the step length with a little slack, then the largest pivot within that length.
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
    c: Floats, q: Floats, n: Floats, base: Floats, level_slope: Floats, fixed_share: Floats, seeds: Floats, near: float
) -> tuple[bool, float, float, Floats, Floats, Floats]:
    """Whether it was solved; level, bound, shares, the prices that prove the bound, prices of plans.

    The prices of the mixed plans are seeds for the next call. Each row of c has an entry above 0, every n is above 0.
    *fixed_share* (rows, types) are shares that satisfy the constant rows. *near* is the relative gap at which the
    search may stop.
    """
    rows, types = c.shape
    unit = np.inf
    for i in range(rows):
        if level_slope[i] > 0.0:
            unit = min(unit, c[i].max() / level_slope[i])
    level_slope = level_slope * unit  # from here on, no row could exceed t = 1 even alone
    room = rows if rows else 1
    speed, cost = np.empty((room, types + 1)), np.empty((room, types + 1))
    kind, count = np.empty((room, types + 1), np.int64), np.zeros(room, np.int64)
    at, step = np.empty(room * types + 1), np.empty(room * types + 1)
    level, use = np.empty(_COLUMNS), np.empty((_COLUMNS, types))
    price = np.empty((_COLUMNS, types))
    empty = np.empty((0, types))
    taken = np.zeros(types)

    # The first plan: rising rows at 0, constant rows with their given shares.
    level[0] = 0.0
    use[0] = 0.0
    for i in range(rows):
        for k in range(types):
            use[0, k] += q[i] * fixed_share[i, k] / n[k]
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
    solved = False
    for _ in range(_CALLS):
        weight = 0.0
        if seed >= len(seeds):
            if not _mix(level, use, columns, basis, inverse, amount, dual):
                break
            reached = 0.0
            for row in range(types + 1):
                reached += dual[row]
            if bound - reached <= near * bound:
                solved = True
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
            budget = 0.0
            for k in range(types):
                budget += p[k] * n[k]
            t = affordable(q, base, level_slope, budget, speed, cost, count)
            if t < bound:
                bound = t
                proof[:] = p
            for turn in range(2):
                if columns == _COLUMNS:
                    break
                if turn == 1:
                    following = balance(q, level_slope, speed, cost, count, at, step)
                    if following == t:
                        break
                    t = following
                taken[:] = 0.0
                demand(q, base, level_slope, t, speed, kind, count, taken, empty, 1.0)
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
            solved = bound - reached <= 1e-9 * bound
            break
        if columns >= _COLUMNS - 2:
            break
    share = np.zeros((rows, types))
    plans, plan_count = np.zeros((types + 1, types)), 0
    reached = 0.0
    if solved:
        for row in range(types + 1):
            z, part = basis[row], amount[row]
            if z < 0:
                continue
            reached += part * level[z]
            if z > 0:
                plans[plan_count] = price[z] * unit
                plan_count += 1
            if z == 0:
                for i in range(rows):
                    for k in range(types):
                        share[i, k] += part * fixed_share[i, k]
            elif part > 0.0:
                hulls(c, price[z], speed, cost, kind, count)
                demand(q, base, level_slope, level[z], speed, kind, count, taken, share, part)
    return bool(solved), float(reached * unit), float(bound * unit), share, proof * unit, plans[:plan_count]


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
    """The smallest ratio >= *ratio* at which all needs cost at most as much as all GPUs at prices p."""
    rows, types = rate.shape
    speed, cost = np.empty((rows, types + 1)), np.empty((rows, types + 1))
    kind, count = np.empty((rows, types + 1), np.int64), np.zeros(rows, np.int64)
    hulls(rate, p, speed, cost, kind, count)
    budget = add_up(p * n)
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
        if total <= budget or fall <= 0.0:
            break
        following = ratio + (total - budget) / fall
        if following <= ratio * (1 + 1e-15):
            break
        ratio = following
    return float(ratio)


@kernel
def virtual_jobs(corner: Floats, of: Ints, need: Floats) -> Floats:
    """(rows, corners): jobs at each corner of their row's speeds; a job between two is split.

    This changes nothing in the costs, because hulls are linear between neighbouring speeds.
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


@kernel
def least_ratio(
    rate: Floats,
    scale: Floats,
    count: Floats,
    capacity: Floats,
    of: Ints,
    steps: Floats,
    elapsed: Floats,
    ideal: Floats,
    start: float,
    seeds: Floats,
    most: int,
    near: float,
    proved: float,
) -> tuple[bool, Floats, float, Floats, Floats]:
    """Whether it was solved; totals (rows, types) at the smallest finish-time ratio >= *start*; that ratio.

    Then prices, and the prices of the mixed plans as seeds for the next call. A row stands for *count* jobs, *of* is
    the row of each job. At most *most* ratios are tried; *proved* is the accepted relative overuse.
    """
    mass, prices, plans = np.zeros(rate.shape), np.zeros(len(capacity)), np.zeros((0, len(capacity)))
    used, part = np.zeros(len(capacity), np.bool_), np.zeros(len(rate), np.bool_)
    for i in range(len(rate)):
        for k in range(len(capacity)):
            if capacity[k] > 0.0 and rate[i, k] > 0.0:
                used[k] = True
                part[i] |= count[i] > 0.0
    active_rows, kinds = np.flatnonzero(part), np.flatnonzero(used)
    position, rows, types = np.full(len(rate), -1), len(active_rows), len(kinds)
    speed, corner, room = np.empty((rows, types)), np.zeros((rows, types + 1)), capacity[kinds]
    for at in range(rows):
        position[active_rows[at]] = at
        for j in range(types):
            speed[at, j] = rate[active_rows[at], kinds[j]]
        corner[at, 1:] = np.sort(speed[at])
    position_of, gpus, proof = position[of], scale[active_rows], np.zeros(types)
    mixed = np.empty((len(seeds), types))
    for z in range(len(seeds)):
        for j in range(types):
            mixed[z, j] = seeds[z, kinds[j]]
    ratio = start
    for _ in range(most):
        jobs = virtual_jobs(corner, position_of, steps / (ratio * ideal - elapsed))
        row, step = np.nonzero((jobs > 0.0) & (corner > 0.0))
        here, q, part_of = np.empty((len(row), types)), np.empty(len(row)), np.empty(len(row))
        for z in range(len(row)):
            part_of[z] = jobs[row[z], step[z]]
            q[z] = part_of[z] * gpus[row[z]]
            for j in range(types):
                here[z, j] = speed[row[z], j] / corner[row[z], step[z]]
        solved, level, bound, x, new_proof, mixed = max_level(
            here, q, room, np.zeros(len(row)), np.ones(len(row)), np.zeros(here.shape), mixed, near
        )
        if not solved or not _fits(x, q, room, proved):
            break
        enough = level >= 1.0 - 1e-10 or (bound <= 1.0 - 1e-9 and not new_proof.any())
        following = ratio
        if not enough:
            proof = new_proof
            following = affordable_ratio(speed, gpus, room, position_of, steps, elapsed, ideal, proof, ratio)
            enough = following <= ratio * (1.0 + 1e-13)
        if not enough:
            ratio = following
            continue
        if level < 1.0 - 1e-9:
            break
        plans = np.zeros((len(mixed), len(capacity)))
        for j in range(types):
            for z in range(len(row)):
                mass[active_rows[row[z]], kinds[j]] += part_of[z] * x[z, j]
            prices[kinds[j]] = proof[j]
            for z in range(len(mixed)):
                plans[z, kinds[j]] = mixed[z, j]
        return True, mass, float(ratio), prices, plans
    return False, mass, float(ratio), prices, plans


@kernel
def _fits(share: Floats, gpus: Floats, capacity: Floats, proved: float) -> bool:
    """Whether these shares exceed neither time nor GPUs."""
    use, fits = np.zeros(len(capacity)), True
    for i in range(len(share)):
        time = 0.0
        for k in range(len(capacity)):
            time += share[i, k]
            use[k] += gpus[i] * share[i, k]
        fits &= time <= 1.0 + proved
    for k in range(len(capacity)):
        fits &= use[k] <= capacity[k] * (1.0 + proved)
    return fits
