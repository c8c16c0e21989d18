"""The program of `selfdual` for the smallest largest finish-time ratio, as the published policy states it.

    min  r :   x >= 0,   sum_i scale_i x_ik <= capacity_k,   sum_k x_ik <= 1,
               begun_i + pace_i q_i <= r,   q_i y_i >= 1   where  y_i = sum_k rate_ik x_ik

The last is a Lorentz cone: (y + q, y - q, 2). Here t is -r.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats
from levada.solve.selfdual import REGULAR, joined, walk
from levada.solve.symmetric import Rows


class Ratio:
    """See the module; columns are x of all types, then q, of one class per row, each of *count* equal jobs."""

    def __init__(
        self, count: Floats, scale: Floats, capacity: Floats, rate: Floats, pace: Floats, begun: Floats
    ) -> None:
        rows, types = rate.shape
        ones = np.ones((rows, types))
        self.count, self.has = count, np.ones((1, rows), np.bool_)
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

    def forward(self, x: Floats, t: float) -> Rows:
        """See `Program`."""
        share, q = x[:, :-1], x[:, -1]
        y, q_cone = (self.of_speed * share).sum(axis=1), self.of_q * q
        return Rows(
            -self.of_x * share,
            self.count @ (self.of_use * share),
            (self.of_time * share).sum(axis=1),
            (self.of_t * t + self.of_late * q)[None],
            np.stack([-y - q_cone, q_cone - y, np.zeros_like(y)]),
        )

    def backward(self, z: Rows) -> tuple[Floats, float]:
        """See `Program`."""
        x = -self.of_x * z.x + self.of_use * z.cap + self.of_time * z.time[:, None]
        x -= self.of_speed * (z.cone[0] + z.cone[1])[:, None]
        q = self.of_late * z.level[0] + self.of_q * (z.cone[1] - z.cone[0])
        return np.column_stack([x, q]), float((self.of_t * z.level[0]) @ self.count)

    def dot(self, a: Rows, b: Rows) -> float:
        """See `Program`."""
        own = (a.x * b.x).sum(axis=1) + a.time * b.time + a.level[0] * b.level[0] + (a.cone * b.cone).sum(axis=0)
        return float(self.count @ own + a.cap @ b.cap)

    def dot_x(self, a: Floats, a_t: float, b: Floats, b_t: float) -> float:
        """See `Program`."""
        return float(self.count @ (a * b).sum(axis=1)) + a_t * b_t

    def solve(self, weight: Rows, x: Floats, t: float, z: Rows) -> tuple[Floats, float, Rows]:
        """See `Program`."""
        rows, types = self.of_use.shape
        q, time, late, cone = types, types + 1, types + 2, types + 3
        own = np.zeros((rows, types + 6, types + 6))
        own[:, time, :types] = self.of_time
        own[:, late, q] = self.of_late
        own[:, cone, :types] = own[:, cone + 1, :types] = -self.of_speed
        own[:, cone, q], own[:, cone + 1, q] = -self.of_q, self.of_q
        own += own.swapaxes(1, 2)
        diagonal = np.arange(types)
        own[:, diagonal, diagonal] = weight.x * self.of_x**2 + REGULAR
        own[:, q, q] = REGULAR
        own[:, time, time], own[:, late, late] = -1.0 / weight.time, -1.0 / weight.level[0]
        own[:, cone:, cone:] = -weight.cone.transpose(2, 0, 1)
        side, rise = np.zeros((rows, types + 6)), np.zeros((rows, types + 6))
        side[:, :types], side[:, q] = x[:, :-1] - self.of_x * weight.x * z.x, x[:, -1]
        side[:, time], side[:, late], side[:, cone:] = z.time, z.level[0], z.cone.T
        rise[:, late] = self.of_t
        each, cap, dt = joined(own, side, self.of_use, rise, self.count, weight.cap, z.cap, t)
        of_x = -weight.x * (self.of_x * each[:, :types] + z.x)
        return each[:, : types + 1], dt, Rows(of_x, cap, each[:, time], each[:, late][None], each[:, cone:].T)


def follow_ratio(
    count: Floats, scale: Floats, capacity: Floats, rate: Floats, pace: Floats, begun: Floats
) -> tuple[Floats, float]:
    """Shares and the ratio at the end of the path. Every row has jobs and can run; *pace* is above 0."""
    x, t = walk(Ratio(count, scale, capacity, rate, pace, begun))
    return x[:, :-1], -t
