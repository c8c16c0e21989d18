"""The program of `selfdual` with columns for two jobs that share GPUs.

Jobs of one class are equal, and so are all columns of two given classes on one type: one of them stands for all, and
each sum counts how many there are. A step costs O(columns + rows^3).
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.solve.selfdual import Rows

_ROUNDS = 3


class Together:
    """max t, where each job's levels of all its columns, alone or together, come to at least t."""

    def __init__(
        self, count: Floats, scale: Floats, capacity: Floats, members: Ints, kind: Ints, levels: Floats
    ) -> None:
        """*members* (columns, 2) are rows, the second -1 for who is alone; *levels* (columns, 2) are theirs there."""
        rows, types = len(count), len(capacity)
        first, second = members.T
        pair, twins = second >= 0, first == second
        other = np.where(pair, second, first)
        #: How many columns one stands for: pairs of jobs of these classes.
        self.alike = np.where(pair, count[first] * count[other], count[first])
        self.alike[twins] = (count[first] * (count[first] - 1) / 2)[twins]
        self.count = count
        self.has = np.ones((1, rows), np.bool_)
        # Five entries a column: time and level of the first, of the second, and GPUs. Of twins, what is true of the
        # first is true of the second: one entry stands for both.
        level = np.where(twins, levels.mean(axis=1), levels[:, 0])
        self.row = np.stack([first, rows + first, other, rows + other, 2 * rows + kind])
        self.entry = np.stack([np.ones(len(kind)), level, np.ones(len(kind)), levels[:, 1], scale[first]])
        #: Per entry how many jobs a column touches in that row's class, and how many columns touch a job of it.
        both = np.where(pair & ~twins, 1.0, 0.0)
        self.jobs = np.stack([np.where(twins, 2.0, 1.0)] * 2 + [both] * 2 + [np.ones(len(kind))])
        partners = np.where(twins, count[first] - 1, np.where(pair, count[other], 1.0))
        self.columns = np.stack([partners] * 2 + [both * count[first]] * 2 + [self.alike])
        self.of_x, self.of_t = np.ones(len(kind)), np.ones(rows)
        self.column, self.column_t = np.ones(len(kind)), 1.0
        scaled = Rows(np.ones(len(kind)), np.ones(types), np.ones(rows), np.ones((1, rows)))
        for _ in range(_ROUNDS):
            scaled = self._equilibrate(scaled)
        self.cost, self.cost_t = np.zeros(len(kind)), -1.0 / self.column_t
        self.right = Rows(np.zeros(len(kind)), capacity, np.ones(rows), np.zeros((1, rows))).over(scaled)
        #: What `solve` needs of the weights that it was last given, and its scale.
        self._of: Rows | None = None
        self._matrix: Floats = np.zeros((0, 0))
        self._size: Floats = np.zeros(0)

    def _equilibrate(self, scaled: Rows) -> Rows:
        """Rows and columns, both divided by the root of their largest entry."""
        size = self.entry * (self.jobs > 0)
        column = np.sqrt(np.maximum(size.max(axis=0), self.of_x))
        column_t = float(np.sqrt(self.of_t.max()))
        largest = np.zeros(2 * len(self.count) + len(scaled.cap))
        np.maximum.at(largest, self.row, size)
        rows = len(self.count)
        largest[rows : 2 * rows] = np.maximum(largest[rows : 2 * rows], self.of_t)
        root = np.sqrt(np.where(largest > 0, largest, 1.0))
        by = Rows(np.sqrt(self.of_x), root[2 * rows :], root[:rows], root[None, rows : 2 * rows])
        self.entry = self.entry / (column * root[self.row])
        self.of_x = self.of_x / (column * by.x)
        self.of_t = self.of_t / (column_t * by.level[0])
        self.column, self.column_t = self.column * column, self.column_t * column_t
        return scaled.by(by)

    def _sums(self, x: Floats) -> Floats:
        """Time, level and GPUs of each row and type, one after the other."""
        weights = self.columns * self.entry * x
        size = 2 * len(self.count) + len(self.right.cap)
        return np.asarray(np.bincount(self.row.ravel(), weights.ravel(), size), np.float64)

    def forward(self, x: Floats, t: float) -> Rows:
        """See `Program`."""
        rows, sums = len(self.count), self._sums(x)
        level = self.of_t * t - sums[rows : 2 * rows]
        return Rows(-self.of_x * x, sums[2 * rows :], sums[:rows], level[None])

    def backward(self, z: Rows) -> tuple[Floats, float]:
        """See `Program`."""
        by_row = np.concatenate([z.time, -z.level[0], z.cap])
        x = (self.jobs * self.entry * by_row[self.row]).sum(axis=0) - self.of_x * z.x
        return x, float((self.count * self.of_t) @ z.level[0])

    def dot(self, a: Rows, b: Rows) -> float:
        """See `Program`."""
        own = self.count @ (a.time * b.time + a.level[0] * b.level[0])
        return float(self.alike @ (a.x * b.x) + own + a.cap @ b.cap)

    def dot_x(self, a: Floats, a_t: float, b: Floats, b_t: float) -> float:
        """See `Program`."""
        return float(self.alike @ (a * b)) + a_t * b_t

    def solve(self, weight: Rows, x: Floats, t: float, z: Rows) -> tuple[Floats, float, Rows]:
        """See `Program`."""
        if weight is not self._of:
            matrix = self._among_rows(weight)
            self._of, self._size = weight, np.append(np.sqrt(np.diag(matrix)[:-1]), 1.0)
            self._matrix = matrix / self._size / self._size[:, None]
        rows = len(self.count)
        pull = weight.x * self.of_x**2
        alone = (x - self.of_x * weight.x * z.x) / pull
        sums = self._sums(alone)
        sums[rows : 2 * rows] *= -1.0
        right = np.append(sums - np.concatenate([z.time, z.level[0], z.cap]), t)
        found = np.linalg.solve(self._matrix, right / self._size) / self._size
        time, level, cap = found[:rows], found[None, rows : 2 * rows], found[2 * rows : -1]
        back, _ = self.backward(Rows(np.zeros_like(x), cap, time, level))
        dx = alone - back / pull
        return dx, float(found[-1]), Rows(weight.x * (-self.of_x * dx - z.x), cap, time, level)

    def _among_rows(self, weight: Rows) -> Floats:
        """What is left for the rows' own numbers and t when all columns are expressed by them."""
        rows, size = len(self.count), 2 * len(self.count) + len(self.right.cap)
        sign = np.concatenate([np.ones(rows), -np.ones(rows), np.ones(size - 2 * rows)])
        signed = self.entry * sign[self.row]
        touching, touched = self.columns * signed / (weight.x * self.of_x**2), self.jobs * signed
        products = touching[:, None] * touched[None]
        cells = self.row[:, None] * size + self.row[None]
        matrix = np.zeros((size + 1, size + 1))
        matrix[:size, :size] = np.bincount(cells.ravel(), products.ravel(), size * size).reshape(size, size)
        own = np.concatenate([weight.time, weight.level[0], weight.cap])
        matrix[np.arange(size), np.arange(size)] += 1.0 / own
        matrix[rows : 2 * rows, size] = -self.of_t
        matrix[size, rows : 2 * rows] = self.count * self.of_t
        return matrix
