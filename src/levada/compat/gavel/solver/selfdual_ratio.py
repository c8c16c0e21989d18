"""The program of `selfdual` for the minimal finish-time ratio, as published.

    min  r :   x >= 0,   sum_i scale_i x_ik <= capacity_k,   sum_k x_ik <= 1,
               elapsed_i + slope_i q_i <= r,   q_i y_i >= 1   where  y_i = sum_k rate_ik x_ik

The last one is a Lorentz cone: (y + q, y - q, 2). Here t is -r. Elapsed times and slopes (remaining steps) are divided
by ideal times. `PairRatioProgram` has the columns of `selfdual_pairs` for pairs of jobs that share GPUs.
"""

from __future__ import annotations

import numpy as np

from levada.compat.gavel.solver.selfdual import REGULARIZATION, ConstraintSets, solve_path, solve_single
from levada.compat.gavel.solver.selfdual_pairs import PairProgram
from levada.compat.gavel.solver.symmetric import Rows
from levada.core.types import Floats, Ints


def follow_ratio(
    count: Floats, scale: Floats, capacity: Floats, rate: Floats, slope: Floats, elapsed: Floats
) -> tuple[Floats, float]:
    """Shares and the ratio at the end of the path. Every row has jobs and can run; *slope* is above 0."""
    rows, types = rate.shape
    # Columns are x of all types, then q; rows are time, ratio, and the three components of the cone.
    of_own, rise, sides = np.zeros((rows, 5, types + 1)), np.zeros((rows, 5)), np.zeros((rows, 5))
    of_own[:, 0, :types], sides[:, 0] = 1.0, 1.0
    of_own[:, 1, types], rise[:, 1], sides[:, 1] = slope, 1.0, -elapsed
    of_own[:, 2, :types] = of_own[:, 3, :types] = -rate
    of_own[:, 2, types], of_own[:, 3, types], sides[:, 4] = -1.0, 1.0, 2.0
    x, t = solve_single(count, scale, capacity, of_own, rise, sides, cones=True)
    return x[:, :-1], -t


class PairRatioProgram(PairProgram):
    """x has the columns, then q of index row. Levels hold the sums of columns in the cones."""

    def __init__(
        self, count: Floats, scale: Floats, capacity: Floats, members: Ints, kind: Ints, rate: Floats, terms: Floats
    ) -> None:
        """*rate* (columns, 2) is that of both members; *terms* (2, rows) are slope and elapsed, see the module."""
        rows, slope, elapsed = len(count), terms[0], terms[1]
        self.of_late, self.of_q, self.of_rise = slope, np.ones(rows), np.ones(rows)
        self._cone, self._late, self._q = np.ones(rows), np.ones(rows), np.ones(rows)
        zeros = np.zeros((1, rows))
        super().__init__(
            count,
            scale,
            capacity,
            members,
            kind,
            ConstraintSets(rate[None], zeros, zeros, np.ones((1, rows), np.bool_)),
        )
        self.column = np.concatenate([self.column, self._q])
        self.cost, self.cost_t = np.zeros(len(self.column)), -1.0 / self.column_t
        two = np.zeros((3, rows))
        two[2] = 2.0 / self._cone
        self.right = self.right._replace(level=(-elapsed / self._late)[None], cone=two)

    def _equilibrate(self, scaled: Rows) -> Rows:
        """Divide rows and columns by the square root of their largest entry; cones by that of their sum."""
        size = self.entry * (self.jobs > 0)
        column, q = np.sqrt(np.maximum(size.max(axis=0), self.of_x)), np.sqrt(np.maximum(self.of_late, self.of_q))
        t = float(np.sqrt(self.of_rise.max()))
        largest = np.zeros(self._all)
        np.maximum.at(largest, self.row, size)
        largest[self._levels] = 2.0 * np.maximum(largest[self._levels], self.of_q)
        root = np.sqrt(largest)
        cone, late = root[self._levels], np.sqrt(np.maximum(self.of_late, self.of_rise))
        by = Rows(np.sqrt(self.of_x), *self._parts(root))
        self.entry, self.of_x = self.entry / (column * root[self.row]), self.of_x / (column * by.x)
        self.of_late, self.of_q, self.of_rise = (
            self.of_late / (q * late),
            self.of_q / (q * cone),
            self.of_rise / (t * late),
        )
        self.column, self.column_t, self._q = self.column * column, self.column_t * t, self._q * q
        self._cone, self._late = self._cone * cone, self._late * late
        return scaled.by(by)

    def forward(self, x: Floats, t: float) -> Rows:
        """See `ConicProgram`."""
        columns = len(self.multiplicity)
        sums, q = self._sums(x[:columns]), x[columns:]
        y, q_cone = -sums.level[0], self.of_q * q
        return sums._replace(
            level=(self.of_rise * t + self.of_late * q)[None],
            cone=np.stack([-y - q_cone, q_cone - y, np.zeros_like(y)]),
        )

    def backward(self, z: Rows) -> tuple[Floats, float]:
        """See `ConicProgram`."""
        x, _ = super().backward(z._replace(level=(z.cone[0] + z.cone[1])[None]))
        q = self.of_late * z.level[0] + self.of_q * (z.cone[1] - z.cone[0])
        return np.concatenate([x, q]), float((self.of_rise * z.level[0]) @ self.count)

    def dot(self, a: Rows, b: Rows) -> float:
        """See `ConicProgram`."""
        return super().dot(a, b) + float(self.count @ (a.cone * b.cone).sum(axis=0))

    def dot_x(self, a: Floats, a_t: float, b: Floats, b_t: float) -> float:
        """See `ConicProgram`."""
        return float(np.concatenate([self.multiplicity, self.count]) @ (a * b)) + a_t * b_t

    def solve(self, weight: Rows, x: Floats, t: float, z: Rows) -> tuple[Floats, float, Rows]:
        """See `ConicProgram`; eliminates all columns first."""
        rows, columns = len(self.count), len(self.multiplicity)
        if weight is not self._of:
            self._of, self._matrix = weight, self._all_rows(weight)
        diagonal = weight.x * self.of_x**2 + REGULARIZATION
        own_x = (x[:columns] - self.of_x * weight.x * z.x) / diagonal
        sums = self._sums(own_x)
        cone = z.cone.copy()
        cone[:2] -= sums.level[0]
        right = np.concatenate([sums.time - z.time, -cone.ravel(), x[columns:], z.level[0], sums.cap - z.cap, [t]])
        solution = np.linalg.solve(self._matrix, right)
        time, first, second, third, q, late = solution[: 6 * rows].reshape(6, rows)
        cap = solution[6 * rows : -1]
        dz = Rows(np.zeros(columns), cap, time, late[None], np.stack([first, second, third]))
        dx = own_x - self.backward(dz)[0][:columns] / diagonal
        return np.concatenate([dx, q]), float(solution[-1]), dz._replace(x=weight.x * (-self.of_x * dx - z.x))

    def _all_rows(self, weight: Rows) -> Floats:
        """The equations of time, cones, q, levels, GPUs and t, in this order."""
        rows = len(self.count)
        index = np.arange(rows)
        coupling = self._columns_between(weight)
        time, first, second, q, late = (slice(part * rows, (part + 1) * rows) for part in (0, 1, 2, 4, 5))
        cap, last = slice(6 * rows, 6 * rows + len(weight.cap)), 6 * rows + len(weight.cap)
        matrix = np.zeros((last + 1, last + 1))
        # A column has the same coefficient in the first two components of a cone.
        parts = [(slice(0, rows), (time,)), (self._levels, (first, second)), (slice(2 * rows, None), (cap,))]
        for source, targets in parts:
            for other, others in parts:
                for target in targets:
                    for under in others:
                        matrix[target, under] = coupling[source, other]
        for a in range(3):
            for b in range(3):
                matrix[(a + 1) * rows + index, (b + 1) * rows + index] += weight.cone[a, b]
        matrix[index, index] += 1.0 / weight.time
        matrix[first, q] += np.diag(self.of_q)
        matrix[second, q] -= np.diag(self.of_q)
        matrix[q, q], matrix[q, late] = REGULARIZATION * np.eye(rows), np.diag(self.of_late)
        matrix[q, first], matrix[q, second] = -np.diag(self.of_q), np.diag(self.of_q)
        matrix[late, q], matrix[late, late] = np.diag(self.of_late), -np.diag(1.0 / weight.level[0])
        matrix[late, last], matrix[last, late] = self.of_rise, self.count * self.of_rise
        matrix[cap, cap] += np.diag(1.0 / weight.cap)
        matrix[last, last] = REGULARIZATION
        return matrix


def follow_ratio_pairs(
    count: Floats, scale: Floats, capacity: Floats, members: Ints, kind: Ints, rate: Floats, terms: Floats
) -> Floats:
    """Shares of columns at the end of the path; see `PairRatioProgram`."""
    x, _ = solve_path(PairRatioProgram(count, scale, capacity, members, kind, rate, terms))
    return x[: len(kind)]
