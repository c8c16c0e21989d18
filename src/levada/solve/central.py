"""Interior points: maximize a sum of logarithms with a primal-dual Newton method.

    max  gain . x + rise t + sum of logs :   x > 0,   1 - sum_k x_ik > 0,   capacity_k - sum_i gpus_i x_ik > 0,
                                             sum_k c_ik x_ik - slope_i t - base_i > 0

The weight of the logs is *mu* times the number of jobs of a row. Mu decreases, so the result is the analytic center of
the optimal face. By symmetry, classes are exact here, too. Rows are coupled only by capacities and t, so a step costs
O(rows types^3).
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Bools, Floats
from levada.solve.highs import NoSolution

_MAX_STEPS = 300
#: From this mu on, the last point is accepted if the linear system becomes singular.
_SMALL = 1e-7
#: Maximum fraction of the way to the nearest constraint in one step.
_STEP_FRACTION = 0.99
#: Relative error of the products of slacks and duals at which mu decreases; and at the end.
_CENTERED, _CENTERED_AT_END = 0.5, 1e-7


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """What `center` maximizes; without gain, slope and floors, mu has no effect: use 1."""

    gain: Floats | None = None  #: (rows, types): of full shares of all jobs of a row
    slope: Floats | None = None  #: (rows,): of levels in t; if given, t is maximized
    base: Floats | None = None  #: (rows,): minimum levels
    floors: Bools | None = None  #: (rows,): which rows have a minimum level; None = all
    mu: float = 1e-9
    worth: float = 0.0  #: if above 0, weight of the logs of levels instead of mu (Nash welfare)


class Center(msgspec.Struct, frozen=True):
    """Result of `center`."""

    share: Floats
    t: float
    prices: Floats


class _System(msgspec.Struct, frozen=True, kw_only=True):
    """The problem in the form of the Newton method. GPUs are fractions of the capacity of their type."""

    free: Bools  #: (rows, types): shares that are variables
    c: Floats
    use: Floats  #: (rows, types): GPUs of a full share
    level: Floats  #: (rows,): 1 = the row has a level constraint, else 0
    slope: Floats
    floor: Floats
    gain: Floats
    count: Floats  #: at least 1
    populated: Bools  #: rows with jobs
    kinds: Bools  #: types with GPUs
    rise: float  #: coefficient of t
    worth: float


def center(c: Floats, count: Floats, gpus: Floats, capacity: Floats, objective: Objective) -> Center:
    """The central point for mu; raises NoSolution. Scale the data such that levels and gains are about 1."""
    kinds = capacity > 0
    system = _system(c, count, gpus, capacity, objective)
    point = _Point(system)
    mu = 1.0
    for _ in range(_MAX_STEPS):
        try:
            error = point.step(system, mu)
        except np.linalg.LinAlgError:
            if mu > _SMALL:
                raise
            break  # the point is as close to the constraints as rounding permits
        if error < (_CENTERED if mu > objective.mu else _CENTERED_AT_END):
            if mu <= objective.mu:
                break
            mu = max(0.1 * mu, objective.mu)
    if np.abs(point.residual).max(initial=0.0) > 1e-6:
        raise NoSolution("the minimum levels are infeasible")
    prices = np.where(kinds, point.zv, 0.0) / np.where(kinds, capacity, 1.0)
    return Center(np.where(system.free, point.x, 0.0), point.t, prices)


def _system(c: Floats, count: Floats, gpus: Floats, capacity: Floats, objective: Objective) -> _System:
    rows, types = c.shape
    gain, slope, base, floors = objective.gain, objective.slope, objective.base, objective.floors
    free = (c > 0) & (capacity > 0) & (count > 0)[:, None]
    kinds = capacity > 0
    level = (free.any(axis=1) if floors is None else floors & free.any(axis=1)).astype(float)
    return _System(
        free=free,
        c=np.where(free, c, 0.0),
        use=gpus[:, None] * free / np.where(kinds, capacity, 1.0),
        level=level,
        slope=np.zeros(rows) if slope is None else slope * level,
        floor=np.zeros(rows) if base is None else base,
        gain=np.zeros((rows, types)) if gain is None else np.where(free, gain, 0.0),
        count=np.maximum(count, 1.0),
        populated=count > 0,
        kinds=kinds,
        rise=1.0 if slope is not None else 0.0,
        worth=objective.worth,
    )


class _Point:
    """Shares `x` and `t`, the slacks of time, capacity (`room`) and levels (`over`), and the duals of all."""

    def __init__(self, system: _System) -> None:
        types = system.c.shape[1]
        free, c, use, count = system.free, system.c, system.use, system.count
        x = np.where(free, 0.5 * np.minimum(1.0 / types, np.ones(types) / np.maximum(use.sum(axis=0), 1e-300)), 1.0)
        self.x, self.t = x, 0.0
        self.time = 1.0 - (x * free).sum(axis=1)
        self.room = np.ones(types) - (use * x).sum(axis=0)
        self.over = np.where(system.level > 0, np.maximum((c * x).sum(axis=1) - system.floor, 0.1), 1.0)
        #: Duals of x, time, capacity and levels.
        self.zx, self.zu, self.zv = count[:, None] / x, count / self.time, 1.0 / self.room
        self.zl = system.level * (count * (system.worth if system.worth > 0 else 1.0)) / self.over
        #: By how much `over` differs from the levels.
        self.residual = np.zeros(len(x))

    def step(self, system: _System, mu: float) -> float:
        """Take a Newton step; returns the relative error of the products of slacks and duals.

        Raises LinAlgError if the linear system is singular, NoSolution if the point diverges.
        """
        s, free, c, level = system, system.free, system.c, system.level
        x, time, room, over = self.x, self.time, self.room, self.over
        zx, zu, zv, zl = self.zx, self.zu, self.zv, self.zl
        aim_x, aim_u, aim_v = mu * s.count[:, None], mu * s.count, mu
        aim_level = s.count * (s.worth if s.worth > 0 else mu)
        dl = zl / over
        self.residual = residual = level * ((c * x).sum(axis=1) - s.slope * self.t - s.floor - over)
        right = s.gain + aim_x / x - (aim_u / time)[:, None] - s.use * (aim_v / room)
        lift = level * (aim_level / over - dl * residual)
        right = (right + c * lift[:, None]) * free
        dv = zv / room
        step, common = _direction(s, right, zx / x, zu / time, dv, dl * level, s.rise - s.slope @ lift)
        step_t = float(common[-1])
        step_time = -step.sum(axis=1)
        step_room = -common[:-1] / dv  # as a difference of sums, it would be lost in rounding when little room is left
        step_over = level * ((c * step).sum(axis=1) - s.slope * step_t + residual)
        step_zx = (aim_x - zx * step) / x - zx
        step_zu = (aim_u - zu * step_time) / time - zu
        step_zv = (aim_v - zv * step_room) / room - zv
        step_zl = level * ((aim_level - zl * step_over) / over - zl)
        primal = _step_length((x, step * free), (time, step_time), (room, step_room), (over, step_over))
        dual = _step_length((zx, step_zx * free), (zu, step_zu), (zv, step_zv), (np.where(level > 0, zl, 1.0), step_zl))
        if s.worth > 0:
            primal = dual = min(primal, dual)
        self.x, self.time, self.room = x + primal * step, time + primal * step_time, room + primal * step_room
        self.t, self.over = self.t + primal * step_t, over + primal * step_over
        self.zx, self.zu = zx + dual * step_zx * free, zu + dual * step_zu
        self.zv, self.zl = zv + dual * step_zv, zl + dual * step_zl
        if not np.isfinite(self.t):
            raise NoSolution("the search for the central point diverged")
        return max(
            _relative_error(self.zx * self.x, aim_x, free),
            _relative_error(self.zu * self.time, aim_u, s.populated),
            _relative_error(self.zv * self.room, aim_v, s.kinds),
            _relative_error(self.zl * self.over, aim_level, level > 0),
        )


def _direction(
    system: _System, right: Floats, dx: Floats, du: Floats, dv: Floats, dl: Floats, right_t: float
) -> tuple[Floats, Floats]:
    """The Newton step in x; and the coupling unknowns: the change of each type's use times dv, and the step in t.

    Each row is a small linear system, which is solved for each coupling unknown; these are solved last.
    """
    free, c, use, slope = system.free, system.c, system.use, system.slope
    rows, types = c.shape
    diagonal = np.arange(types)
    both = free[:, :, None] & free[:, None, :]
    block = du[:, None, None] * both + dl[:, None, None] * (c[:, :, None] * c[:, None, :])
    block[:, diagonal, diagonal] += np.where(free, dx, 1.0)
    sides = np.zeros((rows, types, types + 2))
    sides[:, :, 0] = right
    sides[:, diagonal, 1 + diagonal] = -use
    sides[:, :, types + 1] = c * (dl * slope)[:, None]
    solved = np.linalg.solve(block, sides)
    joint = np.empty((types + 1, types + 2))
    joint[:types] = np.einsum("ik,ikj->kj", use, solved)
    joint[types] = np.einsum("i,ik,ikj->j", slope * dl, c, solved)
    matrix, joint_right = -joint[:, 1:], joint[:, 0].copy()
    matrix[diagonal, diagonal] += 1.0 / dv
    matrix[types, types] += (slope**2 * dl).sum()
    joint_right[types] += right_t
    if system.rise == 0:
        matrix[types], matrix[:, types] = 0.0, 0.0
        matrix[types, types], joint_right[types] = 1.0, 0.0
    common = np.linalg.solve(matrix, joint_right)
    return (solved[:, :, 0] + solved[:, :, 1:] @ common) * free, common


def _step_length(*constraints: tuple[Floats, Floats]) -> float:
    """The largest step length, at most 1, that keeps these values positive; a constraint is (value, step)."""
    length = 1.0
    for value, step in constraints:
        nearest = float((-step / value).max(initial=0.0))
        if nearest > 0:
            length = min(length, _STEP_FRACTION / nearest)
    return length


def _relative_error(product: Floats, aim: Floats | float, counted: Bools) -> float:
    return float(np.abs(np.where(counted, product / aim - 1.0, 0.0)).max(initial=0.0))
