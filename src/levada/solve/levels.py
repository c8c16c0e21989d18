"""The linear program of fair policies: maximize the common level of all rows.

max t :  sum_k c_ik x_ik >= base_i + slope_i t,   sum_k x_ik <= 1,   sum_i gpus_i x_ik <= capacity_k,   x >= 0
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.solve.highs import Basis, Lp, LpModel, LpSolution, NoSolution

#: Fractions by which reached levels are relaxed, one after the other, while HiGHS finds them infeasible: rounding of
#: very large levels exceeds its tolerance.
_RELAXATIONS = (1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8)
#: Duals below this are noise; the tolerance of HiGHS is 1/1000 of it.
NOISE = 1e-6


class Levels(msgspec.Struct, frozen=True):
    """Solution of one program."""

    share: Floats  #: (rows, types), not rounded
    prices: Floats  #: (types,): increase of t per additional GPU
    bound: float  #: upper bound of t


class LevelLp:
    """The program in HiGHS. New rows are appended, so the last basis stays valid.

    All data are scaled to about 1: the unit of t is the smallest level that a row can reach alone, and the unit of
    time what the row needs for it. So levels have a small relative error, however different the weights are. Rows that
    cannot run or have no jobs (*gpus* 0) are not runnable and have no effect. With *worth* (rows, types) of full
    shares, the program maximizes the total worth instead of t, and *base* are minimum levels.
    """

    def __init__(
        self,
        c: Floats,
        gpus: Floats,
        capacity: Floats,
        slope: Floats,
        base: Floats | None = None,
        basis: Basis | None = None,
        worth: Floats | None = None,
    ) -> None:
        rows, types = c.shape
        self.c, self.gpus, self.capacity = c, gpus, capacity
        self.max_level = c.max(axis=1, initial=0.0)
        self.runnable = (self.max_level > 0) & (gpus > 0)
        self.slope = np.where(self.runnable, slope, 0.0)
        self.base = np.zeros(rows) if base is None else np.where(self.runnable, base, 0.0)
        rising = self.slope > 0
        limits = self.max_level[rising] / self.slope[rising]
        self.unit = float(limits.min()) if len(limits) else 1.0
        safe_max = np.where(self.runnable, self.max_level, 1.0)
        self.time = np.where(rising, self.slope * self.unit / safe_max, 1.0)  # x = time * y
        self.row = 1.0 / (safe_max * self.time)
        self.objective_unit = 1.0  # scale of the objective
        self.model = LpModel(self._program(rows, types, worth), basis)

    def _program(self, rows: int, types: int, worth: Floats | None) -> Lp:
        """Columns: t, then the types of each row. Rows: capacities, then level and time of each row."""
        usable = (self.c > 0) & self.runnable[:, None]
        use = (self.gpus * self.time)[:, None] * usable
        self.cap = np.maximum(use.max(axis=0, initial=0.0), 1e-300)
        level_row = types + 2 * np.arange(rows)
        index = np.empty((rows, types, 3), np.int64)
        index[:, :, 0] = np.arange(types)
        index[:, :, 1] = level_row[:, None]
        index[:, :, 2] = level_row[:, None] + 1
        value = np.empty((rows, types, 3))
        value[:, :, 0] = use / self.cap
        value[:, :, 1] = np.where(usable, self.c * (self.time * self.row)[:, None], 0.0)
        value[:, :, 2] = 1.0
        columns = 1 + rows * types
        lower_rows, upper_rows = np.full(types + 2 * rows, -np.inf), np.full(types + 2 * rows, np.inf)
        upper_rows[:types] = self.capacity / self.cap
        lower_rows[types::2] = np.where(self.runnable, self.base * self.row, -np.inf)
        upper_rows[types + 1 :: 2] = 1.0 / self.time
        #: Upper bounds of time and GPUs in the units of the program; infinite for levels.
        self.limit = upper_rows
        cost, upper = np.zeros(columns), np.full(columns, np.inf)
        cost[0] = 1.0
        upper[1:] = np.where(usable.ravel(), np.inf, 0.0)
        if worth is not None:
            gain = np.where(usable, worth * self.time[:, None], 0.0)
            self.objective_unit = float(gain.max(initial=0.0)) or 1.0
            cost[0], cost[1:] = 0.0, gain.ravel() / self.objective_unit
        if worth is not None or not (self.slope > 0).any():
            upper[0] = 0.0
        return Lp(
            cost=cost,
            lower=np.zeros(columns),
            upper=upper,
            row_lower=lower_rows,
            row_upper=upper_rows,
            start=np.concatenate([[0, rows], rows + 3 * np.arange(1, rows * types + 1)]),
            index=np.concatenate([level_row, index.ravel()]),
            value=np.concatenate([-self.slope * self.unit * self.row, value.ravel()]),
        )

    def set(self, rows: Ints, slope: Floats, base: Floats) -> None:
        """Require levels of at least `base + slope * t` for these rows."""
        self._set_slopes(rows, slope, base)
        self.model.set_row_bounds(self._level_row(rows), base * self.row[rows], np.full(len(rows), np.inf))

    def fix_level(self, rows: Ints, level: Floats) -> None:
        """Require exactly this level for these rows."""
        self._set_slopes(rows, np.zeros(len(rows)), level)
        self.model.set_row_bounds(self._level_row(rows), level * self.row[rows], level * self.row[rows])

    def _set_slopes(self, rows: Ints, slope: Floats, base: Floats) -> None:
        changed = rows[self.slope[rows] != slope]
        self.slope[rows], self.base[rows] = slope, base
        level_rows, values = self._level_row(changed), -self.slope[changed] * self.unit * self.row[changed]
        for level_row, value in zip(level_rows.tolist(), values.tolist(), strict=True):
            self.model.set_coefficient(level_row, 0, value)

    def _level_row(self, rows: Ints) -> Ints:
        return len(self.capacity) + 2 * rows

    def restrict_to_face(self, solution: LpSolution) -> None:
        """Restrict the program to its optimal face: fix columns at 0 and rows at their bounds if all optima do."""
        zero = 1 + np.flatnonzero(solution.reduced[1:] < -NOISE)
        if len(zero):
            self.model.fix_at_zero(zero)
        full = np.flatnonzero(np.isfinite(self.limit) & (solution.dual > NOISE))
        if len(full):
            self.model.set_row_bounds(full, self.limit[full], self.limit[full])

    def optimum(self, iteration_limit: int | None = None) -> LpSolution:
        """Solve; raises NoSolution if the base levels are infeasible even when relaxed.

        With *iteration_limit*, base levels are not relaxed, and reaching the limit raises NoSolution, too.
        """
        solution = self.model.solve(iteration_limit)
        for relaxation in _RELAXATIONS if iteration_limit is None else ():
            if solution is None:
                rows = np.flatnonzero(self.runnable & (self.base > 0))
                lower = self.base[rows] * self.row[rows] * (1 - relaxation)
                self.model.set_row_bounds(self._level_row(rows), lower, np.full(len(rows), np.inf))
                solution = self.model.solve()
        if solution is None:
            raise NoSolution("the base levels are infeasible")
        return solution

    def blocking(self, solution: LpSolution) -> Floats:
        """How much each row limits t, in total 1; above 0 = the row is tight in all optima."""
        return np.maximum(-solution.dual[len(self.capacity) :: 2], 0.0) * self.slope * self.unit * self.row

    def solve(self) -> Levels:
        """Maximize t; raises NoSolution if the base levels are infeasible."""
        return self.read(self.optimum())

    def read(self, solution: LpSolution) -> Levels:
        """Convert a solution of the current program; appended columns are ignored."""
        rows, types = self.c.shape
        share = solution.x[1 : 1 + rows * types].reshape(rows, types) * self.time[:, None]
        weight = np.maximum(-solution.dual[types::2], 0.0) * self.row * self.unit
        prices = np.maximum(solution.dual[:types], 0.0) * self.unit / self.cap
        bound = upper_bound(self.c, self.gpus, self.capacity, self.slope, self.base, weight, prices)
        return Levels(share, prices, bound)


def upper_bound(
    c: Floats, gpus: Floats, capacity: Floats, slope: Floats, base: Floats, weight: Floats, prices: Floats
) -> float:
    """An upper bound of t from any *weight* of the rows and any *prices* of the types (weak duality).

    In the weighted sum of the rows, the dual of a row's time pays the gain beyond the price of a type.
    """
    total = float(weight @ slope)
    if total <= 0:
        return float("inf")
    gain = weight[:, None] * c - gpus[:, None] * prices
    time = np.maximum(np.where(c > 0, gain, 0.0).max(axis=1, initial=0.0), 0.0)
    return float((prices @ capacity + time.sum() - weight @ base) / total)
