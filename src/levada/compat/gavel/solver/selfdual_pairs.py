"""The program of `selfdual` with columns for pairs of jobs that share GPUs.

Jobs of a class are equal, and so are all columns of two classes on a type: one column represents all, and sums count
its multiplicity. A step costs O(columns + rows^3).
"""

from __future__ import annotations

import numpy as np

from levada.compat.gavel.solver.selfdual import REGULARIZATION, ConstraintSets
from levada.compat.gavel.solver.symmetric import Rows
from levada.core.types import Floats, Ints

_EQUILIBRATIONS = 3


class PairProgram:
    """max gain . x + t, where the total level of each job over all its columns is at least base + slope t."""

    def __init__(
        self,
        count: Floats,
        scale: Floats,
        capacity: Floats,
        members: Ints,
        kind: Ints,
        levels: ConstraintSets,
        gain: Floats | None = None,
    ) -> None:
        """*members* (columns, 2) are rows; the second is -1 for a single job.

        All rows have all level constraints; `levels.c` (sets, columns, 2) are the levels of both members per unit of
        time in a column. *gain* is by column.
        """
        sets, rows, columns = len(levels.c), len(count), len(kind)
        first, second = members.T
        pair, same_row = second >= 0, first == second
        other = np.where(pair, second, first)
        #: Multiplicity of a column: number of pairs of jobs of these classes.
        self.multiplicity = np.where(pair, count[first] * count[other], count[first])
        self.multiplicity[same_row] = (count[first] * (count[first] - 1) / 2)[same_row]
        self.count, self.has = count, levels.has
        # Entries of a column: time and levels of the first member, of the second, and GPUs. For a pair of a row with
        # itself the entries of the first member represent both.
        of_first = np.where(same_row, levels.c.mean(axis=2), levels.c[:, :, 0])
        once = np.ones((1, columns))
        step = np.arange(1 + sets)[:, None] * rows
        self.row = np.concatenate([step + first, step + other, (1 + sets) * rows + kind[None]])
        self.entry = np.concatenate([once, of_first, once, levels.c[:, :, 1], scale[first][None]])
        #: By entry: number of jobs of the class in a column, and number of columns of a job.
        both = np.where(pair & ~same_row, 1.0, 0.0)
        self.jobs = np.stack([np.where(same_row, 2.0, 1.0)] * (1 + sets) + [both] * (1 + sets) + [np.ones(columns)])
        partners = np.where(same_row, count[first] - 1, np.where(pair, count[other], 1.0))
        self.columns = np.stack([partners] * (1 + sets) + [both * count[first]] * (1 + sets) + [self.multiplicity])
        #: Number of unknowns of all rows, and the position of levels among them.
        self._all = (1 + sets) * rows + len(capacity)
        self._levels = slice(rows, (1 + sets) * rows)
        self.of_x, self.of_t = np.ones(columns), levels.slope
        self.column, self.column_t = np.ones(columns), 1.0
        scaled = Rows(np.ones(columns), *self._parts(np.ones(self._all)))
        for _ in range(_EQUILIBRATIONS):
            scaled = self._equilibrate(scaled)
        self.cost = (np.zeros(columns) if gain is None else -gain) / self.column
        self.cost_t = -1.0 / self.column_t if self.of_t.any() else 0.0
        self.right = Rows(np.zeros(columns), capacity, np.ones(rows), -levels.base).over(scaled)
        #: Cached by `solve` for the last weights: matrix and its scale.
        self._of: Rows | None = None
        self._matrix: Floats = np.zeros((0, 0))
        self._size: Floats = np.zeros(0)

    def _parts(self, numbers: Floats) -> tuple[Floats, Floats, Floats]:
        """Split a vector of all rows into GPUs, time and levels."""
        rows = len(self.count)
        return numbers[self._levels.stop :], numbers[:rows], numbers[self._levels].reshape(-1, rows)

    def _flatten(self, rows: Rows) -> Floats:
        """The inverse of `_parts`."""
        return np.concatenate([rows.time, rows.level.ravel(), rows.cap])

    def _equilibrate(self, scaled: Rows) -> Rows:
        """Divide rows and columns by the square root of their largest entry."""
        size = self.entry * (self.jobs > 0)
        column = np.sqrt(np.maximum(size.max(axis=0), self.of_x))
        column_t = float(np.sqrt(self.of_t.max(initial=0.0))) or 1.0
        largest = np.zeros(self._all)
        np.maximum.at(largest, self.row, size)
        largest[self._levels] = np.maximum(largest[self._levels], self.of_t.ravel())
        root = np.sqrt(np.where(largest > 0, largest, 1.0))
        by = Rows(np.sqrt(self.of_x), *self._parts(root))
        self.entry = self.entry / (column * root[self.row])
        self.of_x = self.of_x / (column * by.x)
        self.of_t = self.of_t / (column_t * by.level)
        self.column, self.column_t = self.column * column, self.column_t * column_t
        return scaled.by(by)

    def _sums(self, x: Floats) -> Rows:
        """Sums of columns in each row; levels are negated."""
        weights = self.columns * self.entry * x
        cap, time, level = self._parts(np.asarray(np.bincount(self.row.ravel(), weights.ravel(), self._all), float))
        return Rows(-self.of_x * x, cap, time, -level)

    def forward(self, x: Floats, t: float) -> Rows:
        """See `ConicProgram`."""
        sums = self._sums(x)
        return sums._replace(level=self.of_t * t + sums.level)

    def backward(self, z: Rows) -> tuple[Floats, float]:
        """See `ConicProgram`."""
        by_row = self._flatten(z._replace(level=-z.level))
        x = (self.jobs * self.entry * by_row[self.row]).sum(axis=0) - self.of_x * z.x
        return x, float((self.of_t * z.level).sum(axis=0) @ self.count)

    def dot(self, a: Rows, b: Rows) -> float:
        """See `ConicProgram`."""
        own = self.count @ (a.time * b.time + (a.level * b.level).sum(axis=0))
        return float(self.multiplicity @ (a.x * b.x) + own + a.cap @ b.cap)

    def dot_x(self, a: Floats, a_t: float, b: Floats, b_t: float) -> float:
        """See `ConicProgram`."""
        return float(self.multiplicity @ (a * b)) + a_t * b_t

    def solve(self, weight: Rows, x: Floats, t: float, z: Rows) -> tuple[Floats, float, Rows]:
        """See `ConicProgram`."""
        if weight is not self._of:
            matrix = self._among_rows(weight)
            self._of, self._size = weight, np.append(np.sqrt(np.diag(matrix)[:-1]), 1.0)
            self._matrix = matrix / self._size / self._size[:, None]
        diagonal = weight.x * self.of_x**2 + REGULARIZATION
        own_x = (x - self.of_x * weight.x * z.x) / diagonal
        right = np.append(self._flatten(self._sums(own_x)) - self._flatten(z), t)
        solution = np.linalg.solve(self._matrix, right / self._size) / self._size
        dz = Rows(np.zeros_like(x), *self._parts(solution[:-1]))
        dx = own_x - self.backward(dz)[0] / diagonal
        return dx, float(solution[-1]), dz._replace(x=weight.x * (-self.of_x * dx - z.x))

    def _among_rows(self, weight: Rows) -> Floats:
        """The matrix of the unknowns of rows and t, after elimination of all columns."""
        size = self._all
        matrix = np.zeros((size + 1, size + 1))
        matrix[:size, :size] = self._columns_between(weight)
        matrix[np.arange(size), np.arange(size)] += 1.0 / self._flatten(weight)
        matrix[self._levels, size] = -self.of_t.ravel()
        matrix[size, self._levels] = (self.count * self.of_t).ravel()
        matrix[size, size] = REGULARIZATION
        return matrix

    def _columns_between(self, weight: Rows) -> Floats:
        """By pair of rows: the coupling of their unknowns by columns."""
        size = self._all
        sign = np.ones(size)
        sign[self._levels] = -1.0
        signed = self.entry * sign[self.row]
        touching, touched = self.columns * signed / (weight.x * self.of_x**2 + REGULARIZATION), self.jobs * signed
        products = touching[:, None] * touched[None]
        cells = self.row[:, None] * size + self.row[None]
        sums = np.bincount(cells.ravel(), products.ravel(), size * size)
        return np.asarray(sums, np.float64).reshape(size, size)
