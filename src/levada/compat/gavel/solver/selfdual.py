"""Reproduce the end point of a self-dual interior-point solver (ECOS).

    max  gain . x + rise t :   x >= 0,   sum_i scale_i x_ik <= capacity_k,   sum_k x_ik <= 1,
                               sum_k c_ik x_ik >= base_i + slope_i t   (`ConstraintSets`, one or several)

Such solvers stop before they reach the center of the optimal face, at a point that depends on their steps. This is the
textbook method (homogeneous self-dual embedding, Nesterov-Todd scaling, Mehrotra predictor-corrector, three rounds of
equilibration) with the usual constants. Equal jobs stay equal in all steps, so classes are exact, and a step costs
O(rows types^3). `solve_path` solves any `ConicProgram`: `SingleProgram`, the one with columns for pairs of jobs in
`selfdual_pairs`, and the conic one of finish-time ratios in `selfdual_ratio`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from levada.compat.gavel.kernels import selfdual
from levada.compat.gavel.solver.symmetric import (
    Rows,
    Scaling,
    depth,
    inverse_step,
    level_weight,
    product,
    quotient,
    unit,
    unweighted,
)
from levada.core.types import Bools, Floats
from levada.solve.highs import NoSolution

_MAX_STEPS = 100
#: Error at which to stop, and which is accepted when steps no longer improve it.
_TOLERANCE, _ACCEPTED = 1e-8, 1e-6
#: Added to all diagonals, so that the linear systems are not singular near the end. Directions have a small error due
#: to it, as in ECOS.
REGULARIZATION = 7e-8
#: Iterative refinement: maximum number, residual at which to stop, and required improvement factor.
_MAX_REFINEMENTS, _RESIDUAL, _IMPROVEMENT = 9, 1e-14, 6.0
#: Fraction of the step to the boundary, maximum step, and minimum centering parameter.
_STEP_FRACTION, _MAX_STEP, _MIN_CENTERING = 0.99, 0.999, 1e-4


class ConicProgram(Protocol):
    """A scaled conic program, as required by `solve_path`."""

    #: Scale factors of x and t.
    column: Floats
    column_t: float
    cost: Floats
    cost_t: float
    #: Right-hand sides of the constraints, and which level constraints exist.
    right: Rows
    has: Bools

    def forward(self, x: Floats, t: float) -> Rows:
        """The left-hand sides of the constraints."""
        ...

    def backward(self, z: Rows) -> tuple[Floats, float]:
        """The transpose of `forward`."""
        ...

    def dot(self, a: Rows, b: Rows) -> float:
        """The scalar product of two vectors of constraints, over all jobs."""
        ...

    def dot_x(self, a: Floats, a_t: float, b: Floats, b_t: float) -> float:
        """The scalar product of two vectors of columns, over all jobs."""
        ...

    def solve(self, weight: Rows, x: Floats, t: float, z: Rows) -> tuple[Floats, float, Rows]:
        """dx, dt and dz with  backward(dz) + REGULARIZATION (dx, dt) = (x, t)  and  forward(dx, dt) - dz / weight = z.

        See `unweighted`.
        """
        ...


class ConstraintSets(NamedTuple):
    """Sets of constraints  c . x >= base + slope t,  one of each set for every row that `has` it."""

    c: Floats  #: (sets, rows, types)
    base: Floats  #: (sets, rows)
    slope: Floats  #: (sets, rows)
    has: Bools  #: (sets, rows)

    @staticmethod
    def of(c: Floats, base: Floats | None, slope: Floats | None, has: Bools) -> ConstraintSets:
        """One set; base and slope default to 0."""
        zeros = np.zeros(len(c))
        return ConstraintSets(
            c[None], (zeros if base is None else base)[None], (zeros if slope is None else slope)[None], has[None]
        )


class SingleProgram:
    """The program without pairs: each row is a class of *count* equal jobs; x is that of one job."""

    def __init__(
        self, count: Floats, scale: Floats, capacity: Floats, levels: ConstraintSets, gain: Floats | None = None
    ) -> None:
        sets, rows, types = levels.c.shape
        self.count, self.has = count, levels.has
        self.of_x, self.of_use = np.ones((rows, types)), np.repeat(scale[:, None], types, axis=1)
        self.of_time, self.of_level = np.ones((rows, types)), levels.c * levels.has[:, :, None]
        self.of_t = levels.slope * levels.has
        self.column, self.column_t = np.ones((rows, types)), 1.0
        self.row = Rows(np.ones((rows, types)), np.ones(types), np.ones(rows), np.ones((sets, rows)))
        for _ in range(3):
            self._equilibrate()
        self.cost = (np.zeros((rows, types)) if gain is None else -gain) / self.column
        self.cost_t = -1.0 / self.column_t if self.of_t.any() else 0.0
        floor = levels.base * levels.has
        self.right = Rows(np.zeros((rows, types)), capacity, np.ones(rows), -floor).over(self.row)

    def _equilibrate(self) -> None:
        """Divide rows and columns by the square root of their largest entry."""
        all_x = np.stack([self.of_x, self.of_use, self.of_time, *self.of_level])
        column = np.sqrt(all_x.max(axis=0))
        column_t = float(np.sqrt(self.of_t.max(initial=0.0))) or 1.0
        level = np.maximum(self.of_level.max(axis=2), self.of_t)
        row = Rows(self.of_x, self.of_use.max(axis=0), self.of_time.max(axis=1), np.where(level > 0, level, 1.0)).root()
        self.of_x = self.of_x / (column * row.x)
        self.of_use = self.of_use / (column * row.cap)
        self.of_time = self.of_time / (column * row.time[:, None])
        self.of_level = self.of_level / (column * row.level[:, :, None])
        self.of_t = self.of_t / (column_t * row.level)
        self.column, self.column_t, self.row = self.column * column, self.column_t * column_t, self.row.by(row)

    def forward(self, x: Floats, t: float) -> Rows:
        """See `ConicProgram`."""
        return Rows(
            -self.of_x * x,
            self.count @ (self.of_use * x),
            (self.of_time * x).sum(axis=1),
            self.of_t * t - (self.of_level * x).sum(axis=2),
        )

    def backward(self, z: Rows) -> tuple[Floats, float]:
        """See `ConicProgram`."""
        x = -self.of_x * z.x + self.of_use * z.cap + self.of_time * z.time[:, None]
        x -= (self.of_level * z.level[:, :, None]).sum(axis=0)
        return x, float((self.of_t * z.level).sum(axis=0) @ self.count)

    def dot(self, a: Rows, b: Rows) -> float:
        """See `ConicProgram`."""
        own = (a.x * b.x).sum(axis=1) + a.time * b.time + (self.has * a.level * b.level).sum(axis=0)
        return float(self.count @ own + a.cap @ b.cap)

    def dot_x(self, a: Floats, a_t: float, b: Floats, b_t: float) -> float:
        """See `ConicProgram`."""
        return float(self.count @ (a * b).sum(axis=1)) + a_t * b_t

    def solve(self, weight: Rows, x: Floats, t: float, z: Rows) -> tuple[Floats, float, Rows]:
        """See `ConicProgram`."""
        rows, types = x.shape
        sets = len(self.of_level)
        # x, time and levels of a row are solved together: eliminating one of them would lose digits.
        own, of_x = np.zeros((rows, types + 1 + sets, types + 1 + sets)), slice(0, types)
        own[:, types, of_x] = own[:, of_x, types] = self.of_time
        own[:, types + 1 :, of_x] = -self.of_level.swapaxes(0, 1)
        own[:, of_x, types + 1 :] = own[:, types + 1 :, of_x].swapaxes(1, 2)
        diagonal = np.arange(types + 1 + sets)
        own[:, diagonal[:types], diagonal[:types]] = weight.x * self.of_x**2 + REGULARIZATION
        own[:, types, types] = -1.0 / weight.time
        own[:, diagonal[types + 1 :], diagonal[types + 1 :]] = np.where(self.has, -1.0 / weight.level, -1.0).T
        side, rise = np.zeros((rows, types + 1 + sets)), np.zeros((rows, types + 1 + sets))
        side[:, of_x] = x - self.of_x * weight.x * z.x
        side[:, types] = z.time
        side[:, types + 1 :] = (self.has * z.level).T
        rise[:, types + 1 :] = self.of_t.T
        each, cap, dt = _solve_coupled(own, side, self.of_use, rise, self.count, weight.cap, z.cap, t)
        dx = each[:, of_x]
        dz = Rows(-weight.x * (self.of_x * dx + z.x), cap, each[:, types], each[:, types + 1 :].T)
        return dx, dt, dz


def _solve_coupled(
    own: Floats, side: Floats, use: Floats, rise: Floats, count: Floats, weight: Floats, cap: Floats, t: float
) -> tuple[Floats, Floats, float]:
    """Solve equations of rows that are only coupled by capacities and t; returns the unknowns of each.

    *own* and *side* are the matrix and right-hand side of each row. Its first columns count by *use* in capacities, and
    *rise* has the coefficients of t. A row counts *count* times.
    """
    rows, size = side.shape
    types = use.shape[1]
    sides = np.zeros((rows, size, types + 2))
    sides[:, :, 0] = side
    sides[:, np.arange(types), 1 + np.arange(types)] = -use
    sides[:, :, types + 1] = -rise
    solved = np.linalg.solve(own, sides)
    joint = np.empty((types + 1, types + 2))
    joint[:types] = np.einsum("ik,ikj->kj", count[:, None] * use, solved[:, :types])
    joint[types] = np.einsum("i,ik,ikj->j", count, rise, solved)
    matrix, right = joint[:, 1:], np.append(cap, t) - joint[:, 0]
    matrix[np.arange(types), np.arange(types)] -= 1.0 / weight
    matrix[types, types] += REGULARIZATION
    common = np.linalg.solve(matrix, right)
    return solved[:, :, 0] + solved[:, :, 1:] @ common, common[:types], float(common[types])


def follow_path(
    count: Floats, scale: Floats, capacity: Floats, levels: ConstraintSets, gain: Floats | None = None
) -> tuple[Floats, float]:
    """Shares and t at the end of the path. Every row has jobs, every type has GPUs; *gain* is per job."""
    # Water-state walks once for each level, mostly with all rows: a kernel does it.
    if levels.has.all():
        ones = np.ones((len(count), 1))
        of_own = np.concatenate(
            [np.broadcast_to(1.0, (len(count), 1, len(capacity))), -levels.c.swapaxes(0, 1)], axis=1
        )
        rise = np.concatenate([0.0 * ones, levels.slope.T], axis=1)
        sides = np.concatenate([ones, -levels.base.T], axis=1)
        return solve_single(count, scale, capacity, of_own, rise, sides, gain)
    return solve_path(SingleProgram(count, scale, capacity, levels, gain))


def solve_single(
    count: Floats,
    scale: Floats,
    capacity: Floats,
    of_own: Floats,
    rise: Floats,
    sides: Floats,
    gain: Floats | None = None,
    *,
    cones: bool = False,
) -> tuple[Floats, float]:
    """`solve_path` without pairs, by `kernels.selfdual.follow_path`."""
    worth = np.zeros((len(count), of_own.shape[2])) if gain is None else gain
    count, scale, capacity = (np.ascontiguousarray(part) for part in (count, scale, capacity))
    of_own, rise, sides, worth = (np.ascontiguousarray(part) for part in (of_own, rise, sides, worth))
    error, x, t = selfdual.follow_path(count, scale, capacity, of_own, rise, sides, worth, cones)
    if not error < _ACCEPTED:
        raise NoSolution("the path does not converge")
    return x, t


def solve_path(program: ConicProgram) -> tuple[Floats, float]:
    """x and t at the end of the path; raises NoSolution if the path does not converge."""
    h, cost, cost_t, has = program.right, program.cost, program.cost_t, program.has
    one = unit(h)
    unit_weight = level_weight(h, REGULARIZATION)
    x, t, z = _solve_refined(program, unit_weight, np.zeros_like(cost), 0.0, h)
    s = _move_inside(z.times(-1.0), one, has)
    _, _, z = _solve_refined(program, unit_weight, -cost, -cost_t, one.times(0.0))
    z = _move_inside(z, one, has)
    tau = kappa = 1.0
    degree = program.dot(one, one) + 1.0
    best = np.inf, x, t, tau
    size_h = max(1.0, np.sqrt(program.dot(h, h)))
    size_cost = max(1.0, np.sqrt(program.dot_x(cost, cost_t, cost, cost_t)))
    for _ in range(_MAX_STEPS):
        back, back_t = program.backward(z)
        residual_x, residual_t = -back - cost * tau, -back_t - cost_t * tau
        left = program.forward(x, t).plus(s)
        residual_z = left.plus(h, -tau)
        value, other = program.dot_x(cost, cost_t, x, t), program.dot(h, z)
        rest = kappa + value + other
        gap = program.dot(s, z)
        size = size_h + np.sqrt(program.dot_x(x, t, x, t)) + np.sqrt(program.dot(s, s))
        primal = np.sqrt(program.dot(residual_z, residual_z)) / size / tau
        dual = (
            np.sqrt(program.dot_x(residual_x, residual_t, residual_x, residual_t))
            / (size_cost + np.sqrt(program.dot(z, z)))
            / tau
        )
        error = max(float(primal), float(dual), gap / max(1.0, -value / tau, -other / tau))
        if error < best[0]:
            best = error, x, t, tau
        if error < _TOLERANCE and (value < 0 or other <= _TOLERANCE):
            break
        mu = (gap + kappa * tau) / degree
        try:
            scale = Scaling(s, z)
            lam, weight = scale.lam, scale.weight(REGULARIZATION)
            x1, t1, z1 = _solve_refined(program, weight, -cost, -cost_t, h)
        except (NoSolution, np.linalg.LinAlgError):
            break
        slope = kappa / tau - program.dot_x(cost, cost_t, x1, t1) - program.dot(h, z1)
        x2, t2, z2 = _solve_refined(program, weight, residual_x, residual_t, s.plus(residual_z, -1.0))
        d_tau = (rest - kappa + program.dot_x(cost, cost_t, x2, t2) + program.dot(h, z2)) / slope
        by_z = scale(z2.plus(z1, d_tau))
        by_s = by_z.times(-1.0).plus(lam, -1.0)
        d_kappa = -kappa - kappa / tau * d_tau
        sigma = (1.0 - _max_step(lam, by_s, by_z, has, tau, d_tau, kappa, d_kappa)) ** 3
        sigma = min(max(sigma, _MIN_CENTERING), 1.0)
        aim = quotient(product(lam, lam).plus(product(by_s, by_z)).plus(one, -sigma * mu), lam)
        keep = 1.0 - sigma
        target = residual_z.times(-keep).plus(scale(aim))
        x2, t2, z2 = _solve_refined(program, weight, keep * residual_x, keep * residual_t, target)
        aim_kappa = kappa * tau + d_kappa * d_tau - sigma * mu
        d_tau = (keep * rest - aim_kappa / tau + program.dot_x(cost, cost_t, x2, t2) + program.dot(h, z2)) / slope
        step_z = z2.plus(z1, d_tau)
        by_z = scale(step_z)
        by_s = aim.plus(by_z).times(-1.0)
        d_kappa = -(aim_kappa + kappa * d_tau) / tau
        step_length = _STEP_FRACTION * _max_step(lam, by_s, by_z, has, tau, d_tau, kappa, d_kappa)
        x, t = x + step_length * (x2 + d_tau * x1), t + step_length * (t2 + d_tau * t1)
        z, s = z.plus(step_z, step_length), s.plus(scale(by_s), step_length)
        tau, kappa = tau + step_length * d_tau, kappa + step_length * d_kappa
        if not np.isfinite(tau) or step_length < 1e-6:
            break
    if not best[0] < _ACCEPTED:
        raise NoSolution("the path does not converge")
    _, x, t, tau = best
    return x / tau / program.column, t / tau / program.column_t


def _solve_refined(program: ConicProgram, weight: Rows, x: Floats, t: float, z: Rows) -> tuple[Floats, float, Rows]:
    """`ConicProgram.solve` with iterative refinement."""
    dx, dt, dz = program.solve(weight, x, t, z)
    tolerance, before = _RESIDUAL * (1.0 + _largest(x, t, z)), np.inf
    correction: tuple[Floats, float, Rows] | None = None
    for _ in range(_MAX_REFINEMENTS + 1):
        back, back_t = program.backward(dz)
        residual_x = x - back - REGULARIZATION * dx
        residual_t = t - back_t - REGULARIZATION * dt
        residual_z = z.plus(program.forward(dx, dt), -1.0).plus(unweighted(dz, weight))
        residual_z = residual_z._replace(level=np.where(program.has, residual_z.level, 0.0))
        now = _largest(residual_x, residual_t, residual_z)
        if correction is not None and now > before:
            return dx - correction[0], dt - correction[1], dz.plus(correction[2], -1.0)
        if now < tolerance or before < _IMPROVEMENT * now:
            break
        before = now
        correction = program.solve(weight, residual_x, residual_t, residual_z)
        dx, dt, dz = dx + correction[0], dt + correction[1], dz.plus(correction[2])
    return dx, dt, dz


def _largest(x: Floats, t: float, z: Rows) -> float:
    """The largest absolute value."""
    return max(abs(t), *(float(np.abs(part).max()) for part in (x, *z) if part.size))


def _move_inside(point: Rows, one: Rows, has: Bools) -> Rows:
    """Move the point along the unit until it is well inside its cone."""
    linear = (point.x, point.cap, point.time, point.level[has], depth(point.cone))
    low = min(float(part.min(initial=np.inf)) for part in linear)
    result = point.plus(one, 1.0 - _STEP_FRACTION if low > 1e-12 else 1.0 - low)
    return result._replace(level=np.where(has, result.level, 1.0))


def _max_step(
    lam: Rows, by_s: Rows, by_z: Rows, has: Bools, tau: float, d_tau: float, kappa: float, d_kappa: float
) -> float:
    """The maximum step length."""
    largest = max(-d_tau / tau, -d_kappa / kappa, 1e-13)
    for end, s, z in zip(lam[:4], by_s[:4], by_z[:4], strict=True):
        low = np.minimum(s, z) / end
        largest = max(largest, -float((low[has] if end is lam.level else low).min(initial=0.0)))
    for step in (by_s.cone, by_z.cone) if lam.cone.size else ():
        largest = max(largest, float(inverse_step(lam.cone, step).max()))
    return min(1.0 / largest, _MAX_STEP)
