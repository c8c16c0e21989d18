"""Where a self-dual interior-point solver ends: the point on the optimal face that Gavel's policies took.

    max  gain . x + rise t :   x >= 0,   sum_i scale_i x_ik <= capacity_k,   sum_k x_ik <= 1,
                               sum_k c_ik x_ik >= base_i + pace_i t   (`Levels`, of which there may be several sets)

Such solvers stop before they come to the centre of the optimal face, somewhere that depends on their steps. This is the
textbook method (homogeneous self-dual embedding, Nesterov-Todd scaling, Mehrotra's predictor and corrector, three
rounds of equilibration) with the usual constants. Equal jobs stay equal all along, so that classes are exact, and a
step costs O(rows types^3). `walk` takes any `Program`; the one with columns for two jobs that share GPUs is in
`selfdual_pairs`, that of finish-time ratios, which is not linear, in `selfdual_ratio`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from levada.core.types import Bools, Floats
from levada.kernels import selfdual
from levada.solve.highs import NoAnswer
from levada.solve.symmetric import Rows, Scaling, depth, fall, level_weight, product, quotient, unit, unweighted

_STEPS = 100
#: Where to stop, and what is good enough when numbers get no better.
_TOLERANCE, _GOOD = 1e-8, 1e-6
#: On every diagonal, so that what is solved stays far from singular when numbers are far apart, near the end.
#: Directions are a hair off by it, as they are in the solvers whose ends are repeated here.
REGULAR = 7e-8
#: How often at most what a solve leaves over is solved for again, what may be left, and how much less it has to become.
_REFINED, _LEFT_OVER, _LESS = 9, 1e-14, 6.0
#: Part of the way to the wall, the farthest step before that, and the least centring.
_PART, _FARTHEST, _CENTRING = 0.99, 0.999, 1e-4


class Program(Protocol):
    """A scaled program, as far as `walk` needs to know it."""

    #: What x and t were multiplied with.
    column: Floats
    column_t: float
    cost: Floats
    cost_t: float
    #: The constraints' right sides, and which levels there are.
    right: Rows
    has: Bools

    def forward(self, x: Floats, t: float) -> Rows:
        """The constraints' left sides."""
        ...

    def backward(self, z: Rows) -> tuple[Floats, float]:
        """The columns' sums over constraints."""
        ...

    def dot(self, a: Rows, b: Rows) -> float:
        """The product of two vectors of constraints, each job's own."""
        ...

    def dot_x(self, a: Floats, a_t: float, b: Floats, b_t: float) -> float:
        """The product of two vectors of columns, each job's own."""
        ...

    def solve(self, weight: Rows, x: Floats, t: float, z: Rows) -> tuple[Floats, float, Rows]:
        """dx, dt and dz with  backward(dz) + REGULAR (dx, dt) = (x, t)  and  forward(dx, dt) - dz / weight = z.

        See `unweighted`.
        """
        ...


class Levels(NamedTuple):
    """Sets of constraints  c . x >= base + pace t,  one of each set for every row that `has` it."""

    c: Floats  #: (sets, rows, types)
    base: Floats  #: (sets, rows)
    pace: Floats  #: (sets, rows)
    has: Bools  #: (sets, rows)

    @staticmethod
    def of(c: Floats, base: Floats | None, pace: Floats | None, has: Bools) -> Levels:
        """One set; without a word, nothing is the base, and nobody rises."""
        zeros = np.zeros(len(c))
        return Levels(
            c[None], (zeros if base is None else base)[None], (zeros if pace is None else pace)[None], has[None]
        )


class Alone:
    """The program of one class per row, each of *count* equal jobs; x is each job's."""

    def __init__(
        self, count: Floats, scale: Floats, capacity: Floats, levels: Levels, gain: Floats | None = None
    ) -> None:
        sets, rows, types = levels.c.shape
        self.count, self.has = count, levels.has
        self.of_x, self.of_use = np.ones((rows, types)), np.repeat(scale[:, None], types, axis=1)
        self.of_time, self.of_level = np.ones((rows, types)), levels.c * levels.has[:, :, None]
        self.of_t = levels.pace * levels.has
        self.column, self.column_t = np.ones((rows, types)), 1.0
        self.row = Rows(np.ones((rows, types)), np.ones(types), np.ones(rows), np.ones((sets, rows)))
        for _ in range(3):
            self._equilibrate()
        self.cost = (np.zeros((rows, types)) if gain is None else -gain) / self.column
        self.cost_t = -1.0 / self.column_t if self.of_t.any() else 0.0
        floor = levels.base * levels.has
        self.right = Rows(np.zeros((rows, types)), capacity, np.ones(rows), -floor).over(self.row)

    def _equilibrate(self) -> None:
        """Rows and columns, both divided by the root of their largest entry."""
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
        """See `Program`."""
        return Rows(
            -self.of_x * x,
            self.count @ (self.of_use * x),
            (self.of_time * x).sum(axis=1),
            self.of_t * t - (self.of_level * x).sum(axis=2),
        )

    def backward(self, z: Rows) -> tuple[Floats, float]:
        """See `Program`."""
        x = -self.of_x * z.x + self.of_use * z.cap + self.of_time * z.time[:, None]
        x -= (self.of_level * z.level[:, :, None]).sum(axis=0)
        return x, float((self.of_t * z.level).sum(axis=0) @ self.count)

    def dot(self, a: Rows, b: Rows) -> float:
        """See `Program`."""
        own = (a.x * b.x).sum(axis=1) + a.time * b.time + (self.has * a.level * b.level).sum(axis=0)
        return float(self.count @ own + a.cap @ b.cap)

    def dot_x(self, a: Floats, a_t: float, b: Floats, b_t: float) -> float:
        """See `Program`."""
        return float(self.count @ (a * b).sum(axis=1)) + a_t * b_t

    def solve(self, weight: Rows, x: Floats, t: float, z: Rows) -> tuple[Floats, float, Rows]:
        """See `Program`."""
        rows, types = x.shape
        sets = len(self.of_level)
        # A row's x, time and levels stay together: to express one by the others would lose digits.
        own, of_x = np.zeros((rows, types + 1 + sets, types + 1 + sets)), slice(0, types)
        own[:, types, of_x] = own[:, of_x, types] = self.of_time
        own[:, types + 1 :, of_x] = -self.of_level.swapaxes(0, 1)
        own[:, of_x, types + 1 :] = own[:, types + 1 :, of_x].swapaxes(1, 2)
        diagonal = np.arange(types + 1 + sets)
        own[:, diagonal[:types], diagonal[:types]] = weight.x * self.of_x**2 + REGULAR
        own[:, types, types] = -1.0 / weight.time
        own[:, diagonal[types + 1 :], diagonal[types + 1 :]] = np.where(self.has, -1.0 / weight.level, -1.0).T
        side, rise = np.zeros((rows, types + 1 + sets)), np.zeros((rows, types + 1 + sets))
        side[:, of_x] = x - self.of_x * weight.x * z.x
        side[:, types] = z.time
        side[:, types + 1 :] = (self.has * z.level).T
        rise[:, types + 1 :] = self.of_t.T
        each, cap, dt = joined(own, side, self.of_use, rise, self.count, weight.cap, z.cap, t)
        dx = each[:, of_x]
        dz = Rows(-weight.x * (self.of_x * dx + z.x), cap, each[:, types], each[:, types + 1 :].T)
        return dx, dt, dz


def joined(
    own: Floats, side: Floats, use: Floats, rise: Floats, count: Floats, weight: Floats, cap: Floats, t: float
) -> tuple[Floats, Floats, float]:
    """The numbers of each row, of capacities, and of t, where rows have only the latter two in common.

    *own* and *side* are each row's own equations; there its first columns count by *use* for capacities, and *rise*
    says where t is in them. A row counts *count* times.
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
    matrix[types, types] += REGULAR
    common = np.linalg.solve(matrix, right)
    return solved[:, :, 0] + solved[:, :, 1:] @ common, common[:types], float(common[types])


def follow(
    count: Floats, scale: Floats, capacity: Floats, levels: Levels, gain: Floats | None = None
) -> tuple[Floats, float]:
    """Shares and t at the end of the path. Every row has jobs, every type has GPUs; *gain* is per job."""
    # Water-filling walks once for each level, mostly with all rows: a kernel does it.
    if levels.has.all():
        ones = np.ones((len(count), 1))
        of_own = np.concatenate(
            [np.broadcast_to(1.0, (len(count), 1, len(capacity))), -levels.c.swapaxes(0, 1)], axis=1
        )
        rise = np.concatenate([0.0 * ones, levels.pace.T], axis=1)
        sides = np.concatenate([ones, -levels.base.T], axis=1)
        return walk_alone(count, scale, capacity, of_own, rise, sides, gain)
    return walk(Alone(count, scale, capacity, levels, gain))


def walk_alone(
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
    """`walk` for jobs alone, by `kernels.selfdual.follow`."""
    worth = np.zeros((len(count), of_own.shape[2])) if gain is None else gain
    count, scale, capacity = (np.ascontiguousarray(part) for part in (count, scale, capacity))
    of_own, rise, sides, worth = (np.ascontiguousarray(part) for part in (of_own, rise, sides, worth))
    off, x, t = selfdual.follow(count, scale, capacity, of_own, rise, sides, worth, cones)
    if not off < _GOOD:
        raise NoAnswer("the path ends nowhere")
    return x, t


def walk(program: Program) -> tuple[Floats, float]:
    """x and t at the end of the path; raises NoAnswer where it ends nowhere."""
    h, cost, cost_t, has = program.right, program.cost, program.cost_t, program.has
    one = unit(h)
    even = level_weight(h, REGULAR)
    x, t, z = _solved(program, even, np.zeros_like(cost), 0.0, h)
    s = _inside(z.times(-1.0), one, has)
    _, _, z = _solved(program, even, -cost, -cost_t, one.times(0.0))
    z = _inside(z, one, has)
    tau = kappa = 1.0
    degree = program.dot(one, one) + 1.0
    best = np.inf, x, t, tau
    size_h = max(1.0, np.sqrt(program.dot(h, h)))
    size_cost = max(1.0, np.sqrt(program.dot_x(cost, cost_t, cost, cost_t)))
    for _ in range(_STEPS):
        back, back_t = program.backward(z)
        rest_x, rest_t = -back - cost * tau, -back_t - cost_t * tau
        left = program.forward(x, t).plus(s)
        rest_z = left.plus(h, -tau)
        value, other = program.dot_x(cost, cost_t, x, t), program.dot(h, z)
        rest = kappa + value + other
        gap = program.dot(s, z)
        size = size_h + np.sqrt(program.dot_x(x, t, x, t)) + np.sqrt(program.dot(s, s))
        primal = np.sqrt(program.dot(rest_z, rest_z)) / size / tau
        dual = np.sqrt(program.dot_x(rest_x, rest_t, rest_x, rest_t)) / (size_cost + np.sqrt(program.dot(z, z))) / tau
        off = max(float(primal), float(dual), gap / max(1.0, -value / tau, -other / tau))
        if off < best[0]:
            best = off, x, t, tau
        if off < _TOLERANCE and (value < 0 or other <= _TOLERANCE):
            break
        mu = (gap + kappa * tau) / degree
        try:
            scale = Scaling(s, z)
            ends, weight = scale.ends, scale.weight(REGULAR)
            x1, t1, z1 = _solved(program, weight, -cost, -cost_t, h)
        except (NoAnswer, np.linalg.LinAlgError):
            break
        slope = kappa / tau - program.dot_x(cost, cost_t, x1, t1) - program.dot(h, z1)
        x2, t2, z2 = _solved(program, weight, rest_x, rest_t, s.plus(rest_z, -1.0))
        d_tau = (rest - kappa + program.dot_x(cost, cost_t, x2, t2) + program.dot(h, z2)) / slope
        by_z = scale(z2.plus(z1, d_tau))
        by_s = by_z.times(-1.0).plus(ends, -1.0)
        d_kappa = -kappa - kappa / tau * d_tau
        sigma = (1.0 - _reach(ends, by_s, by_z, has, tau, d_tau, kappa, d_kappa)) ** 3
        sigma = min(max(sigma, _CENTRING), 1.0)
        aim = quotient(product(ends, ends).plus(product(by_s, by_z)).plus(one, -sigma * mu), ends)
        keep = 1.0 - sigma
        toward = rest_z.times(-keep).plus(scale(aim))
        x2, t2, z2 = _solved(program, weight, keep * rest_x, keep * rest_t, toward)
        aim_kappa = kappa * tau + d_kappa * d_tau - sigma * mu
        d_tau = (keep * rest - aim_kappa / tau + program.dot_x(cost, cost_t, x2, t2) + program.dot(h, z2)) / slope
        step_z = z2.plus(z1, d_tau)
        by_z = scale(step_z)
        by_s = aim.plus(by_z).times(-1.0)
        d_kappa = -(aim_kappa + kappa * d_tau) / tau
        way = _PART * _reach(ends, by_s, by_z, has, tau, d_tau, kappa, d_kappa)
        x, t = x + way * (x2 + d_tau * x1), t + way * (t2 + d_tau * t1)
        z, s = z.plus(step_z, way), s.plus(scale(by_s), way)
        tau, kappa = tau + way * d_tau, kappa + way * d_kappa
        if not np.isfinite(tau) or way < 1e-6:
            break
    if not best[0] < _GOOD:
        raise NoAnswer("the path ends nowhere")
    _, x, t, tau = best
    return x / tau / program.column, t / tau / program.column_t


def _solved(program: Program, weight: Rows, x: Floats, t: float, z: Rows) -> tuple[Floats, float, Rows]:
    """See `Program.solve`, refined while that helps."""
    dx, dt, dz = program.solve(weight, x, t, z)
    enough, before = _LEFT_OVER * (1.0 + _largest(x, t, z)), np.inf
    more: tuple[Floats, float, Rows] | None = None
    for _ in range(_REFINED + 1):
        back, back_t = program.backward(dz)
        rest_x = x - back - REGULAR * dx
        rest_t = t - back_t - REGULAR * dt
        rest_z = z.plus(program.forward(dx, dt), -1.0).plus(unweighted(dz, weight))
        rest_z = rest_z._replace(level=np.where(program.has, rest_z.level, 0.0))
        now = _largest(rest_x, rest_t, rest_z)
        if more is not None and now > before:
            return dx - more[0], dt - more[1], dz.plus(more[2], -1.0)
        if now < enough or before < _LESS * now:
            break
        before = now
        more = program.solve(weight, rest_x, rest_t, rest_z)
        dx, dt, dz = dx + more[0], dt + more[1], dz.plus(more[2])
    return dx, dt, dz


def _largest(x: Floats, t: float, z: Rows) -> float:
    """The largest of all these numbers."""
    return max(abs(t), *(float(np.abs(part).max()) for part in (x, *z) if part.size))


def _inside(point: Rows, one: Rows, has: Bools) -> Rows:
    """The point, moved along the unit until it is well inside; a hair inside is on the wall, but for rounding."""
    linear = (point.x, point.cap, point.time, point.level[has], depth(point.cone))
    low = min(float(part.min(initial=np.inf)) for part in linear)
    moved = point.plus(one, 1.0 - _PART if low > 1e-12 else 1.0 - low)
    return moved._replace(level=np.where(has, moved.level, 1.0))


def _reach(
    ends: Rows, by_s: Rows, by_z: Rows, has: Bools, tau: float, d_tau: float, kappa: float, d_kappa: float
) -> float:
    """How far these steps may go."""
    worst = max(-d_tau / tau, -d_kappa / kappa, 1e-13)
    for end, s, z in zip(ends[:4], by_s[:4], by_z[:4], strict=True):
        low = np.minimum(s, z) / end
        worst = max(worst, -float((low[has] if end is ends.level else low).min(initial=0.0)))
    for step in (by_s.cone, by_z.cone) if ends.cone.size else ():
        worst = max(worst, float(fall(ends.cone, step).max()))
    return min(1.0 / worst, _FARTHEST)
