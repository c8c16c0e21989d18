"""Where a self-dual interior-point solver ends: the point on the optimal face that Gavel's policies took.

    max  gain . x + rise t :   x >= 0,   sum_i scale_i x_ik <= capacity_k,   sum_k x_ik <= 1,
                               sum_k c_ik x_ik >= base_i + pace_i t   (`Levels`, of which there may be several sets)

Such solvers stop before they come to the centre of the optimal face, somewhere that depends on their steps. This is the
textbook method (homogeneous self-dual embedding, Nesterov-Todd scaling, Mehrotra's predictor and corrector, three
rounds of equilibration) with the usual constants. Equal jobs stay equal all along, so that classes are exact, and a
step costs O(rows types^3). `walk` takes any `Program`; the one with columns for two jobs that share GPUs is in
`selfdual_pairs`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from levada.core.types import Bools, Floats
from levada.solve.highs import NoAnswer

_STEPS = 100
#: Where to stop, and what is good enough when numbers get no better.
_TOLERANCE, _GOOD = 1e-8, 1e-6
#: How often what a solve leaves over is solved for again: near the end numbers are far apart.
_REFINED = 2
#: Part of the way to the wall, the farthest step before that, and the least centring.
_PART, _FARTHEST, _CENTRING = 0.99, 0.999, 1e-4


class Rows(NamedTuple):
    """A number per constraint: x >= 0 (as x is), capacities (types), time (rows) and levels (sets, rows)."""

    x: Floats
    cap: Floats
    time: Floats
    level: Floats

    def times(self, factor: float) -> Rows:
        return Rows(*(part * factor for part in self))

    def plus(self, other: Rows, factor: float = 1.0) -> Rows:
        return Rows(*(mine + factor * theirs for mine, theirs in zip(self, other, strict=True)))

    def by(self, other: Rows) -> Rows:
        return Rows(*(mine * theirs for mine, theirs in zip(self, other, strict=True)))

    def over(self, other: Rows) -> Rows:
        return Rows(*(mine / theirs for mine, theirs in zip(self, other, strict=True)))

    def root(self) -> Rows:
        return Rows(*(np.sqrt(part) for part in self))


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
        """dx, dt and dz with  backward(dz) = (x, t)  and  forward(dx, dt) - dz / weight = z."""
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
        self.with_t = bool(self.of_t.any())
        self.column, self.column_t = np.ones((rows, types)), 1.0
        self.row = Rows(np.ones((rows, types)), np.ones(types), np.ones(rows), np.ones((sets, rows)))
        for _ in range(3):
            self._equilibrate()
        self.cost = (np.zeros((rows, types)) if gain is None else -gain) / self.column
        self.cost_t = -1.0 / self.column_t if self.with_t else 0.0
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
        level = weight.level * self.has
        more_x, more_t = self.backward(weight.by(z))
        pull, pull_t = x + more_x, t + more_t
        block = weight.time[:, None, None] * (self.of_time[:, :, None] * self.of_time[:, None, :])
        block += np.einsum("si,sik,sij->ikj", level, self.of_level, self.of_level)
        diagonal = np.arange(types)
        block[:, diagonal, diagonal] += weight.x * self.of_x**2
        # A hair on the diagonal: near the end numbers differ by more than their precision.
        block[:, diagonal, diagonal] *= 1 + 1e-14
        sides = np.zeros((rows, types, types + 2))
        sides[:, :, 0] = pull
        sides[:, diagonal, 1 + diagonal] = -self.of_use
        rise = np.einsum("sik,si->ik", self.of_level, level * self.of_t)
        sides[:, :, types + 1] = rise
        solved = np.linalg.solve(block, sides)
        joint = np.empty((types + 1, types + 2))
        joint[:types] = np.einsum("ik,ikj->kj", self.count[:, None] * self.of_use, solved)
        joint[types] = np.einsum("i,ik,ikj->j", self.count, rise, solved)
        matrix, right = -joint[:, 1:], joint[:, 0].copy()
        matrix[diagonal, diagonal] += 1.0 / weight.cap
        matrix[types, types] += float((level * self.of_t**2).sum(axis=0) @ self.count)
        right[types] += pull_t
        if not self.with_t:
            matrix[types], matrix[:, types] = 0.0, 0.0
            matrix[types, types], right[types] = 1.0, 0.0
        common = np.linalg.solve(matrix, right)
        dx, dt = solved[:, :, 0] + solved[:, :, 1:] @ common, float(common[types])
        dz = weight.by(self.forward(dx, dt).plus(z, -1.0))
        # What a type's use changes is known better than as a difference of sums.
        return dx, dt, dz._replace(cap=common[:types] - weight.cap * z.cap)


def follow(
    count: Floats, scale: Floats, capacity: Floats, levels: Levels, gain: Floats | None = None
) -> tuple[Floats, float]:
    """Shares and t at the end of the path. Every row has jobs, every type has GPUs; *gain* is per job."""
    return walk(Alone(count, scale, capacity, levels, gain))


def walk(program: Program) -> tuple[Floats, float]:
    """x and t at the end of the path; raises NoAnswer where it ends nowhere."""
    h, cost, cost_t, has = program.right, program.cost, program.cost_t, program.has
    one = Rows(*(np.ones_like(part) for part in h))
    x, t, z = _solved(program, one, np.zeros_like(cost), 0.0, h)
    s = _inside(z.times(-1.0), one, has)
    _, _, z = _solved(program, one, -cost, -cost_t, one.times(0.0))
    z = _inside(z, one, has)
    tau = kappa = 1.0
    degree = program.dot(one, one) + 1.0
    best = np.inf, x, t, tau
    size_h = max(1.0, np.sqrt(program.dot(h, h)))
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
        off = max(float(primal), gap / max(1.0, abs(value / tau)))
        if off < best[0]:
            best = off, x, t, tau
        # Rounding may spoil the dual in the last step or two, but not the shares.
        if off < _TOLERANCE:
            break
        mu = (gap + kappa * tau) / degree
        weight = z.over(s)
        scaling, ends = weight.root(), s.by(z).root()
        try:
            x1, t1, z1 = _solved(program, weight, -cost, -cost_t, h)
        except np.linalg.LinAlgError:
            break
        slope = kappa / tau - program.dot_x(cost, cost_t, x1, t1) - program.dot(h, z1)
        x2, t2, z2 = _solved(program, weight, rest_x, rest_t, s.plus(rest_z, -1.0))
        d_tau = (rest - kappa + program.dot_x(cost, cost_t, x2, t2) + program.dot(h, z2)) / slope
        by_z = z2.plus(z1, d_tau).over(scaling)
        by_s = by_z.times(-1.0).plus(ends, -1.0)
        d_kappa = -kappa - kappa / tau * d_tau
        sigma = (1.0 - _reach(ends, by_s, by_z, has, tau, d_tau, kappa, d_kappa)) ** 3
        sigma = min(max(sigma, _CENTRING), 1.0)
        aim = ends.by(ends).plus(by_s.by(by_z)).plus(one, -sigma * mu).over(ends)
        keep = 1.0 - sigma
        toward = rest_z.times(-keep).plus(aim.over(scaling))
        x2, t2, z2 = _solved(program, weight, keep * rest_x, keep * rest_t, toward)
        aim_kappa = kappa * tau + d_kappa * d_tau - sigma * mu
        d_tau = (keep * rest - aim_kappa / tau + program.dot_x(cost, cost_t, x2, t2) + program.dot(h, z2)) / slope
        step_z = z2.plus(z1, d_tau)
        by_z = step_z.over(scaling)
        by_s = aim.plus(by_z).times(-1.0)
        d_kappa = -(aim_kappa + kappa * d_tau) / tau
        way = _PART * _reach(ends, by_s, by_z, has, tau, d_tau, kappa, d_kappa)
        x, t = x + way * (x2 + d_tau * x1), t + way * (t2 + d_tau * t1)
        z, s = z.plus(step_z, way), s.plus(by_s.over(scaling), way)
        tau, kappa = tau + way * d_tau, kappa + way * d_kappa
        if not np.isfinite(tau) or way < 1e-6:
            break
    if not best[0] < _GOOD:
        raise NoAnswer("the path ends nowhere")
    _, x, t, tau = best
    return x / tau / program.column, t / tau / program.column_t


def _solved(program: Program, weight: Rows, x: Floats, t: float, z: Rows) -> tuple[Floats, float, Rows]:
    """See `Program.solve`, refined."""
    dx, dt, dz = program.solve(weight, x, t, z)
    for _ in range(_REFINED):
        back, back_t = program.backward(dz)
        rest_z = z.plus(program.forward(dx, dt), -1.0).plus(dz.over(weight))
        more_x, more_t, more_z = program.solve(weight, x - back, t - back_t if program.cost_t else 0.0, rest_z)
        dx, dt, dz = dx + more_x, dt + more_t, dz.plus(more_z)
    return dx, dt, dz


def _inside(point: Rows, one: Rows, has: Bools) -> Rows:
    """The point, moved along the diagonal until all is well above 0; what is a hair below it is so by rounding."""
    low = min(float(part.min(initial=np.inf)) for part in (point.x, point.cap, point.time, point.level[has]))
    moved = point.plus(one, 1.0 - _PART if low > 0 or -1e-12 < low < 0 else 1.0 - low)
    return moved._replace(level=np.where(has, moved.level, 1.0))


def _reach(
    ends: Rows, by_s: Rows, by_z: Rows, has: Bools, tau: float, d_tau: float, kappa: float, d_kappa: float
) -> float:
    """How far these steps may go."""
    worst = max(-d_tau / tau, -d_kappa / kappa, 1e-13)
    for end, s, z in zip(ends, by_s, by_z, strict=True):
        low = np.minimum(s, z) / end
        worst = max(worst, -float((low[has] if end is ends.level else low).min(initial=0.0)))
    return min(1.0 / worst, _FARTHEST)
