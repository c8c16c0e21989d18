"""`kernels.checks`, compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np


@numba.njit(cache=True)
def sane(rate: Any, weight: Any, scale: Any, capacity: Any) -> bool:
    for i in range(len(weight)):
        if not (0.0 < weight[i] < np.inf and 0.0 < scale[i] < np.inf):
            return False
        for k in range(len(capacity)):
            if not 0.0 <= rate[i, k] < np.inf:
                return False
    for k in range(len(capacity)):  # noqa: SIM110 compiled: a loop is what it becomes
        if not 0.0 <= capacity[k] < np.inf:
            return False
    return True


@numba.njit(cache=True)
def feasible(share: Any, scale: Any, capacity: Any, slack: float) -> bool:
    use = np.zeros(len(capacity))
    for i in range(len(share)):
        time = 0.0
        for k in range(len(capacity)):
            if not 0.0 <= share[i, k] < np.inf:
                return False
            time += share[i, k]
            use[k] += scale[i] * share[i, k]
        if time > 1.0 + slack:
            return False
    for k in range(len(capacity)):  # noqa: SIM110 as above
        if use[k] > capacity[k] * (1.0 + slack):
            return False
    return True
