"""`solver.selfdual.solve_path` for programs without pairs, compiled.

The same steps in the same order. A row's constraints (x >= 0, then its own) are in one line of a matrix, capacities in
a vector. If there are cones, the last three of a row's own constraints are one. Only rounding differs: the equations of
each row are factored once per step and used for all its right sides.
"""

from __future__ import annotations

import numpy as np

from levada.compat.gavel.kernels.cones import depth, inverse_step, product, quotient, scaled, scaling, unit
from levada.core.types import Floats, Ints
from levada.kernels.registry import kernel
from levada.kernels.sums import total as add_up

_MAX_STEPS = 100
_TOLERANCE, _ACCEPTED = 1e-8, 1e-6
_REGULARIZATION = 7e-8
_MAX_REFINEMENTS, _RESIDUAL, _IMPROVEMENT = 9, 1e-14, 6.0
_STEP_FRACTION, _MAX_STEP, _MIN_CENTERING = 0.99, 0.999, 1e-4

#: Number of jobs per row; coefficients of x in x >= 0 and in capacities, by row and type; of the columns (x, and
#: others after it) in the row's own constraints, by row, constraint and column; and of t, by row and constraint.
Program = tuple[Floats, Floats, Floats, Floats, Floats]
#: 1 / (W^2 + regularization) of linear constraints by row and of capacities; W^2 + regularization of each cone.
Weight = tuple[Floats, Floats, Floats]
#: Shared by all solves with one set of weights: whether they are solvable, and factors with their pivots.
Ready = tuple[bool, Floats, Ints, Floats, Floats, Ints]
#: dx, dt, and dz of rows and of capacities.
Step = tuple[Floats, float, Floats, Floats]


@kernel
def _factor(a: Floats, order: Ints) -> bool:
    """Gaussian elimination with pivoting, in place; False if the matrix is singular."""
    size = len(a)
    for k in range(size):
        pivot = k
        for i in range(k + 1, size):
            if abs(a[i, k]) > abs(a[pivot, k]):
                pivot = i
        order[k] = pivot
        if not abs(a[pivot, k]) > 0.0:
            return False
        if pivot != k:
            for j in range(size):
                a[k, j], a[pivot, j] = a[pivot, j], a[k, j]
        for i in range(k + 1, size):
            factor = a[i, k] / a[k, k]
            a[i, k] = factor
            for j in range(k + 1, size):
                a[i, j] -= factor * a[k, j]
    return True


@kernel
def _substitute(a: Floats, order: Ints, b: Floats) -> None:
    """Replace *b* by the solution of the factored equations."""
    size = len(a)
    for k in range(size):
        pivot = order[k]
        if pivot != k:
            b[k], b[pivot] = b[pivot], b[k]
    for i in range(1, size):
        left = b[i]
        for j in range(i):
            left -= a[i, j] * b[j]
        b[i] = left
    for i in range(size - 1, -1, -1):
        left = b[i]
        for j in range(i + 1, size):
            left -= a[i, j] * b[j]
        b[i] = left / a[i, i]


@kernel
def _prepare(program: Program, weight: Weight) -> Ready:
    """The factors shared by all solves with these weights; False first if there are none."""
    count, of_x, of_use, of_own, rise = program
    linear, weight_cap, cone = weight
    rows, types = of_x.shape
    sets, columns = of_own.shape[1:]
    own, order = np.zeros((rows, columns + sets, columns + sets)), np.zeros((rows, columns + sets), np.int64)
    common = np.zeros((rows, types + 1, columns + sets))
    joint, joint_order = np.zeros((types + 1, types + 1)), np.zeros(types + 1, np.int64)
    sound = True
    for i in range(rows):
        a = own[i]
        for k in range(columns):
            a[k, k] = _REGULARIZATION
            for s in range(sets):
                a[columns + s, k] = a[k, columns + s] = of_own[i, s, k]
        for k in range(types):
            a[k, k] += linear[i, k] * (of_x[i, k] * of_x[i, k])
            common[i, k, k] = -of_use[i, k]
        for s in range(sets):
            common[i, types, columns + s] = -rise[i, s]
        for s in range(linear.shape[1] - types):
            a[columns + s, columns + s] = -1.0 / linear[i, types + s]
        if len(cone) > 0:
            a[-3:, -3:] = -cone[i]
        sound &= _factor(a, order[i])
        for j in range(types + 1):
            _substitute(a, order[i], common[i, j])
            for k in range(types):
                joint[k, j] += count[i] * of_use[i, k] * common[i, j, k]
            for s in range(sets):
                joint[types, j] += count[i] * rise[i, s] * common[i, j, columns + s]
    for k in range(types):
        joint[k, k] -= 1.0 / weight_cap[k]
    joint[types, types] += _REGULARIZATION
    sound &= _factor(joint, joint_order)
    return sound, own, order, common, joint, joint_order


@kernel
def _solve(program: Program, weight: Weight, ready: Ready, x: Floats, t: float, z: Floats, z_cap: Floats) -> Step:
    """See `ConicProgram.solve`."""
    count, of_x, of_use, of_own, rise = program
    linear, (_, own, order, common, joint, joint_order) = weight[0], ready
    rows, types = of_x.shape
    sets, columns = of_own.shape[1:]
    solution, last = np.empty((rows, columns + sets)), np.empty(types + 1)
    last[:types] = z_cap
    last[types] = t
    for i in range(rows):
        for k in range(columns):
            solution[i, k] = x[i, k]
        for k in range(types):
            solution[i, k] -= of_x[i, k] * linear[i, k] * z[i, k]
        for s in range(sets):
            solution[i, columns + s] = z[i, types + s]
        _substitute(own[i], order[i], solution[i])
        for k in range(types):
            last[k] -= count[i] * of_use[i, k] * solution[i, k]
        for s in range(sets):
            last[types] -= count[i] * rise[i, s] * solution[i, columns + s]
    _substitute(joint, joint_order, last)
    dx, dz = np.empty(x.shape), np.empty(z.shape)
    for i in range(rows):
        for q in range(columns + sets):
            own_q = solution[i, q]
            for j in range(types + 1):
                own_q += common[i, j, q] * last[j]
            solution[i, q] = own_q
        for k in range(columns):
            dx[i, k] = solution[i, k]
        for k in range(types):
            dz[i, k] = -linear[i, k] * (of_x[i, k] * dx[i, k] + z[i, k])
        for s in range(sets):
            dz[i, types + s] = solution[i, columns + s]
    return dx, float(last[types]), dz, last[:types].copy()


@kernel
def _forward(program: Program, x: Floats, t: float) -> tuple[Floats, Floats]:
    """The left sides of the constraints of rows, and of capacities, at x and t."""
    count, of_x, of_use, of_own, rise = program
    rows, types = of_x.shape
    sets, columns = of_own.shape[1:]
    left_sides, cap = np.zeros((rows, types + sets)), np.zeros(types)
    for i in range(rows):
        for k in range(types):
            left_sides[i, k] = -of_x[i, k] * x[i, k]
            cap[k] += count[i] * of_use[i, k] * x[i, k]
        for s in range(sets):
            left = rise[i, s] * t
            for k in range(columns):
                left += of_own[i, s, k] * x[i, k]
            left_sides[i, types + s] = left
    return left_sides, cap


@kernel
def _backward(program: Program, z: Floats, z_cap: Floats) -> tuple[Floats, float]:
    """The transpose of `_forward`: by columns, and of t."""
    count, of_x, of_use, of_own, rise = program
    rows, types = of_x.shape
    sets, columns = of_own.shape[1:]
    result, risen = np.zeros((rows, columns)), 0.0
    for i in range(rows):
        for s in range(sets):
            risen += count[i] * rise[i, s] * z[i, types + s]
        for k in range(types):
            result[i, k] = -of_x[i, k] * z[i, k] + of_use[i, k] * z_cap[k]
        for k in range(columns):
            total = result[i, k]
            for s in range(sets):
                total += of_own[i, s, k] * z[i, types + s]
            result[i, k] = total
    return result, risen


@kernel
def _dot(count: Floats, a: Floats, a_cap: Floats, b: Floats, b_cap: Floats) -> float:
    total = 0.0
    for i in range(len(a)):
        own = 0.0
        for q in range(a.shape[1]):
            own += a[i, q] * b[i, q]
        total += count[i] * own
    for k in range(len(a_cap)):
        total += a_cap[k] * b_cap[k]
    return total


@kernel
def _dot_x(count: Floats, a: Floats, a_t: float, b: Floats, b_t: float) -> float:
    total = a_t * b_t
    for i in range(len(a)):
        own = 0.0
        for k in range(a.shape[1]):
            own += a[i, k] * b[i, k]
        total += count[i] * own
    return total


@kernel
def _largest(x: Floats, t: float, z: Floats, z_cap: Floats) -> float:
    return max(abs(t), np.abs(x).max(), np.abs(z).max(), np.abs(z_cap).max())


@kernel
def _unweighted(weight: Weight, z: Floats) -> Floats:
    """z divided by the weight."""
    linear, _, cone = weight
    result, wide = np.zeros(z.shape), linear.shape[1]
    result[:, :wide] = z[:, :wide] / linear
    for i in range(len(cone)):
        for p in range(3):
            for r in range(3):
                result[i, wide + p] += cone[i, p, r] * z[i, wide + r]
    return result


@kernel
def _solve_refined(
    program: Program, weight: Weight, ready: Ready, x: Floats, t: float, z: Floats, z_cap: Floats
) -> Step:
    """`_solve`, refined while that helps."""
    dx, dt, dz, d_cap = _solve(program, weight, ready, x, t, z, z_cap)
    enough, before = _RESIDUAL * (1.0 + _largest(x, t, z, z_cap)), np.inf
    more_x, more_t, more_z, more_cap = np.zeros_like(dx), 0.0, np.zeros_like(dz), np.zeros_like(d_cap)
    refined = False
    for _ in range(_MAX_REFINEMENTS + 1):
        back, back_t = _backward(program, dz, d_cap)
        ahead, ahead_cap = _forward(program, dx, dt)
        residual_x, residual_t = x - back - _REGULARIZATION * dx, t - back_t - _REGULARIZATION * dt
        residual_z, residual_cap = z - ahead + _unweighted(weight, dz), z_cap - ahead_cap + d_cap / weight[1]
        now = _largest(residual_x, residual_t, residual_z, residual_cap)
        if refined and now > before:
            return dx - more_x, dt - more_t, dz - more_z, d_cap - more_cap
        if now < enough or before < _IMPROVEMENT * now:
            break
        before, refined = now, True
        more_x, more_t, more_z, more_cap = _solve(
            program, weight, ready, residual_x, residual_t, residual_z, residual_cap
        )
        dx, dt, dz, d_cap = dx + more_x, dt + more_t, dz + more_z, d_cap + more_cap
    return dx, dt, dz, d_cap


@kernel
def _shift(point: Floats, cap: Floats, cones: bool) -> float:
    """How far a point must move along the unit to be well inside."""
    linear = point[:, :-3] if cones else point
    low = min(linear.min(), cap.min())
    if cones:
        for i in range(len(point)):
            low = min(low, depth(point[i, -3:]))
    return 1.0 - _STEP_FRACTION if low > 1e-12 else 1.0 - low


@kernel
def _max_step(
    lam: Floats, lam_cap: Floats, by_s: Floats, s_cap: Floats, by_z: Floats, z_cap: Floats, cones: bool, least: float
) -> float:
    """The longest step within the cones, at most `_MAX_STEP`."""
    worst, linear = least, lam.shape[1] - (3 if cones else 0)
    for i in range(len(lam)):
        for q in range(linear):
            worst = max(worst, -min(by_s[i, q], by_z[i, q]) / lam[i, q])
        if cones:
            worst = max(
                worst, inverse_step(lam[i, linear:], by_s[i, linear:]), inverse_step(lam[i, linear:], by_z[i, linear:])
            )
    for k in range(len(lam_cap)):
        worst = max(worst, -min(s_cap[k], z_cap[k]) / lam_cap[k])
    return min(1.0 / worst, _MAX_STEP)


@kernel
def _equilibrate(
    of_x: Floats, of_use: Floats, of_own: Floats, rise: Floats, cones: bool
) -> tuple[Floats, Floats, Floats, float]:
    """Divide rows and columns by the root of their largest entry, in place; cones by that of their sum.

    Returns the divisors of rows (x >= 0 and their own), capacities, columns and t.
    """
    rows, types = of_x.shape
    sets, columns = of_own.shape[1:]
    row, cap, column, t = np.ones((rows, types + sets)), np.zeros(types), np.zeros((rows, columns)), 0.0
    for i in range(rows):
        for k in range(types):
            row[i, k] = np.sqrt(of_x[i, k])
            cap[k] = max(cap[k], of_use[i, k])
            column[i, k] = max(of_x[i, k], of_use[i, k])
        for s in range(sets):
            most = rise[i, s]
            t = max(t, rise[i, s])
            for k in range(columns):
                column[i, k] = max(column[i, k], abs(of_own[i, s, k]))
                most = max(most, abs(of_own[i, s, k]))
            if most > 0.0:
                row[i, types + s] = np.sqrt(most)
        if cones:
            most = 0.0
            for k in range(columns):
                most = max(most, abs(of_own[i, -3, k]) + abs(of_own[i, -2, k]) + abs(of_own[i, -1, k]))
            row[i, -3:] = np.sqrt(most)
    cap, column, t = np.sqrt(cap), np.sqrt(column), np.sqrt(t) if t > 0.0 else 1.0
    for i in range(rows):
        for k in range(types):
            of_x[i, k] /= column[i, k] * row[i, k]
            of_use[i, k] /= column[i, k] * cap[k]
        for s in range(sets):
            rise[i, s] /= t * row[i, types + s]
            for k in range(columns):
                of_own[i, s, k] /= column[i, k] * row[i, types + s]
    return row, cap, column, t


@kernel
def follow_path(
    count: Floats,
    scale: Floats,
    capacity: Floats,
    of_own: Floats,
    rise: Floats,
    sides: Floats,
    gain: Floats,
    cones: bool,
) -> tuple[float, Floats, float]:
    """The residual of the best point of the path, its columns and t.

    *scale* is what a column of each type takes of capacity; *of_own*, *rise* and *sides* are the left and right sides
    of each row's own constraints, *gain* the value of its columns. All are those of one job, of *count* equal ones.
    """
    rows, types, columns = len(count), len(capacity), of_own.shape[2]
    of_x, of_use, of_own, rise = np.ones((rows, types)), np.empty((rows, types)), of_own.copy(), rise.copy()
    for i in range(rows):
        of_use[i] = scale[i]
    h = np.zeros((rows, types + sides.shape[1]))
    h[:, types:] = sides
    row, cap, column, column_t = np.ones(h.shape), np.ones(types), np.ones((rows, columns)), 1.0
    for _ in range(3):
        by_row, by_cap, by_column, by_t = _equilibrate(of_x, of_use, of_own, rise, cones)
        row, cap, column, column_t = row * by_row, cap * by_cap, column * by_column, column_t * by_t
    cost_t = -1.0 / column_t if rise.any() else 0.0
    program = count, of_x, of_use, of_own, rise
    error, x, t, tau = _solve_path(program, -gain / column, cost_t, h / row, capacity / cap, cones)
    return error, x / tau / column, t / tau / column_t


@kernel
def _solve_path(
    program: Program, cost: Floats, cost_t: float, h: Floats, h_cap: Floats, cones: bool
) -> tuple[float, Floats, float, float]:
    """The residual of the best point of the path, and its x, t and tau. *h* are the right sides."""
    count, wide = program[0], h.shape[1] - (3 if cones else 0)
    one = unit(h.shape, cones)
    even = 1.0 / (1.0 + _REGULARIZATION)
    weight = np.full((len(h), wide), even), np.full(h_cap.shape, even), np.zeros((len(h) if cones else 0, 3, 3))
    for p in range(3):
        weight[2][:, p, p] = 1.0 + _REGULARIZATION
    ready = _prepare(program, weight)
    x, t, z, z_cap = _solve_refined(program, weight, ready, np.zeros_like(cost), 0.0, h, h_cap)
    s, s_cap = -z, -z_cap
    by = _shift(s, s_cap, cones)
    s, s_cap = s + by * one, s_cap + by
    _, _, z, z_cap = _solve_refined(program, weight, ready, -cost, -cost_t, np.zeros_like(h), np.zeros_like(h_cap))
    by = _shift(z, z_cap, cones)
    z, z_cap = z + by * one, z_cap + by
    tau = kappa = 1.0
    degree = add_up(count) * (wide + 1 if cones else wide) + len(h_cap) + 1.0
    best, best_x, best_t, best_tau = np.inf, x, t, tau
    size_h = max(1.0, np.sqrt(_dot(count, h, h_cap, h, h_cap)))
    size_cost = max(1.0, np.sqrt(_dot_x(count, cost, cost_t, cost, cost_t)))
    for _ in range(_MAX_STEPS):
        back, back_t = _backward(program, z, z_cap)
        residual_x, residual_t = -back - cost * tau, -back_t - cost_t * tau
        ahead, ahead_cap = _forward(program, x, t)
        residual_z, residual_cap = ahead + s - tau * h, ahead_cap + s_cap - tau * h_cap
        value, other = _dot_x(count, cost, cost_t, x, t), _dot(count, h, h_cap, z, z_cap)
        rest = kappa + value + other
        gap = _dot(count, s, s_cap, z, z_cap)
        size = size_h + np.sqrt(_dot_x(count, x, t, x, t)) + np.sqrt(_dot(count, s, s_cap, s, s_cap))
        primal = np.sqrt(_dot(count, residual_z, residual_cap, residual_z, residual_cap)) / size / tau
        dual = np.sqrt(_dot_x(count, residual_x, residual_t, residual_x, residual_t))
        dual /= (size_cost + np.sqrt(_dot(count, z, z_cap, z, z_cap))) * tau
        error = max(primal, dual, gap / max(1.0, -value / tau, -other / tau))
        if error < best:
            best, best_x, best_t, best_tau = error, x, t, tau
        if error < _TOLERANCE and (value < 0 or other <= _TOLERANCE):
            break
        mu = (gap + kappa * tau) / degree
        inside, scale, rotation, lam, linear, block = scaling(s, z, cones, _REGULARIZATION)
        scale_cap, lam_cap = np.sqrt(s_cap / z_cap), np.sqrt(s_cap * z_cap)
        weight = linear, 1.0 / (s_cap / z_cap + _REGULARIZATION), block
        if not inside:
            break
        ready = _prepare(program, weight)
        if not ready[0]:
            break
        x1, t1, z1, cap1 = _solve_refined(program, weight, ready, -cost, -cost_t, h, h_cap)
        slope = kappa / tau - _dot_x(count, cost, cost_t, x1, t1) - _dot(count, h, h_cap, z1, cap1)
        x2, t2, z2, cap2 = _solve_refined(
            program, weight, ready, residual_x, residual_t, s - residual_z, s_cap - residual_cap
        )
        d_tau = rest - kappa + _dot_x(count, cost, cost_t, x2, t2) + _dot(count, h, h_cap, z2, cap2)
        d_tau /= slope
        by_z, by_z_cap = scaled(scale, rotation, z2 + d_tau * z1), scale_cap * (cap2 + d_tau * cap1)
        by_s, by_s_cap = -by_z - lam, -by_z_cap - lam_cap
        d_kappa = -kappa - kappa / tau * d_tau
        least = max(-d_tau / tau, -d_kappa / kappa, 1e-13)
        left = 1.0 - _max_step(lam, lam_cap, by_s, by_s_cap, by_z, by_z_cap, cones, least)
        sigma = left * left * left
        sigma = min(max(sigma, _MIN_CENTERING), 1.0)
        aim = quotient(product(lam, lam, cones) + product(by_s, by_z, cones) - sigma * mu * one, lam, cones)
        aim_cap = (lam_cap * lam_cap + by_s_cap * by_z_cap - sigma * mu) / lam_cap
        keep = 1.0 - sigma
        target, target_cap = scaled(scale, rotation, aim) - keep * residual_z, scale_cap * aim_cap - keep * residual_cap
        x2, t2, z2, cap2 = _solve_refined(
            program, weight, ready, keep * residual_x, keep * residual_t, target, target_cap
        )
        aim_kappa = kappa * tau + d_kappa * d_tau - sigma * mu
        d_tau = keep * rest - aim_kappa / tau + _dot_x(count, cost, cost_t, x2, t2) + _dot(count, h, h_cap, z2, cap2)
        d_tau /= slope
        step_z, step_cap = z2 + d_tau * z1, cap2 + d_tau * cap1
        by_z, by_z_cap = scaled(scale, rotation, step_z), scale_cap * step_cap
        by_s, by_s_cap = -(aim + by_z), -(aim_cap + by_z_cap)
        d_kappa = -(aim_kappa + kappa * d_tau) / tau
        least = max(-d_tau / tau, -d_kappa / kappa, 1e-13)
        step_length = _STEP_FRACTION * _max_step(lam, lam_cap, by_s, by_s_cap, by_z, by_z_cap, cones, least)
        x, t = x + step_length * (x2 + d_tau * x1), t + step_length * (t2 + d_tau * t1)
        z, z_cap = z + step_length * step_z, z_cap + step_length * step_cap
        s, s_cap = (
            s + scaled(step_length * scale, rotation, by_s, step_length),
            s_cap + step_length * scale_cap * by_s_cap,
        )
        tau, kappa = tau + step_length * d_tau, kappa + step_length * d_kappa
        if not np.isfinite(tau) or step_length < 1e-6:
            break
    return float(best), best_x, float(best_t), float(best_tau)
