"""The program of `selfdual` for the smallest largest finish-time ratio, as the published policy states it.

    min  r :   x >= 0,   sum_i scale_i x_ik <= capacity_k,   sum_k x_ik <= 1,
               begun_i + pace_i q_i <= r,   q_i y_i >= 1   where  y_i = sum_k rate_ik x_ik

The last is a Lorentz cone: (y + q, y - q, 2). Here t is -r.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats
from levada.solve.selfdual import walk_alone
from levada.solve.symmetric import Rows


class Ratio:
    """See the module; columns are x of all types, then q, of one class per row, each of *count* equal jobs."""

    def __init__(
        self, count: Floats, scale: Floats, capacity: Floats, rate: Floats, pace: Floats, begun: Floats
    ) -> None:
        rows, types = rate.shape
        ones = np.ones((rows, types))
        self.count = count
        self.of_x, self.of_use, self.of_time, self.of_speed = ones, ones * scale[:, None], ones, rate
        #: Of q in levels, and (both ways) in cones.
        self.of_late, self.of_q, self.of_t = pace, np.ones(rows), np.ones(rows)
        self.column, self.column_t = np.ones((rows, types + 1)), 1.0
        row = Rows(ones, np.ones(types), np.ones(rows), np.ones((1, rows)), np.ones((1, rows)))
        for _ in range(3):
            row = self._equilibrate(row)
        self.cost, self.cost_t = np.zeros((rows, types + 1)), -1.0 / self.column_t
        two = np.zeros((3, rows))
        two[2] = 2.0
        self.right = Rows(np.zeros((rows, types)), capacity, np.ones(rows), -begun[None], two).over(row)

    def _equilibrate(self, scaled: Rows) -> Rows:
        """Rows and columns, both divided by the root of their largest entry; a cone's rows by that of their sum."""
        all_x = np.stack([self.of_x, self.of_use, self.of_time, self.of_speed])
        x, q = np.sqrt(all_x.max(axis=0)), np.sqrt(np.maximum(self.of_late, self.of_q))
        t = float(np.sqrt(self.of_t.max()))
        cone = 2.0 * np.maximum(self.of_speed.max(axis=1), self.of_q)
        late = np.maximum(self.of_late, self.of_t)
        row = Rows(self.of_x, self.of_use.max(axis=0), self.of_time.max(axis=1), late[None], cone[None]).root()
        self.of_x = self.of_x / (x * row.x)
        self.of_use = self.of_use / (x * row.cap)
        self.of_time = self.of_time / (x * row.time[:, None])
        self.of_speed = self.of_speed / (x * row.cone[0][:, None])
        self.of_late, self.of_q = self.of_late / (q * row.level[0]), self.of_q / (q * row.cone[0])
        self.of_t = self.of_t / (t * row.level[0])
        self.column, self.column_t = self.column * np.column_stack([x, q]), self.column_t * t
        return scaled.by(row)

    def walk(self) -> tuple[Floats, float]:
        """x (with q in the last column) and t at the end of the path."""
        rows, types = self.of_use.shape
        of_own, rise = np.zeros((rows, 5, types + 1)), np.zeros((rows, 5))
        of_own[:, 0, :types] = self.of_time
        of_own[:, 1, types], rise[:, 1] = self.of_late, self.of_t
        of_own[:, 2, :types] = of_own[:, 3, :types] = -self.of_speed
        of_own[:, 2, types], of_own[:, 3, types] = -self.of_q, self.of_q
        h = self.right
        sides = np.column_stack([h.x, h.time, h.level[0], h.cone.T])
        return walk_alone(self, self.of_x, self.of_use, of_own, rise, sides, cones=True)


def follow_ratio(
    count: Floats, scale: Floats, capacity: Floats, rate: Floats, pace: Floats, begun: Floats
) -> tuple[Floats, float]:
    """Shares and the ratio at the end of the path. Every row has jobs and can run; *pace* is above 0."""
    x, t = Ratio(count, scale, capacity, rate, pace, begun).walk()
    return x[:, :-1], -t
