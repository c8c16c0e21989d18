"""The program of `selfdual` for the smallest largest finish-time ratio, as the published policy states it.

    min  r :   x >= 0,   sum_i scale_i x_ik <= capacity_k,   sum_k x_ik <= 1,
               begun_i + pace_i q_i <= r,   q_i y_i >= 1   where  y_i = sum_k rate_ik x_ik

The last is a Lorentz cone: (y + q, y - q, 2). Here t is -r.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats
from levada.solve.selfdual import walk_alone


def follow_ratio(
    count: Floats, scale: Floats, capacity: Floats, rate: Floats, pace: Floats, begun: Floats
) -> tuple[Floats, float]:
    """Shares and the ratio at the end of the path. Every row has jobs and can run; *pace* is above 0.

    Columns are x of all types, then q; rows are time, ratio, and the three of the cone.
    """
    rows, types = rate.shape
    of_own, rise, sides = np.zeros((rows, 5, types + 1)), np.zeros((rows, 5)), np.zeros((rows, 5))
    of_own[:, 0, :types], sides[:, 0] = 1.0, 1.0
    of_own[:, 1, types], rise[:, 1], sides[:, 1] = pace, 1.0, -begun
    of_own[:, 2, :types] = of_own[:, 3, :types] = -rate
    of_own[:, 2, types], of_own[:, 3, types], sides[:, 4] = -1.0, 1.0, 2.0
    x, t = walk_alone(count, scale, capacity, of_own, rise, sides, cones=True)
    return x[:, :-1], -t
