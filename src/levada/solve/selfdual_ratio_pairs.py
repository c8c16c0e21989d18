"""The program of `selfdual_ratio` with columns for two jobs that share GPUs, which are those of `selfdual_pairs`."""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.solve.selfdual import REGULAR, Levels, walk
from levada.solve.selfdual_pairs import Together
from levada.solve.symmetric import Rows


class RatioTogether(Together):
    """x are the columns, then q of each row. What columns come to in a row's cone stands where levels stand else."""

    def __init__(
        self, count: Floats, scale: Floats, capacity: Floats, members: Ints, kind: Ints, rate: Floats, duty: Floats
    ) -> None:
        """*rate* (columns, 2) is of both members; *duty* (2, rows) is pace and what has begun, see `selfdual_ratio`."""
        rows, pace, begun = len(count), duty[0], duty[1]
        self.of_late, self.of_q, self.of_rise = pace, np.ones(rows), np.ones(rows)
        self._cone, self._late, self._q = np.ones(rows), np.ones(rows), np.ones(rows)
        nothing = np.zeros((1, rows))
        super().__init__(
            count,
            scale,
            capacity,
            members,
            kind,
            Levels(rate[None], nothing, nothing, np.ones((1, rows), np.bool_)),
        )
        self.column = np.concatenate([self.column, self._q])
        self.cost, self.cost_t = np.zeros(len(self.column)), -1.0 / self.column_t
        two = np.zeros((3, rows))
        two[2] = 2.0 / self._cone
        self.right = self.right._replace(level=(-begun / self._late)[None], cone=two)

    def _equilibrate(self, scaled: Rows) -> Rows:
        """Rows and columns, both divided by the root of their largest entry; a cone's rows by that of their sum."""
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
        """See `Program`."""
        columns = len(self.alike)
        sums, q = self._sums(x[:columns]), x[columns:]
        y, q_cone = -sums.level[0], self.of_q * q
        return sums._replace(
            level=(self.of_rise * t + self.of_late * q)[None],
            cone=np.stack([-y - q_cone, q_cone - y, np.zeros_like(y)]),
        )

    def backward(self, z: Rows) -> tuple[Floats, float]:
        """See `Program`."""
        x, _ = super().backward(z._replace(level=(z.cone[0] + z.cone[1])[None]))
        q = self.of_late * z.level[0] + self.of_q * (z.cone[1] - z.cone[0])
        return np.concatenate([x, q]), float((self.of_rise * z.level[0]) @ self.count)

    def dot(self, a: Rows, b: Rows) -> float:
        """See `Program`."""
        return super().dot(a, b) + float(self.count @ (a.cone * b.cone).sum(axis=0))

    def dot_x(self, a: Floats, a_t: float, b: Floats, b_t: float) -> float:
        """See `Program`."""
        return float(np.concatenate([self.alike, self.count]) @ (a * b)) + a_t * b_t

    def solve(self, weight: Rows, x: Floats, t: float, z: Rows) -> tuple[Floats, float, Rows]:
        """See `Program`. First all columns are expressed by the rows' numbers."""
        rows, columns = len(self.count), len(self.alike)
        if weight is not self._of:
            self._of, self._matrix = weight, self._all_rows(weight)
        pull = weight.x * self.of_x**2 + REGULAR
        alone = (x[:columns] - self.of_x * weight.x * z.x) / pull
        sums = self._sums(alone)
        cone = z.cone.copy()
        cone[:2] -= sums.level[0]
        right = np.concatenate([sums.time - z.time, -cone.ravel(), x[columns:], z.level[0], sums.cap - z.cap, [t]])
        found = np.linalg.solve(self._matrix, right)
        time, first, second, third, q, late = found[: 6 * rows].reshape(6, rows)
        cap = found[6 * rows : -1]
        dz = Rows(np.zeros(columns), cap, time, late[None], np.stack([first, second, third]))
        dx = alone - self.backward(dz)[0][:columns] / pull
        return np.concatenate([dx, q]), float(found[-1]), dz._replace(x=weight.x * (-self.of_x * dx - z.x))

    def _all_rows(self, weight: Rows) -> Floats:
        """The equations of time, cones, q, levels, GPUs and t, in this order."""
        rows = len(self.count)
        each = np.arange(rows)
        among = self._columns_between(weight)
        time, first, second, q, late = (slice(part * rows, (part + 1) * rows) for part in (0, 1, 2, 4, 5))
        cap, last = slice(6 * rows, 6 * rows + len(weight.cap)), 6 * rows + len(weight.cap)
        matrix = np.zeros((last + 1, last + 1))
        # A column counts alike in the first two numbers of a cone.
        places = [(slice(0, rows), (time,)), (self._levels, (first, second)), (slice(2 * rows, None), (cap,))]
        for source, targets in places:
            for other, others in places:
                for target in targets:
                    for under in others:
                        matrix[target, under] = among[source, other]
        for a in range(3):
            for b in range(3):
                matrix[(a + 1) * rows + each, (b + 1) * rows + each] += weight.cone[a, b]
        matrix[each, each] += 1.0 / weight.time
        matrix[first, q] += np.diag(self.of_q)
        matrix[second, q] -= np.diag(self.of_q)
        matrix[q, q], matrix[q, late] = REGULAR * np.eye(rows), np.diag(self.of_late)
        matrix[q, first], matrix[q, second] = -np.diag(self.of_q), np.diag(self.of_q)
        matrix[late, q], matrix[late, late] = np.diag(self.of_late), -np.diag(1.0 / weight.level[0])
        matrix[late, last], matrix[last, late] = self.of_rise, self.count * self.of_rise
        matrix[cap, cap] += np.diag(1.0 / weight.cap)
        matrix[last, last] = REGULAR
        return matrix


def follow_ratio_together(
    count: Floats, scale: Floats, capacity: Floats, members: Ints, kind: Ints, rate: Floats, duty: Floats
) -> Floats:
    """Shares of columns at the end of the path; see `RatioTogether`."""
    x, _ = walk(RatioTogether(count, scale, capacity, members, kind, rate, duty))
    return x[: len(kind)]
