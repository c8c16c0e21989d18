"""The linear program behind the fair policies: the largest common level that all rows can reach.

max t :  sum_k c_ik x_ik >= base_i + pace_i t,   sum_k x_ik <= 1,   sum_i gpus_i x_ik <= capacity_k,   x >= 0
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.solve.highs import Answer, Basis, Lp, Model, NoAnswer

#: Levels that were reached once must be reached again but for this part, which grows when HiGHS finds that impossible:
#: where levels are a million units high, rounding alone exceeds its tolerance.
_HAIRS = (1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8)
#: Duals below this are noise: HiGHS is content with a thousandth of it.
NOISE = 1e-6


class Levels(msgspec.Struct, frozen=True):
    """The answer for one program."""

    share: Floats  #: (rows, types), as the solver gave it
    prices: Floats  #: (types,): how much t rises with one more GPU
    bound: float  #: no shares reach a larger t


class LevelLp:
    """The program in HiGHS. Rows keep their places, so that the last basis fits when rows come at the end.

    Everything is scaled to about 1 with the unit of t as the level that no row could exceed even alone, and time in
    units of what a row needs for that: levels are exact relative to themselves, however much weights differ.
    Rows that cannot run, and rows of nobody (*gpus* 0), have no part in it. With *worth* (rows, types) of full shares,
    the total of that is maximised instead of t, and the bases are what must be reached.
    """

    def __init__(
        self,
        c: Floats,
        gpus: Floats,
        capacity: Floats,
        pace: Floats,
        base: Floats | None = None,
        basis: Basis | None = None,
        worth: Floats | None = None,
    ) -> None:
        rows, types = c.shape
        self.c, self.gpus, self.capacity = c, gpus, capacity
        self.best = c.max(axis=1, initial=0.0)
        self.part = (self.best > 0) & (gpus > 0)
        self.pace = np.where(self.part, pace, 0.0)
        self.base = np.zeros(rows) if base is None else np.where(self.part, base, 0.0)
        paced = self.pace > 0
        limits = self.best[paced] / self.pace[paced]
        self.unit = float(limits.min()) if len(limits) else 1.0
        safe_best = np.where(self.part, self.best, 1.0)
        self.time = np.where(paced, self.pace * self.unit / safe_best, 1.0)  # x = time * y
        self.row = 1.0 / (safe_best * self.time)
        self.money = 1.0  # the unit of the objective
        self.model = Model(self._program(rows, types, worth), basis)

    def _program(self, rows: int, types: int, worth: Floats | None) -> Lp:
        """Columns: t, then the types of each row. Rows: capacities, then level and time of each row."""
        usable = (self.c > 0) & self.part[:, None]
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
        lower_rows[types::2] = np.where(self.part, self.base * self.row, -np.inf)
        upper_rows[types + 1 :: 2] = 1.0 / self.time
        #: Of time and GPUs in the program's units; infinite for levels.
        self.limit = upper_rows
        cost, upper = np.zeros(columns), np.full(columns, np.inf)
        cost[0] = 1.0
        upper[1:] = np.where(usable.ravel(), np.inf, 0.0)
        if worth is not None:
            gain = np.where(usable, worth * self.time[:, None], 0.0)
            self.money = float(gain.max(initial=0.0)) or 1.0
            cost[0], cost[1:] = 0.0, gain.ravel() / self.money
        if worth is not None or not (self.pace > 0).any():
            upper[0] = 0.0
        return Lp(
            cost=cost,
            lower=np.zeros(columns),
            upper=upper,
            row_lower=lower_rows,
            row_upper=upper_rows,
            start=np.concatenate([[0, rows], rows + 3 * np.arange(1, rows * types + 1)]),
            index=np.concatenate([level_row, index.ravel()]),
            value=np.concatenate([-self.pace * self.unit * self.row, value.ravel()]),
        )

    def set(self, rows: Ints, pace: Floats, base: Floats) -> None:
        """From now on these rows must reach `base + pace * t`."""
        self._move(rows, pace, base)
        self.model.bound(self._level_row(rows), base * self.row[rows], np.full(len(rows), np.inf))

    def hold(self, rows: Ints, level: Floats) -> None:
        """From now on these rows have this level, no less and no more."""
        self._move(rows, np.zeros(len(rows)), level)
        self.model.bound(self._level_row(rows), level * self.row[rows], level * self.row[rows])

    def _move(self, rows: Ints, pace: Floats, base: Floats) -> None:
        moved = rows[self.pace[rows] != pace]
        self.pace[rows], self.base[rows] = pace, base
        places, values = self._level_row(moved), -self.pace[moved] * self.unit * self.row[moved]
        for place, value in zip(places.tolist(), values.tolist(), strict=True):
            self.model.change(place, 0, value)

    def _level_row(self, rows: Ints) -> Ints:
        return len(self.capacity) + 2 * rows

    def narrow(self, answer: Answer) -> None:
        """Leaves only what optima have in common: what is 0 in all of them stays 0, and what is full stays full."""
        closed = 1 + np.flatnonzero(answer.reduced[1:] < -NOISE)
        if len(closed):
            self.model.close(closed)
        full = np.flatnonzero(np.isfinite(self.limit) & (answer.dual > NOISE))
        if len(full):
            self.model.bound(full, self.limit[full], self.limit[full])

    def optimum(self, most_steps: int | None = None) -> Answer:
        """HiGHS's answer; raises NoAnswer where the bases cannot be reached but for a hair.

        With *most_steps* it is an attempt, which also ends in NoAnswer after so many steps, or for a hair.
        """
        answer = self.model.solve(most_steps)
        for hair in _HAIRS if most_steps is None else ():
            if answer is None:
                rows = np.flatnonzero(self.part & (self.base > 0))
                lower = self.base[rows] * self.row[rows] * (1 - hair)
                self.model.bound(self._level_row(rows), lower, np.full(len(rows), np.inf))
                answer = self.model.solve()
        if answer is None:
            raise NoAnswer("what must be reached cannot be reached")
        return answer

    def force(self, answer: Answer) -> Floats:
        """How hard each row holds t down, all together 1; above 0 = it can rise in no optimum."""
        return np.maximum(-answer.dual[len(self.capacity) :: 2], 0.0) * self.pace * self.unit * self.row

    def solve(self) -> Levels:
        """The largest t; raises NoAnswer where the bases cannot be reached."""
        return self.read(self.optimum())

    def read(self, answer: Answer) -> Levels:
        """What an answer to the present program means; columns that were added at its end are left out."""
        rows, types = self.c.shape
        share = answer.x[1 : 1 + rows * types].reshape(rows, types) * self.time[:, None]
        weight = np.maximum(-answer.dual[types::2], 0.0) * self.row * self.unit
        prices = np.maximum(answer.dual[:types], 0.0) * self.unit / self.cap
        bound = upper_bound(self.c, self.gpus, self.capacity, self.pace, self.base, weight, prices)
        return Levels(share, prices, bound)


def upper_bound(
    c: Floats, gpus: Floats, capacity: Floats, pace: Floats, base: Floats, weight: Floats, prices: Floats
) -> float:
    """A t that no shares exceed, from any *weight* of the rows and any *prices* of the types (weak duality).

    Adding up the rows by weight, what a unit of time on a type adds beyond its price is paid by the row's own time.
    """
    total = float(weight @ pace)
    if total <= 0:
        return float("inf")
    gain = weight[:, None] * c - gpus[:, None] * prices
    time = np.maximum(np.where(c > 0, gain, 0.0).max(axis=1, initial=0.0), 0.0)
    return float((prices @ capacity + time.sum() - weight @ base) / total)
